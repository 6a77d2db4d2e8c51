//! [`rseq_barrier`] makes every running thread of the process abort its restartable sequence.
//!
//! Cost: one interrupt to the processor of each running thread. Source: membarrier(2),
//! `MEMBARRIER_CMD_PRIVATE_EXPEDITED_RSEQ` (Linux 5.10).
#![allow(unsafe_code)]

use std::io::ErrorKind;

use crate::error::OsError;
use crate::internal::sys::call::answer;

const REGISTER_PRIVATE_EXPEDITED_RSEQ: libc::c_int = 1 << 8;
const PRIVATE_EXPEDITED_RSEQ: libc::c_int = 1 << 7;

const QUERY: libc::c_int = 0;

fn membarrier(command: libc::c_int, name: &'static str) -> Result<libc::c_long, OsError> {
    // SAFETY: the call takes integers only.
    let made =
        answer("membarrier", || unsafe { libc::syscall(libc::SYS_membarrier, command, 0, 0) });
    made.map_err(|source| OsError::new("membarrier", name, source))
}

/// Checks that the kernel has both commands, without registering.
pub fn is_known() -> Result<(), OsError> {
    let wanted = libc::c_long::from(REGISTER_PRIVATE_EXPEDITED_RSEQ | PRIVATE_EXPEDITED_RSEQ);
    match membarrier(QUERY, "QUERY")? & wanted {
        known if known == wanted => Ok(()),
        _ => Err(OsError::new("membarrier", "QUERY", ErrorKind::Unsupported.into())),
    }
}

/// Registers this process; may be repeated. fork keeps the registration.
pub fn register_rseq() -> Result<(), OsError> {
    membarrier(REGISTER_PRIVATE_EXPEDITED_RSEQ, "REGISTER_PRIVATE_EXPEDITED_RSEQ").map(drop)
}

/// Needs [`register_rseq`].
pub fn rseq_barrier() -> Result<(), OsError> {
    membarrier(PRIVATE_EXPEDITED_RSEQ, "PRIVATE_EXPEDITED_RSEQ").map(drop)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn barrier_needs_and_gets_registration() {
        if let Err(why) = register_rseq() {
            println!("skipped: {why}");
            return;
        }
        rseq_barrier().unwrap();
    }
}
