//! The base page size, read once.
#![allow(unsafe_code)]

use crate::sync::{MappedWord, Ordering};
use crate::units::PageSize;

/// The size of a base page on this machine.
///
/// # Panics
/// If the kernel reports none, which Linux never does.
#[must_use]
pub fn page_size() -> PageSize {
    // No lock: a child of a fork meanwhile would wait for its holder for ever.
    static SIZE: MappedWord = MappedWord::new(0);
    let mut bytes = SIZE.load(Ordering::Relaxed);
    if bytes == 0 {
        // SAFETY: sysconf reads a constant of the running kernel and takes no pointer.
        bytes = unsafe { libc::sysconf(libc::_SC_PAGESIZE) }.try_into().unwrap_or(0);
        SIZE.store(bytes, Ordering::Relaxed);
    }
    PageSize::new(bytes).expect("page size is a power of two")
}
