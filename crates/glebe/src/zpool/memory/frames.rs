//! [`Frames`]: the bytes of a pool's objects, in address space of their own.
//!
//! Positions are bytes from the start. Bytes of a slot are written by whoever has the slot alone,
//! before an entry names it, and never again until it is given up and nobody reads it any more:
//! so they are lent as slices ([`pins`](crate::zpool::memory::pins)).
//!
//! # Safety
//! Every range is checked against the mapping; that nobody writes what another reads is what
//! callers promise.
#![allow(unsafe_code)]

use std::ptr;
use std::slice;

use crate::error::OsError;
use crate::mapping::Reserved;
pub(crate) use crate::mapping::DISCARD_MAX;
use crate::units::{Bytes, PageSize, Pages};

/// See the module.
#[derive(Debug)]
pub(crate) struct Frames {
    mapping: Reserved,
    page: PageSize,
}

impl Frames {
    /// Address space for `pages` pages.
    pub(crate) fn new(pages: Pages, page: PageSize) -> Result<Self, OsError> {
        let len = pages.checked_bytes(page).unwrap_or(Bytes::new(u64::MAX));
        Ok(Self { mapping: Reserved::new(len, false)?, page })
    }

    #[inline]
    fn at(&self, start: usize, len: usize) -> *mut u8 {
        let all = self.mapping.len().get() as usize;
        assert!(start <= all && len <= all - start, "{len} bytes at {start:#x} of {all:#x}");
        self.mapping.as_ptr().wrapping_add(start)
    }

    /// Copies bytes in.
    ///
    /// # Safety
    /// The caller has the range alone.
    #[inline]
    pub(crate) unsafe fn write(&self, start: usize, bytes: &[u8]) {
        let to = self.at(start, bytes.len());
        // SAFETY: `at` checked the range, which is the caller's alone and so not `bytes`.
        unsafe { ptr::copy_nonoverlapping(bytes.as_ptr(), to, bytes.len()) }
    }

    /// Copies bytes to another place.
    ///
    /// # Safety
    /// Nobody writes the first range, the caller has the second alone.
    #[inline]
    pub(crate) unsafe fn copy(&self, from: usize, to: usize, len: usize) {
        let (from, to) = (self.at(from, len), self.at(to, len));
        // SAFETY: `at` checked both; a range that is the caller's alone overlaps no other.
        unsafe { ptr::copy_nonoverlapping(from, to, len) }
    }

    /// The bytes of a range.
    ///
    /// # Safety
    /// Nobody writes or gives back the range while the slice is there.
    #[inline]
    pub(crate) unsafe fn bytes(&self, start: usize, len: usize) -> &[u8] {
        let from = self.at(start, len);
        // SAFETY: `at` checked the range, and the caller promises that it stays as it is.
        unsafe { slice::from_raw_parts(from, len) }
    }

    /// Makes pages present.
    pub(crate) fn populate(&self, first: u32, pages: u32) -> Result<(), OsError> {
        let (at, len) = self.range(first, pages);
        self.mapping.populate(at, len)
    }

    /// Gives pages back.
    ///
    /// # Safety
    /// Nobody reads or writes them.
    pub(crate) unsafe fn discard(&self, first: u32, pages: u32) -> Result<(), OsError> {
        let (at, len) = self.range(first, pages);
        // SAFETY: passed on.
        unsafe { self.mapping.give_back(at, len) }
    }

    /// As [`Frames::discard`], runs by first page and count, [`DISCARD_MAX`] at most; how many,
    /// from the first on, are gone.
    ///
    /// # Safety
    /// As [`Frames::discard`].
    pub(crate) unsafe fn discard_all(&self, runs: &[(u32, u32)]) -> usize {
        let mut ranges = [(0, Bytes::ZERO); DISCARD_MAX];
        for (range, (first, pages)) in ranges.iter_mut().zip(runs) {
            let (at, len) = self.range(*first, *pages);
            *range = (at.as_usize(), len);
        }
        // SAFETY: passed on.
        unsafe { self.mapping.give_back_all(&mut ranges[..runs.len()]) }
    }

    fn range(&self, first: u32, pages: u32) -> (Bytes, Bytes) {
        let bytes = |pages: u32| Pages::new(pages.into()).bytes(self.page);
        (bytes(first), bytes(pages))
    }

    /// The first address and the length, for tests that look at what is resident.
    #[cfg(test)]
    pub(crate) fn range_of_all(&self) -> std::ops::Range<usize> {
        let start = self.mapping.as_ptr().addr();
        start..start + self.mapping.len().as_usize()
    }
}
