//! [`Frames`] holds the bytes of a pool's objects in a reserved address range.
//!
//! Offsets and lengths are bytes, except pages to populate or discard. A slot is written only while
//! no entry names it and no reader is left (see [`pins`](crate::memory::pins)), so readers may
//! borrow slices.
//!
//! # Safety
//! Each call checks its range. Callers promise that no thread writes what another reads.
#![allow(unsafe_code)]

use std::ptr;
use std::slice;

use glebe_os::error::OsError;
use glebe_os::internal::mapping::Reserved;
pub(crate) use glebe_os::internal::mapping::DISCARD_MAX;
use glebe_os::units::{Bytes, PageSize, Pages};

#[derive(Debug)]
pub(crate) struct Frames {
    mapping: Reserved,
    page: PageSize,
}

impl Frames {
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

    /// # Safety
    /// No other thread uses the range.
    #[inline]
    pub(crate) unsafe fn write(&self, start: usize, bytes: &[u8]) {
        let to = self.at(start, bytes.len());
        // SAFETY: `at` checked the range; no other thread uses it, and it does not overlap `bytes`.
        unsafe { ptr::copy_nonoverlapping(bytes.as_ptr(), to, bytes.len()) }
    }

    /// # Safety
    /// No thread writes the range at `from`, and no other thread uses the range at `to`.
    #[inline]
    pub(crate) unsafe fn copy(&self, from: usize, to: usize, len: usize) {
        let (from, to) = (self.at(from, len), self.at(to, len));
        // SAFETY: `at` checked the ranges; only the caller uses `to`, so the ranges do not overlap.
        unsafe { ptr::copy_nonoverlapping(from, to, len) }
    }

    /// # Safety
    /// No thread writes the range or gives it back while the slice exists.
    #[inline]
    pub(crate) unsafe fn bytes(&self, start: usize, len: usize) -> &[u8] {
        let from = self.at(start, len);
        // SAFETY: `at` checked the range; the caller promises that it does not change.
        unsafe { slice::from_raw_parts(from, len) }
    }

    pub(crate) fn populate(&self, first: u32, pages: u32) -> Result<(), OsError> {
        let (at, len) = self.range(first, pages);
        self.mapping.populate(at, len)
    }

    /// # Safety
    /// No thread reads or writes the pages.
    pub(crate) unsafe fn discard(&self, first: u32, pages: u32) -> Result<(), OsError> {
        let (at, len) = self.range(first, pages);
        // SAFETY: the caller promises that no thread uses the pages.
        unsafe { self.mapping.give_back(at, len) }
    }

    /// Gives back runs of pages until one fails, at most [`DISCARD_MAX`] runs. Returns the number
    /// given back.
    ///
    /// # Safety
    /// See [`Frames::discard`].
    pub(crate) unsafe fn discard_all(&self, runs: &[(u32, u32)]) -> usize {
        let mut ranges = [(0, Bytes::ZERO); DISCARD_MAX];
        for (range, (first, pages)) in ranges.iter_mut().zip(runs) {
            let (at, len) = self.range(*first, *pages);
            *range = (at.as_usize(), len);
        }
        // SAFETY: the caller promises that no thread uses the pages.
        unsafe { self.mapping.give_back_all(&mut ranges[..runs.len()]) }
    }

    fn range(&self, first: u32, pages: u32) -> (Bytes, Bytes) {
        let bytes = |pages: u32| Pages::new(pages.into()).bytes(self.page);
        (bytes(first), bytes(pages))
    }

    #[cfg(test)]
    pub(crate) fn range_of_all(&self) -> std::ops::Range<usize> {
        let start = self.mapping.as_ptr().addr();
        start..start + self.mapping.len().as_usize()
    }
}
