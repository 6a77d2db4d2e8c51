//! [`micros`] reads a clock in microseconds that all processes of the machine share and that never
//! goes back. Its zero depends on the time namespace. Source: clock_gettime(2), CLOCK_MONOTONIC.
#![allow(unsafe_code)]

pub fn micros() -> u64 {
    let mut now = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: the call fills the local and cannot fail for this clock.
    unsafe { libc::clock_gettime(libc::CLOCK_MONOTONIC, &raw mut now) };
    now.tv_sec.unsigned_abs() * 1_000_000 + now.tv_nsec.unsigned_abs() / 1000
}
