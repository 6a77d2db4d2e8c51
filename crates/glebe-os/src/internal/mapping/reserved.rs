//! [`Reserved`]: address space whose pages are populated on demand and given back one by one.
//!
//! The committed part reaches from the first page to a little beyond the highest ever populated.
//! Only this part counts as memory of the process, so far more may be reserved than the machine
//! has. Unit: bytes, whole base pages. Committing takes a lock for a system call or two; populating
//! takes none.
//!
//! # Safety
//! This value owns the mapping. Each part is committed once, stays so, and held nothing before.
#![allow(unsafe_code)]

use super::{Mapping, Visibility};
use crate::error::OsError;
use crate::internal::sync::{lock, MappedWord, Mutex, Ordering};
use crate::internal::sys::memory::commit;
use crate::internal::sys::page_size;
use crate::units::Bytes;

/// Commits one byte ahead per this many committed bytes.
const AHEAD_SHARE: u64 = 8;
/// Fewest bytes to commit: a call per page would be slow.
const STEP_MIN: Bytes = Bytes::new(256 << 10);

#[derive(Debug)]
pub struct Reserved {
    mapping: Mapping,
    /// True if committed pages are locked.
    locks: bool,
    /// Committed bytes, from the start.
    committed: MappedWord,
    commits: Mutex<()>,
}

impl Reserved {
    /// Reserves `len`, rounded up to whole pages. A child gets copies, a core dump nothing. If
    /// `readable`, uncommitted bytes read as zero; otherwise a touch is SIGSEGV.
    ///
    /// # Errors
    /// If mmap(2) fails, for example at a limit on addresses.
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

    /// Makes pages present and writable.
    ///
    /// # Errors
    /// If the kernel refuses, for example at a memory limit.
    pub fn populate(&self, offset: Bytes, len: Bytes) -> Result<(), OsError> {
        let end = offset + len;
        if end.get() > self.committed.load(Ordering::Relaxed) {
            self.commit(end)?;
        }
        self.mapping.populate(offset, len)
    }

    /// Commits everything: the kernel allocates pages as they are written.
    ///
    /// # Errors
    /// If the kernel refuses, for example at a memory limit.
    pub fn commit_all(&self) -> Result<(), OsError> {
        self.commit(self.len())
    }

    /// Commits up to `end`, and beyond unless the kernel refuses.
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

    /// Makes a forked child find zeros here, not a copy.
    ///
    /// # Errors
    /// If madvise(2) fails, for example before Linux 4.14.
    pub fn wipe_on_fork(&self) -> Result<(), OsError> {
        self.mapping.wipe_on_fork()
    }

    /// Keeps the committed part out of swap.
    ///
    /// # Errors
    /// If mlock2(2) fails, for example at the limit on locked memory.
    pub fn lock_in_memory(&self) -> Result<(), OsError> {
        let len = Bytes::new(self.committed.load(Ordering::Relaxed));
        // SAFETY: the mapping owns the range.
        unsafe { commit::lock(self.mapping.addr(), len) }
    }

    /// Gives whole pages back to the kernel. They read as zero afterwards.
    ///
    /// # Safety
    /// See [`Mapping::give_back`].
    pub unsafe fn give_back(&self, offset: Bytes, len: Bytes) -> Result<(), OsError> {
        // SAFETY: the caller guarantees it.
        unsafe { self.mapping.give_back(offset, len) }
    }

    /// Gives several ranges back: see [`Mapping::give_back_all`].
    ///
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
