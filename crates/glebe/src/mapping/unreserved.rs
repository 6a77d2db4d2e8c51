//! Memory of which far more is mapped than will ever be touched at once: see
//! [`Mapping::unreserved`].

use super::{Mapping, Visibility};
use crate::error::OsError;
use crate::sys::{commit, page_size};
use crate::units::Bytes;

impl Mapping {
    /// Zero-filled memory in small pages, rounded up to whole ones, that neither a forked child nor
    /// a core dump has. Where the kernel overcommits, what is not touched counts for nothing. In a
    /// process that locks its memory (mlockall(2)) each page is locked as it comes.
    ///
    /// # Errors
    /// What mmap(2) or mlock2(2) refuses: a length of zero, one beyond a limit.
    pub(crate) fn unreserved(len: Bytes) -> Result<Self, OsError> {
        let page = page_size();
        let len = len.pages_up(page).checked_bytes(page).unwrap_or(Bytes::new(u64::MAX));
        let mapping = Self::owned(commit::sparse(len)?, len, page, None).noted();
        // Refused by kernels that make no huge pages at all.
        let _ = mapping.refuse_huge_pages();
        mapping.shown(Visibility::PRIVATE)
    }
}
