//! [`page_size`] reads the base page size once.
#![allow(unsafe_code)]

use crate::internal::sync::{MappedWord, Ordering};
use crate::units::PageSize;

/// Returns the size of a base page.
///
/// # Panics
/// If the kernel reports none, which Linux never does.
#[must_use]
pub fn page_size() -> PageSize {
    // `SIZE` uses no lock, because a forked child could hang on a missing thread's lock.
    static SIZE: MappedWord = MappedWord::new(0);
    let mut bytes = SIZE.load(Ordering::Relaxed);
    if bytes == 0 {
        // SAFETY: sysconf returns a constant and takes no pointer.
        bytes = unsafe { libc::sysconf(libc::_SC_PAGESIZE) }.try_into().unwrap_or(0);
        SIZE.store(bytes, Ordering::Relaxed);
    }
    PageSize::new(bytes).expect("page size is a power of two")
}
