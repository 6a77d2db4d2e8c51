//! [`Reserved`] is address space whose pages are populated on demand.
//!
//! The committed part reaches from the first page to a little beyond the highest page ever
//! populated. Only this part counts as memory of the process. Unit: bytes, whole base pages. Only
//! committing takes the lock.
//!
//! # Safety
//! `Reserved` owns the mapping. Each part is committed once and held nothing before.
#![allow(unsafe_code)]

use super::{Mapping, Visibility};
use crate::error::OsError;
use crate::internal::sync::{lock, MappedWord, Mutex, Ordering};
use crate::internal::sys::memory::commit;
use crate::internal::sys::page_size;
use crate::units::Bytes;

/// Committed bytes per byte committed ahead.
const AHEAD_SHARE: u64 = 8;
/// Fewest bytes per commit: a call per page would be slow.
const STEP_MIN: Bytes = Bytes::new(256 << 10);

#[derive(Debug)]
pub struct Reserved {
    mapping: Mapping,
    locks: bool,
    /// Committed bytes, from the start.
    committed: MappedWord,
    commits: Mutex<()>,
}

impl Reserved {
    /// Reserves `len`, rounded up to whole pages, not for core dumps. Uncommitted bytes read as
    /// zero if `readable`, else a touch raises SIGSEGV.
    pub fn new(len: Bytes, readable: bool) -> Result<Self, OsError> {
        let page = page_size();
        let len = len.pages_up(page).checked_bytes(page).unwrap_or(len);
        let commit::ReservedRange { addr, locks } = commit::reserve(len, readable)?;
        let mapping = Mapping::owned(addr, len, page, None).noted();
        // Kernels without huge pages refuse this.
        let _ = mapping.refuse_huge_pages();
        let mapping = mapping.shown(Visibility { in_child: true, in_core_dump: false })?;
        Ok(Self { mapping, locks, committed: MappedWord::new(0), commits: Mutex::new(()) })
    }

    #[inline]
    pub fn len(&self) -> Bytes {
        self.mapping.len()
    }

    #[inline]
    pub fn as_ptr(&self) -> *mut u8 {
        self.mapping.as_ptr()
    }

    pub fn populate(&self, offset: Bytes, len: Bytes) -> Result<(), OsError> {
        let end = offset + len;
        if end.get() > self.committed.load(Ordering::Relaxed) {
            self.commit(end)?;
        }
        self.mapping.populate(offset, len)
    }

    /// Commits everything, so that the kernel allocates pages on writes.
    pub fn commit_all(&self) -> Result<(), OsError> {
        self.commit(self.len())
    }

    /// Commits up to `end`, and ahead unless the kernel refuses.
    #[cold]
    fn commit(&self, end: Bytes) -> Result<(), OsError> {
        let _commits = lock(&self.commits);
        let done = Bytes::new(self.committed.load(Ordering::Relaxed));
        if end <= done {
            return Ok(());
        }
        let ahead = Bytes::new(done.get() / AHEAD_SHARE).max(STEP_MIN);
        let page = page_size();
        let most = (done + ahead).pages_up(page).bytes(page).min(self.len()).max(end);
        let commit = |to: Bytes| {
            self.mapping.checked(done, (to - done).as_usize());
            // SAFETY: in the mapping, as checked; uncommitted, and the lock keeps others out.
            unsafe { commit::commit(self.mapping.addr() + done.as_usize(), to - done, self.locks) }
                .map(|()| to)
        };
        let to = commit(most).or_else(|error| if most > end { commit(end) } else { Err(error) })?;
        self.committed.store(to.get(), Ordering::Relaxed);
        Ok(())
    }

    pub fn wipe_on_fork(&self) -> Result<(), OsError> {
        self.mapping.wipe_on_fork()
    }

    pub fn lock_in_memory(&self) -> Result<(), OsError> {
        let len = Bytes::new(self.committed.load(Ordering::Relaxed));
        // SAFETY: the mapping owns the range.
        unsafe { commit::lock(self.mapping.addr(), len) }
    }

    /// # Safety
    /// See [`Mapping::give_back`].
    pub unsafe fn give_back(&self, offset: Bytes, len: Bytes) -> Result<(), OsError> {
        // SAFETY: the caller guarantees it.
        unsafe { self.mapping.give_back(offset, len) }
    }

    /// # Safety
    /// See [`Mapping::give_back`].
    pub unsafe fn give_back_all(&self, ranges: &mut [(usize, Bytes)]) -> usize {
        // SAFETY: the caller guarantees it.
        unsafe { self.mapping.give_back_all(ranges) }
    }

    #[cfg(test)]
    pub fn mapping(&self) -> &Mapping {
        &self.mapping
    }
}
