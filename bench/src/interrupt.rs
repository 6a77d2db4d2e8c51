//! Ends a run on a signal, after undoing its changes to the machine.
//!
//! SIGINT, SIGTERM and SIGHUP set [`CAME`], unless ignored. The run reads it often ([`check`]) and
//! unwinds to [`catch`]; the destructors undo the changes. Then the signal ends the process. A
//! second signal ends the process at once. Source: signal(7), proc_pid_status(5).

use std::io;
use std::panic::{self, AssertUnwindSafe};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, LazyLock};

use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use signal_hook::{flag, low_level};

/// The last signal, or 0.
static CAME: LazyLock<Arc<AtomicUsize>> = LazyLock::new(Arc::default);

struct Interrupted(i32);

/// Makes the first signal set [`CAME`] instead of ending the process.
pub(crate) fn install() -> io::Result<()> {
    let status = std::fs::read_to_string("/proc/self/status")?;
    let ignored = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    let ignored = ignored.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok()).unwrap_or(0);
    let noted = Arc::new(AtomicBool::new(false));
    for signal in [SIGINT, SIGTERM, SIGHUP] {
        if ignored >> (signal - 1) & 1 == 0 {
            flag::register_conditional_default(signal, Arc::clone(&noted))?;
            flag::register(signal, Arc::clone(&noted))?;
            flag::register_usize(signal, Arc::clone(&CAME), signal as usize)?;
        }
    }
    Ok(())
}

/// Unwinds to [`catch`] if a signal arrived. Call it often in long work.
pub(crate) fn check() {
    let signal = CAME.load(Ordering::Relaxed) as i32;
    if signal != 0 {
        panic::resume_unwind(Box::new(Interrupted(signal)));
    }
}

/// Runs `run`. If a signal made `run` unwind, ends the process.
pub(crate) fn catch<T>(run: impl FnOnce() -> T) -> T {
    // `AssertUnwindSafe` is right: nothing that `run` borrows is used after it unwound.
    panic::catch_unwind(AssertUnwindSafe(run)).unwrap_or_else(|payload| {
        match payload.downcast::<Interrupted>() {
            Ok(interrupted) => {
                let _ = low_level::emulate_default_handler(interrupted.0);
                std::process::exit(1)
            }
            Err(other) => panic::resume_unwind(other),
        }
    })
}

/// Sets the flag when dropped, so that other threads stop and an unwinding scope can end.
pub(crate) struct Stop<'a>(pub(crate) &'a AtomicBool);

impl Drop for Stop<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}
