//! The time for which the calling thread had a processor: it stands still while others run.
//!
//! Source: clock_gettime(2), CLOCK_THREAD_CPUTIME_ID. Cost: a system call.
//!
//! # Safety
//! The call fills a local.
#![allow(unsafe_code)]

use std::time::Duration;

/// Returns that time since the thread began.
pub(crate) fn of_thread() -> Duration {
    let mut now = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: fills the local. It does not fail for this clock.
    unsafe { libc::clock_gettime(libc::CLOCK_THREAD_CPUTIME_ID, &raw mut now) };
    Duration::new(now.tv_sec.unsigned_abs(), now.tv_nsec.unsigned_abs() as u32)
}
