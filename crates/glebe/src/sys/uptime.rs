//! The clock that all processes of the machine share, which never goes back: to order what several
//! of them do. Its zero is about the start of the machine, or as a time namespace shifts it.
//!
//! Source: clock_gettime(2), CLOCK_MONOTONIC.
//!
//! # Safety
//! The call fills a local.
#![allow(unsafe_code)]

/// Microseconds since then.
pub(crate) fn micros() -> u64 {
    let mut now = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: fills the local. It does not fail for this clock.
    unsafe { libc::clock_gettime(libc::CLOCK_MONOTONIC, &raw mut now) };
    now.tv_sec.unsigned_abs() * 1_000_000 + now.tv_nsec.unsigned_abs() / 1000
}
