//! How many page faults the calling thread has had, those among them that a system call took on its
//! behalf. Source: getrusage(2), `RUSAGE_THREAD`.
//!
//! # Safety
//! The call writes one structure, which it is given.
#![allow(unsafe_code)]

use std::mem::MaybeUninit;

use crate::error::OsError;
use crate::sys::call::call;

/// The count, which never goes down.
#[inline]
pub(crate) fn of_thread() -> Result<u64, OsError> {
    let mut usage = MaybeUninit::<libc::rusage>::zeroed();
    // SAFETY: the structure is as the call wants it.
    let ask = || unsafe { libc::getrusage(libc::RUSAGE_THREAD, usage.as_mut_ptr()) };
    call("getrusage", || "RUSAGE_THREAD".to_owned(), ask)?;
    // SAFETY: all zeros, or what the call wrote: numbers either way.
    let usage = unsafe { usage.assume_init() };
    Ok(usage.ru_minflt.wrapping_add(usage.ru_majflt) as u64)
}

#[cfg(test)]
mod tests {
    use super::*;

    use std::ptr;

    use crate::sys::mmap::{map, munmap, Backing};
    use crate::units::Bytes;

    #[test]
    fn a_touch_is_counted_and_no_touch_is_not() {
        // A fork of another test has this thread's stack copied at its next write.
        assert!((0..100).any(|_| of_thread().unwrap() == of_thread().unwrap()));
        let before = of_thread().unwrap();
        // What an allocator gives may be there already.
        let (fresh, len) = (map(Bytes::mib(4), Backing::Ordinary).unwrap(), Bytes::mib(4));
        // SAFETY: mapped just now, and nobody else's.
        unsafe {
            assert_eq!(ptr::with_exposed_provenance::<u8>(fresh).read_volatile(), 0);
            munmap(fresh, len).unwrap();
        }
        assert!(of_thread().unwrap() > before);
    }
}
