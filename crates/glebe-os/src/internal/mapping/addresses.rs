//! [`Addresses`] reserves a range over which pieces of files are mapped.
//!
//! Offsets and lengths are bytes, in whole pages of the files. An access outside all pieces raises
//! SIGSEGV. Concurrent callers must use different parts.
//!
//! Clearing maps over a part, which fails at the limit of mappings. So a *spare* page behind the
//! range is a mapping of its own. After a failure, `clear` merges the spare page with its two
//! neighbours, which frees two mappings.
//!
//! # Safety
//! Nothing else is mapped in the range from `mmap` to the drop. A child lacks the pieces and may
//! have other memory there, so placing and clearing panic, and the drop unmaps nothing.
#![allow(unsafe_code)]

use std::io::ErrorKind;

use crate::error::OsError;
use crate::internal::sync::{MappedByte, Ordering};
use crate::internal::sys::memory::commit;
use crate::internal::sys::memory::madvise::{advise, Advice};
use crate::internal::sys::memory::memfd::MemFile;
use crate::internal::sys::memory::mmap::{clear, make_readable, unmap};
use crate::internal::sys::page_size;
use crate::internal::sys::processes::fork::ForkGuard;
use crate::units::{Bytes, PageSize, Pages};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Piece {
    pub offset: Bytes,
    pub len: Bytes,
}

/// The spare page, and a page on either side.
const SPARE_PAGES: u64 = 3;

#[derive(Debug)]
pub struct Addresses {
    /// First address that is a multiple of the page size.
    addr: usize,
    len: Bytes,
    whole: (usize, Bytes),
    has_spare: MappedByte,
    locks: bool,
    guard: ForkGuard,
}

const _: () = {
    const fn shareable<T: Send + Sync>() {}
    shareable::<Addresses>();
};

impl Addresses {
    pub fn reserve(len: Bytes, page: PageSize) -> Result<Self, OsError> {
        let behind = page.bytes() + Pages::new(SPARE_PAGES).bytes(page_size());
        let room = len.checked_add(behind).unwrap_or(len);
        let commit::ReservedRange { addr: at, locks } = commit::reserve(room, false)?;
        let addr = at.next_multiple_of(page.bytes().as_usize());
        let (whole, has_spare) = ((at, room), MappedByte::new(0));
        let guard = ForkGuard::new();
        let addresses = Self { addr, len, whole, has_spare, locks, guard };
        addresses.keep_spare(true);
        Ok(addresses)
    }

    pub fn len(&self) -> Bytes {
        self.len
    }

    #[inline]
    pub fn at(&self, offset: Bytes) -> usize {
        self.addr.wrapping_add(offset.as_usize())
    }

    #[inline]
    pub fn is_lost_by_fork(&self) -> bool {
        self.guard.is_child()
    }

    /// Maps pieces of `file` side by side from `offset` on. Forked children do not get them. After
    /// an error, [`Addresses::clear`] removes the pieces already mapped.
    pub fn place(&self, offset: Bytes, file: &MemFile, pieces: &[Piece]) -> Result<(), OsError> {
        let len = pieces.iter().fold(Bytes::ZERO, |sum, piece| sum + piece.len);
        let start = self.checked(offset, len);
        let mut at = start;
        for piece in pieces {
            // SAFETY: `checked` found the pieces in the range; the caller alone uses this part.
            unsafe { file.map_over(at, piece.offset, piece.len)? };
            at += piece.len.as_usize();
        }
        // SAFETY: `checked` found the pieces; the advice changes no bytes.
        unsafe { advise(start, len, Advice::DontFork) }
    }

    /// Unmaps the pieces in a range. After an error, pieces may remain.
    pub fn clear(&self, offset: Bytes, len: Bytes) -> Result<(), OsError> {
        let at = self.checked(offset, len);
        // SAFETY: `checked` found the part in the range; nobody uses the part.
        let clear = || unsafe { clear(at, len, false) };
        let mut cleared = clear();
        if cleared.as_ref().is_err_and(|why| why.kind() == ErrorKind::OutOfMemory)
            && self.has_spare.load(Ordering::Relaxed) != 0
        {
            self.keep_spare(false);
            cleared = clear();
        }
        if self.locks && cleared.is_ok() {
            // SAFETY: `checked` found the part in the range.
            let _ = unsafe { commit::unlock(at, len) };
        }
        if cleared.is_ok() && self.has_spare.load(Ordering::Relaxed) == 0 {
            self.keep_spare(true);
        }
        cleared
    }

    /// Makes the spare page a mapping of its own (`keep`), or merges it with its neighbours.
    fn keep_spare(&self, keep: bool) {
        let page = page_size().bytes();
        let (at, len) = self.whole;
        let spare = at + len.as_usize() - 2 * page.as_usize();
        // SAFETY: nobody uses the spare page.
        let made = unsafe { make_readable(spare, page, keep) };
        self.has_spare.store(u8::from(keep && made.is_ok()), Ordering::Relaxed);
    }

    #[inline]
    fn checked(&self, offset: Bytes, len: Bytes) -> usize {
        let end = offset.checked_add(len);
        assert!(
            end.is_some_and(|end| end <= self.len),
            "{len} at {:#x} of {}",
            offset.get(),
            self.len
        );
        assert!(!self.is_lost_by_fork(), "addresses of a parent's, used in a child");
        self.at(offset)
    }
}

impl Drop for Addresses {
    fn drop(&mut self) {
        if !self.is_lost_by_fork() {
            let (addr, len) = self.whole;
            // SAFETY: nothing refers to the range after the drop.
            let _ = unsafe { unmap(addr, len) };
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::more_than_the_pool;
    use super::*;
    use glebe_testing::child::map_at;

    #[test]
    fn addresses_stay_reserved_if_the_pool_has_too_few_pages() {
        let Some((len, huge)) = more_than_the_pool() else { return };
        let file = match MemFile::hugetlb(len, huge) {
            Ok(file) => file,
            Err(error) => return println!("skipped: {error}"),
        };
        let addresses = Addresses::reserve(len, huge).unwrap();
        let Err(error) = addresses.place(Bytes::ZERO, &file, &[Piece { offset: Bytes::ZERO, len }])
        else {
            return println!("skipped: the pool has {len}");
        };
        let at = std::ptr::with_exposed_provenance_mut(addresses.at(Bytes::ZERO));
        assert!(!map_at(at, page_size().bytes().as_usize()), "{error}, and the range is free");
    }
}
