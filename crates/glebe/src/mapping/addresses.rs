//! [`Addresses`]: reserved addresses over which pages of files are mapped, piece by piece.
//!
//! Owns the range from `mmap` to its drop. Offsets and lengths are bytes, whole pages of the files.
//! What has no piece over it is no memory: a touch is SIGSEGV. No lock: who gives a part to whom is
//! the caller's to order. Cost: one system call a piece, and one for all pieces together, so that
//! no forked child has them.
//!
//! A process that has come to the limit on its mappings may not map over others either, so that
//! nothing could be cleared; and to unmap it would leave a hole, in which somebody else's mapping
//! may land. Hence the *spare* behind the range: a page that is a mapping of its own until then.
//!
//! # Safety
//! Nothing else is mapped in the range as long as this lives, so that mapping over a part of it,
//! and clearing it, touches nobody else's memory. In a forked child, which lacks the pieces and
//! where their addresses may be somebody else's, both are refused and nothing is unmapped.
#![allow(unsafe_code)]

use std::io::ErrorKind;

use crate::error::OsError;
use crate::sync::{MappedByte, Ordering};
use crate::sys::commit;
use crate::sys::fork::ForkGuard;
use crate::sys::madvise::{advise, Advice};
use crate::sys::memfd::MemFile;
use crate::sys::mmap::{clear, make_readable, unmap};
use crate::sys::page_size;
use crate::units::{Bytes, PageSize, Pages};

/// A part of a file that is mapped as one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Piece {
    pub(crate) offset: Bytes,
    pub(crate) len: Bytes,
}

/// The spare, and one page on either side.
const SPARE_PAGES: u64 = 3;

/// See the module.
#[derive(Debug)]
pub(crate) struct Addresses {
    /// The first multiple of the page, and the bytes from it.
    addr: usize,
    len: Bytes,
    /// What was reserved.
    whole: (usize, Bytes),
    /// Whether the spare is a mapping of its own.
    has_spare: MappedByte,
    /// Whether the process locks what it maps.
    locks: bool,
    guard: ForkGuard,
}

const _: () = {
    const fn shareable<T: Send + Sync>() {}
    shareable::<Addresses>();
};

impl Addresses {
    /// `len` bytes, whole pages, at a multiple of `page`. A child never has what is mapped there.
    pub(crate) fn reserve(len: Bytes, page: PageSize) -> Result<Self, OsError> {
        let behind = page.bytes() + Pages::new(SPARE_PAGES).bytes(page_size());
        let room = len.checked_add(behind).unwrap_or(len);
        let commit::Addresses { addr: at, locks } = commit::reserve(room, false)?;
        let addr = at.next_multiple_of(page.bytes().as_usize());
        let (whole, has_spare) = ((at, room), MappedByte::new(0));
        let guard = ForkGuard::new();
        let addresses = Self { addr, len, whole, has_spare, locks, guard };
        addresses.keep_spare(true);
        Ok(addresses)
    }

    /// Bytes of it.
    pub(crate) fn len(&self) -> Bytes {
        self.len
    }

    /// The address at `offset`.
    #[inline]
    pub(crate) fn at(&self, offset: Bytes) -> usize {
        self.addr.wrapping_add(offset.as_usize())
    }

    /// Whether this is a forked child, which has none of what was mapped.
    #[inline]
    pub(crate) fn is_lost_by_fork(&self) -> bool {
        self.guard.is_child()
    }

    /// Maps the pieces side by side from `offset` on, for this process alone. On an error some of
    /// them may be there: [`Addresses::clear`] takes them away.
    pub(crate) fn place(
        &self,
        offset: Bytes,
        file: &MemFile,
        pieces: &[Piece],
    ) -> Result<(), OsError> {
        let len = pieces.iter().fold(Bytes::ZERO, |sum, piece| sum + piece.len);
        let start = self.checked(offset, len);
        let mut at = start;
        for piece in pieces {
            // SAFETY: within the range, as checked; the caller gives no part to two.
            unsafe { file.map_over(at, piece.offset, piece.len)? };
            at += piece.len.as_usize();
        }
        // SAFETY: as above; says who else sees the bytes and changes none.
        unsafe { advise(start, len, Advice::DontFork) }
    }

    /// Takes away what is mapped in a part. On an error it may still be there.
    pub(crate) fn clear(&self, offset: Bytes, len: Bytes) -> Result<(), OsError> {
        let at = self.checked(offset, len);
        // SAFETY: within the range, as checked; the caller has seen the end of who had the part.
        let clear = || unsafe { clear(at, len, false) };
        let mut cleared = clear();
        if cleared.as_ref().is_err_and(|why| why.kind() == ErrorKind::OutOfMemory)
            && self.has_spare.load(Ordering::Relaxed) != 0
        {
            self.keep_spare(false);
            cleared = clear();
        }
        if self.locks && cleared.is_ok() {
            // SAFETY: as above: addresses alone. What is refused stays locked, without a page.
            let _ = unsafe { commit::unlock(at, len) };
        }
        if cleared.is_ok() && self.has_spare.load(Ordering::Relaxed) == 0 {
            self.keep_spare(true);
        }
        cleared
    }

    /// Makes the spare a mapping of its own, if it can be, or gives that up: two mappings fewer.
    fn keep_spare(&self, keep: bool) {
        let page = page_size().bytes();
        let (at, len) = self.whole;
        let spare = at + len.as_usize() - 2 * page.as_usize();
        // SAFETY: behind the range that is given out, with a page of addresses on either side.
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
            // SAFETY: nothing refers to what is mapped there once its owner is dropped. What the
            // kernel refuses is made up for by the next mapping.
            let _ = unsafe { unmap(addr, len) };
        }
    }
}
