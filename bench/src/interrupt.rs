//! A run that is told to end: it ends soon, and puts back what it changed on the machine first.
//!
//! SIGINT, SIGTERM and SIGHUP only set a word, unless they are ignored. The run looks at it where
//! it counts its progress ([`check`]), and unwinds from there: what every part undoes when it is
//! dropped is undone. [`catch`] is where that ends; [`end_by`] then ends the process as the signal
//! would have. A second signal ends it at once. Source: signal(7), proc_pid_status(5).

use std::io;
use std::panic::{self, AssertUnwindSafe};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};

use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use signal_hook::{flag, low_level};

/// The last signal that came, or 0.
static CAME: OnceLock<Arc<AtomicUsize>> = OnceLock::new();

/// A run was ended by this signal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Interrupted {
    /// Its number.
    pub signal: i32,
}

/// Has signals that end the process noted instead, each once.
///
/// # Errors
/// If the kernel refuses a handler.
pub fn install() -> io::Result<()> {
    let came = CAME.get_or_init(Arc::default);
    let status = std::fs::read_to_string("/proc/self/status")?;
    let ignored = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    let ignored = ignored.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok()).unwrap_or(0);
    let noted = Arc::new(AtomicBool::new(false));
    for signal in [SIGINT, SIGTERM, SIGHUP] {
        if ignored >> (signal - 1) & 1 == 0 {
            flag::register_conditional_default(signal, Arc::clone(&noted))?;
            flag::register(signal, Arc::clone(&noted))?;
            flag::register_usize(signal, Arc::clone(came), signal as usize)?;
        }
    }
    Ok(())
}

/// Unwinds to [`catch`] if a signal came; to be called often by whoever runs for long.
#[inline]
pub fn check() {
    let signal = CAME.get().map_or(0, |came| came.load(Ordering::Relaxed)) as i32;
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
    let _ = low_level::emulate_default_handler(signal);
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
