//! membarrier(2): makes every running thread of the process restart its restartable sequence.
//!
//! Source: membarrier(2), `MEMBARRIER_CMD_PRIVATE_EXPEDITED_RSEQ` (Linux 5.10). Cost: one
//! interrupt to each processor that runs a thread of this process, none to the others.
//!
//! # Safety
//! Unsafe only as every system call is: none of these takes a pointer.
#![allow(unsafe_code)]

use std::io;

use crate::error::OsError;
use crate::sys::fault::point;

const REGISTER_PRIVATE_EXPEDITED_RSEQ: libc::c_int = 1 << 8;
const PRIVATE_EXPEDITED_RSEQ: libc::c_int = 1 << 7;

fn membarrier(command: libc::c_int, name: &'static str) -> Result<(), OsError> {
    // SAFETY: takes three integers; changes only the process's barrier registration.
    let call = || match unsafe { libc::syscall(libc::SYS_membarrier, command, 0, 0) } {
        0.. => Ok(()),
        _ => Err(io::Error::last_os_error()),
    };
    point("membarrier").and_then(|()| call()).map_err(|e| OsError::new("membarrier", name, e))
}

/// Announces that this process will call [`rseq_barrier`]; any number of times, kept over fork.
///
/// # Errors
/// The kernel lacks the command (before 5.10) or a filter denies the call.
pub fn register_rseq() -> Result<(), OsError> {
    membarrier(REGISTER_PRIVATE_EXPEDITED_RSEQ, "REGISTER_PRIVATE_EXPEDITED_RSEQ")
}

/// When this returns, no thread of the process is inside a restartable sequence that it entered
/// before the call.
///
/// # Errors
/// The process is not registered.
pub fn rseq_barrier() -> Result<(), OsError> {
    membarrier(PRIVATE_EXPEDITED_RSEQ, "PRIVATE_EXPEDITED_RSEQ")
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
