//! The base page size, read once.
#![allow(unsafe_code)]

use std::sync::OnceLock;

use crate::units::PageSize;

/// The size of a base page on this machine.
///
/// # Panics
/// If the kernel reports none, which Linux never does.
#[must_use]
pub fn page_size() -> PageSize {
    static SIZE: OnceLock<PageSize> = OnceLock::new();
    *SIZE.get_or_init(|| {
        // SAFETY: sysconf reads a constant of the running kernel and takes no pointer.
        let bytes = unsafe { libc::sysconf(libc::_SC_PAGESIZE) };
        u64::try_from(bytes).ok().and_then(PageSize::new).expect("page size is a power of two")
    })
}
