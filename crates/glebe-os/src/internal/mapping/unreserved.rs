//! [`Mapping::unreserved`]: memory of which far more is mapped than touched at once.

use super::{Mapping, Visibility};
use crate::error::OsError;
use crate::internal::sys::memory::commit;
use crate::internal::sys::page_size;
use crate::units::Bytes;

impl Mapping {
    /// Maps zero-filled memory in small pages, rounded up to whole pages. Forked children and core
    /// dumps do not get it. Where the kernel overcommits, untouched pages count for nothing. If the
    /// process locks its memory (mlockall(2)), the kernel locks pages as it allocates them.
    ///
    /// # Errors
    /// If mmap(2) or mlock2(2) fails, for example at a limit, or `len` is zero.
    pub fn unreserved(len: Bytes) -> Result<Self, OsError> {
        let page = page_size();
        let len = len.pages_up(page).checked_bytes(page).unwrap_or(Bytes::new(u64::MAX));
        let mapping = Self::owned(commit::sparse(len)?, len, page, None).noted();
        // Kernels without huge pages refuse this.
        let _ = mapping.refuse_huge_pages();
        mapping.shown(Visibility::PRIVATE)
    }
}
