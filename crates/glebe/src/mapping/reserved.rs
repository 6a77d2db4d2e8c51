//! [`Reserved`]: address space whose pages come when they are populated, and go one by one.
//!
//! The front part is committed, from the first page to the highest that was ever populated and a
//! little more; the rest is addresses. So what is reserved may be far more than the machine has,
//! and what counts as memory of the process follows what was used. Unit: bytes, whole base pages.
//! A lock, for a call or two, where a part is committed; populating has none.
//!
//! # Safety
//! The mapping is this value's own. Parts of it are committed, never the reverse, and each once:
//! what is about to be committed holds nothing.
#![allow(unsafe_code)]

use super::{Mapping, Visibility};
use crate::error::OsError;
use crate::sync::{lock, MappedWord, Mutex, Ordering};
use crate::sys::commit;
use crate::sys::page_size;
use crate::units::Bytes;

/// For so many bytes that are committed one more is committed ahead.
const AHEAD_SHARE: u64 = 8;
/// The least that is committed at once: a call for each page would be slow.
const STEP_MIN: Bytes = Bytes::new(256 << 10);

/// See the module.
#[derive(Debug)]
pub(crate) struct Reserved {
    mapping: Mapping,
    /// Whether what is committed is locked.
    locks: bool,
    /// Bytes from the start that may be touched.
    committed: MappedWord,
    /// Of whoever commits.
    commits: Mutex<()>,
}

impl Reserved {
    /// Reserves `len`, rounded up to whole pages. A forked child has copies, a core dump nothing.
    /// Where `readable`, what was never populated reads as zero; else a touch of it is SIGSEGV.
    ///
    /// # Errors
    /// What mmap(2) refuses: a limit on addresses.
    pub(crate) fn new(len: Bytes, readable: bool) -> Result<Self, OsError> {
        let page = page_size();
        let len = len.pages_up(page).checked_bytes(page).unwrap_or(len);
        let commit::Addresses { addr, locks } = commit::reserve(len, readable)?;
        let mapping = Mapping::owned(addr, len, page, None).noted();
        // Refused by kernels that make no huge pages at all.
        let _ = mapping.refuse_huge_pages();
        let mapping = mapping.shown(Visibility { in_child: true, in_core_dump: false })?;
        Ok(Self { mapping, locks, committed: MappedWord::new(0), commits: Mutex::new(()) })
    }

    /// Bytes reserved.
    #[inline]
    pub(crate) fn len(&self) -> Bytes {
        self.mapping.len()
    }

    /// The first byte.
    #[inline]
    pub(crate) fn as_ptr(&self) -> *mut u8 {
        self.mapping.as_ptr()
    }

    /// Makes pages present and writable.
    ///
    /// # Errors
    /// What the kernel refuses: a limit on memory.
    pub(crate) fn populate(&self, offset: Bytes, len: Bytes) -> Result<(), OsError> {
        let end = offset + len;
        if end.get() > self.committed.load(Ordering::Relaxed) {
            self.commit(end)?;
        }
        self.mapping.populate(offset, len)
    }

    /// Makes all of it writable: from then on pages come as they are written.
    ///
    /// # Errors
    /// What the kernel refuses: a limit on memory.
    pub(crate) fn commit_all(&self) -> Result<(), OsError> {
        self.commit(self.len())
    }

    /// Commits all up to `end`, and more where that can be had.
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
            // SAFETY: within the mapping, as checked; not committed, and not by others meanwhile.
            unsafe { commit::commit(self.mapping.addr() + done.as_usize(), to - done, self.locks) }
                .map(|()| to)
        };
        let to = commit(most).or_else(|error| if most > end { commit(end) } else { Err(error) })?;
        self.committed.store(to.get(), Ordering::Relaxed);
        Ok(())
    }

    /// Lets a forked child find zeros here instead of a copy.
    ///
    /// # Errors
    /// What madvise(2) refuses, as before Linux 4.14.
    #[cfg(feature = "encrypt")]
    pub(crate) fn wipe_on_fork(&self) -> Result<(), OsError> {
        self.mapping.wipe_on_fork()
    }

    /// Keeps what was committed from swap.
    ///
    /// # Errors
    /// What mlock(2) refuses: a limit on locked memory.
    #[cfg(feature = "encrypt")]
    pub(crate) fn lock_in_memory(&self) -> Result<(), OsError> {
        let len = Bytes::new(self.committed.load(Ordering::Relaxed));
        // SAFETY: the mapping's own.
        unsafe { commit::lock(self.mapping.addr(), len) }
    }

    /// Gives whole pages back to the kernel. Their bytes are zero from now on.
    ///
    /// # Safety
    /// As [`Mapping::give_back`].
    pub(crate) unsafe fn give_back(&self, offset: Bytes, len: Bytes) -> Result<(), OsError> {
        // SAFETY: passed on to the caller.
        unsafe { self.mapping.give_back(offset, len) }
    }

    /// As [`Mapping::give_back_all`].
    ///
    /// # Safety
    /// As [`Mapping::give_back`].
    pub(crate) unsafe fn give_back_all(&self, ranges: &mut [(usize, Bytes)]) -> usize {
        // SAFETY: passed on to the caller.
        unsafe { self.mapping.give_back_all(ranges) }
    }

    /// Copies bytes out, and in, for tests.
    #[cfg(test)]
    pub(crate) fn mapping(&self) -> &Mapping {
        &self.mapping
    }
}
