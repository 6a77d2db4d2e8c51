//! A run that is told to end: it ends soon, and puts back what it changed on the machine first.
//!
//! SIGINT, SIGTERM and SIGHUP only set a word, unless they are ignored. The run looks at it where
//! it counts its progress ([`check`]), and unwinds from there: what every part undoes when it is
//! dropped is undone. [`catch`] is where that ends; [`end_by`] then ends the process as the signal
//! would have. The second signal of a kind is not caught. Source: sigaction(2), signal-safety(7).
//!
//! # Safety
//! The handler stores one atomic word; the calls take locals of this file.
#![allow(unsafe_code)]

use std::io;
use std::mem;
use std::panic::{self, AssertUnwindSafe};
use std::ptr;
use std::sync::atomic::{AtomicBool, AtomicI32, Ordering};

use glebe::error::OsError;

const CAUGHT: [libc::c_int; 3] = [libc::SIGINT, libc::SIGTERM, libc::SIGHUP];

/// The last signal that came, or 0.
static CAME: AtomicI32 = AtomicI32::new(0);

/// A run was ended by this signal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Interrupted {
    /// Its number.
    pub signal: i32,
}

extern "C" fn note(signal: libc::c_int) {
    CAME.store(signal, Ordering::Relaxed);
}

/// Has signals that end the process noted instead, each once.
///
/// # Errors
/// If the kernel refuses a handler.
pub fn install() -> Result<(), OsError> {
    for signal in CAUGHT {
        // SAFETY: an all-zero `sigaction` is a valid one, both structures are locals, and `note`
        // has the signature of a handler and makes no call.
        let rc = unsafe {
            let mut action: libc::sigaction = mem::zeroed();
            let rc = libc::sigaction(signal, ptr::null(), &raw mut action);
            if rc != 0 || action.sa_sigaction == libc::SIG_IGN {
                rc
            } else {
                action.sa_sigaction = note as *const () as usize;
                action.sa_flags = libc::SA_RESTART | libc::SA_RESETHAND;
                libc::sigaction(signal, &raw const action, ptr::null_mut())
            }
        };
        if rc != 0 {
            let error = io::Error::last_os_error();
            return Err(OsError::new("sigaction", signal.to_string(), error));
        }
    }
    Ok(())
}

/// Unwinds to [`catch`] if a signal came; to be called often by whoever runs for long.
#[inline]
pub fn check() {
    let signal = CAME.load(Ordering::Relaxed);
    if signal != 0 {
        panic::resume_unwind(Box::new(Interrupted { signal }));
    }
}

/// What `run` returns.
///
/// # Errors
/// That it was interrupted; all that it had is dropped.
pub fn catch<T>(run: impl FnOnce() -> T) -> Result<T, Interrupted> {
    // Nothing that `run` borrows is looked at again but by the caller, who is told.
    panic::catch_unwind(AssertUnwindSafe(run)).map_err(|payload| {
        match payload.downcast::<Interrupted>() {
            Ok(interrupted) => *interrupted,
            Err(other) => panic::resume_unwind(other),
        }
    })
}

/// Ends the process by the signal, so that its parent sees how it ended.
pub fn end_by(Interrupted { signal }: Interrupted) {
    // SAFETY: takes no pointer; the handler was for one signal only, so the default is back.
    unsafe { libc::raise(signal) };
}

/// Tells other threads to stop when it is dropped, so that a scope that unwinds can end.
#[derive(Debug)]
pub(crate) struct Stop<'a>(pub(crate) &'a AtomicBool);

impl Drop for Stop<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_begun_is_undone_and_other_panics_go_on() {
        let stopped = AtomicBool::new(false);
        assert_eq!(catch(|| 7), Ok(7));
        let interrupted = Interrupted { signal: 15 };
        let end = catch(|| {
            let _stop = Stop(&stopped);
            panic::resume_unwind(Box::new(interrupted))
        });
        assert_eq!(end, Err::<(), _>(interrupted));
        assert!(stopped.load(Ordering::Relaxed));
        let other = panic::catch_unwind(|| catch(|| panic::resume_unwind(Box::new(3))));
        assert_eq!(other.unwrap_err().downcast_ref(), Some(&3));
    }
}
