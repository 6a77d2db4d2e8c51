//! [`Mapping::unreserved`] maps far more memory than is touched at once.

use super::{Mapping, Visibility};
use crate::error::OsError;
use crate::internal::sys::memory::commit;
use crate::internal::sys::page_size;
use crate::units::Bytes;

impl Mapping {
    /// Maps zeroed memory in small pages, which forked children and core dumps do not get, and
    /// which the kernel does not merge. If the process locks its memory, a page is locked at its
    /// first access.
    pub fn unreserved(len: Bytes) -> Result<Self, OsError> {
        let page = page_size();
        let len = len.pages_up(page).checked_bytes(page).unwrap_or(Bytes::new(u64::MAX));
        let mapping = Self::owned(commit::sparse(len)?, len, page, None).noted();
        // Kernels without huge pages, or without merging, refuse this advice.
        let _ = mapping.refuse_huge_pages();
        let _ = mapping.refuse_merging();
        mapping.shown(Visibility::PRIVATE)
    }
}
