//! What munmap(2) does, and mmap(2) with `MAP_FIXED` over pieces.
//!
//! # Safety
//! The program owns the ranges that it names.
#![allow(unsafe_code)]

use glebe_os::internal::sys::memory::direct::{self, Answer};

use crate::state::{locked, may_have};

/// Length that the kernel makes of another one.
const PAGE: usize = 4096;

/// # Safety
/// See munmap(2).
pub(crate) unsafe fn munmap(addr: usize, len: usize) -> Answer {
    // SAFETY: the caller keeps the contract.
    replacing(addr, len, || unsafe { direct::munmap(addr, len) })
}

/// Makes a call that ends what is mapped in the range, if it succeeds.
pub(crate) fn replacing(addr: usize, len: usize, call: impl FnOnce() -> Answer) -> Answer {
    if !may_have(addr, len) {
        return call();
    }
    let mut locked = locked();
    let done = call()?;
    let len = len.checked_next_multiple_of(PAGE).unwrap_or(len);
    locked.get().forget(addr..addr.saturating_add(len));
    Ok(done)
}
