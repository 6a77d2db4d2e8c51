//! [`refused`] names the limits that may have refused memory.
//!
//! The kernel does not say which limit refused a call, so the text lists limits that fit the error
//! number. Source: getrlimit(2), mmap(2).
#![allow(unsafe_code)]

use std::io;

use crate::error::OsError;
use crate::internal::sys::files::file;
use crate::internal::sys::machine::meminfo;
use crate::units::Bytes;

#[cold]
pub fn refused(call: &'static str, mut subject: String, source: io::Error) -> OsError {
    for limit in causes(&source) {
        subject.push_str("; ");
        subject.push_str(&limit);
    }
    OsError::new(call, subject, source)
}

fn causes(error: &io::Error) -> Vec<String> {
    let set = |name: &str, resource| Some(format!("{name} is {}", limit(resource)?));
    let found = match error.raw_os_error() {
        Some(libc::ENOMEM) => vec![
            set("RLIMIT_AS (ulimit -v)", libc::RLIMIT_AS),
            set("RLIMIT_DATA (ulimit -d)", libc::RLIMIT_DATA),
            overcommit(),
        ],
        // After mlockall(2) new mappings are locked, and count towards RLIMIT_MEMLOCK.
        Some(libc::EAGAIN) => vec![set("RLIMIT_MEMLOCK (ulimit -l)", libc::RLIMIT_MEMLOCK)],
        _ => Vec::new(),
    };
    found.into_iter().flatten().collect()
}

pub fn limit(resource: libc::__rlimit_resource_t) -> Option<Bytes> {
    let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: the kernel fills the local.
    let told = unsafe { libc::getrlimit(resource, &raw mut limit) };
    (told == 0 && limit.rlim_cur != libc::RLIM_INFINITY).then(|| Bytes::new(limit.rlim_cur))
}

fn overcommit() -> Option<String> {
    if file::number("/proc/sys/vm/overcommit_memory").ok()? != 2 {
        return None;
    }
    let line = |key| meminfo::read(key).ok();
    let (all, used) = (line("CommitLimit")?, line("Committed_AS")?);
    Some(format!("vm.overcommit_memory is 2: CommitLimit {all}, Committed_AS {used}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_text_names_limits_that_may_be_the_cause() {
        let text = |errno| {
            let source = io::Error::from_raw_os_error(errno);
            refused("mmap", "1 GiB".to_owned(), source).to_string()
        };
        let has = |resource| limit(resource).is_some();
        assert_eq!(text(libc::ENOMEM).contains("RLIMIT_AS"), has(libc::RLIMIT_AS));
        assert_eq!(text(libc::EAGAIN).contains("RLIMIT_MEMLOCK"), has(libc::RLIMIT_MEMLOCK));
        assert!(!text(libc::EPERM).contains("RLIMIT"));
    }
}
