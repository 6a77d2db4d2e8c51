//! What munmap(2) does, and mmap(2) with `MAP_FIXED` over pieces.
//!
//! # Safety
//! The program owns the ranges that it names.
#![allow(unsafe_code)]

use glebe_os::internal::sys::memory::direct::{self, Answer};
use glebe_os::internal::sys::page_size;

use crate::state::{locked, may_have};

/// # Safety
/// See munmap(2).
pub(crate) unsafe fn munmap(addr: usize, len: usize) -> Answer {
    // SAFETY: the caller keeps the contract.
    replacing(addr, len, || unsafe { direct::munmap(addr, len) })
}

/// The kernel rounds lengths up to this.
pub(crate) fn rounded(len: usize) -> usize {
    len.checked_next_multiple_of(page_size().bytes().as_usize()).unwrap_or(len)
}

/// Makes a call that ends what is mapped in the range, if it succeeds.
pub(crate) fn replacing(addr: usize, len: usize, call: impl FnOnce() -> Answer) -> Answer {
    if !may_have(addr, len) {
        return call();
    }
    let mut locked = locked();
    let done = call()?;
    locked.get().forget(addr..addr.saturating_add(rounded(len)));
    Ok(done)
}
