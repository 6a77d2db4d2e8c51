//! Surplus pages of the hugetlb pool: its limit on them is raised while a block is asked for.
//!
//! Unit: hugepages. Lock: [`PoolLock`], held meanwhile. Source:
//! Documentation/admin-guide/mm/hugetlbpage.rst.

use std::fs;
use std::path::Path;

use glebe::contig::PoolLock;
use glebe::error::OsError;
use glebe::sys::hugetlb::Pool;
use glebe::units::{Bytes, PageSize};

use super::PeerError;

/// The size of hugepage that one page-table leaf maps, as far as the machine has a pool of it.
pub(super) fn hugepage_bytes() -> Result<Bytes, PeerError> {
    let path = Path::new("/sys/kernel/mm/transparent_hugepage/hpage_pmd_size");
    let none = |why: String| PeerError::NoHugepages(format!("{}: {why}", path.display()));
    let text = fs::read_to_string(path).map_err(|e| none(e.to_string()))?;
    match text.trim().parse().ok().and_then(PageSize::new) {
        Some(size) => Ok(size.bytes()),
        None => Err(none(text)),
    }
}

/// Hugepages of `len` that lie idle in the pool of `huge`-byte pages.
pub(super) fn idle(huge: Bytes, len: Bytes) -> Result<u64, PeerError> {
    Ok(pool(huge)?.counts()?.available().min(count(huge, len)))
}

/// Runs `ask` while surplus pages for `len` may be had of the pool of `huge`-byte pages.
pub(super) fn with_surplus<T>(
    huge: Bytes,
    len: Bytes,
    ask: impl FnOnce() -> T,
) -> Result<T, PeerError> {
    let size = pool(huge)?.size();
    let lock = PoolLock::acquire()?;
    Ok(lock.with_surplus(size, count(huge, len), || Ok::<_, OsError>(ask()))?)
}

fn count(huge: Bytes, len: Bytes) -> u64 {
    len.get().div_ceil(huge.get())
}

fn pool(huge: Bytes) -> Result<Pool, PeerError> {
    let none = || PeerError::NoHugepages(format!("no pool of {huge} pages"));
    PageSize::new(huge.get()).and_then(Pool::of).ok_or_else(none)
}
