//! [`Reserved`] is address space whose pages are populated on demand.
//!
//! The committed part reaches from the first page to at least the highest page ever populated. Only
//! this part counts as memory of the process. Lengths are bytes, in whole base pages. Only
//! committing takes the lock.
#![allow(unsafe_code)]

use super::{Mapping, Visibility};
use crate::error::OsError;
use crate::internal::sync::{lock, MappedWord, Mutex, Ordering};
use crate::internal::sys::memory::commit;
use crate::internal::sys::page_size;
use crate::units::Bytes;

/// `commit` commits ahead one byte per this many committed bytes.
const AHEAD_SHARE: u64 = 8;
/// Usual minimum of bytes per commit, because a system call per page would be slow.
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
    /// Reserves `len` bytes, rounded up to whole pages, which core dumps leave out. Uncommitted
    /// bytes read as zero if `readable`, else a read raises SIGSEGV.
    pub fn new(len: Bytes, readable: bool) -> Result<Self, OsError> {
        let page = page_size();
        let len = len.pages_up(page).checked_bytes(page).unwrap_or(len);
        let commit::ReservedRange { addr, locks } = commit::reserve(len, readable)?;
        let mapping = Mapping::owned(addr, len, page, None).noted();
        // Kernels without huge pages refuse this advice.
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

    /// Commits the whole range.
    pub fn commit_all(&self) -> Result<(), OsError> {
        self.commit(self.len())
    }

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
            // SAFETY: `checked` found the part in the mapping, and no other thread can commit it
            // now.
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
        // SAFETY: the caller keeps the contract.
        unsafe { self.mapping.give_back(offset, len) }
    }

    /// # Safety
    /// See [`Mapping::give_back`].
    pub unsafe fn give_back_all(&self, ranges: &mut [(usize, Bytes)]) -> usize {
        // SAFETY: the caller keeps the contract.
        unsafe { self.mapping.give_back_all(ranges) }
    }

    #[cfg(test)]
    pub fn mapping(&self) -> &Mapping {
        &self.mapping
    }
}
