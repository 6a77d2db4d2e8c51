//! Which calls led to a fault point: a hash of the return addresses on the stack.
//!
//! Only while a test notes points. It allocates nothing once [`warm_up`] has been called, so that
//! a signal's handler may pass a point too. Source: backtrace(3); only glibc has it.
//!
//! # Safety
//! The array has as many entries as the call is told.
#![allow(unsafe_code)]

/// Frames that count, from the innermost on.
#[cfg(target_env = "gnu")]
const DEPTH: usize = 64;

/// Has the C library load what it needs for [`hash`].
pub(super) fn warm_up() {
    hash();
}

/// Returns the hash (FNV-1a by words) of this thread's return addresses.
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
