//! [`hash`] hashes the call stack of a fault point.
//!
//! `hash` allocates nothing after `warm_up`, because signal handlers reach fault points. Source:
//! backtrace(3), only in glibc.
#![allow(unsafe_code)]

#[cfg(target_env = "gnu")]
const DEPTH: usize = 64;

pub(super) fn warm_up() {
    hash();
}

#[cfg(target_env = "gnu")]
pub(super) fn hash() -> u64 {
    let mut frames = [std::ptr::null_mut(); DEPTH];
    // SAFETY: the array has `DEPTH` entries.
    let len = unsafe { libc::backtrace(frames.as_mut_ptr(), DEPTH as libc::c_int) };
    let addresses = frames[..len as usize].iter().map(|frame| frame.addr() as u64);
    addresses.fold(0xcbf2_9ce4_8422_2325, |hash, addr| {
        (hash ^ addr).wrapping_mul(0x0100_0000_01b3).rotate_left(23)
    })
}

#[cfg(not(target_env = "gnu"))]
pub(super) fn hash() -> u64 {
    0
}
