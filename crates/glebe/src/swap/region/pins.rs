//! [`Resident`] keeps a part of a region in memory.
//!
//! # Safety
//! A guard pins each page exclusively: the bytes stay present, eviction skips the page, and no
//! other guard or copy uses it.
#![allow(unsafe_code)]

use std::fmt;
use std::ops::{Deref, DerefMut, Range};
use std::ptr::{self, NonNull};

use super::evict::Asker;
use super::inner::RegionCore;
use super::Region;
use crate::swap::error::SwapError;
use crate::swap::word::{change, must, unpin, Refusal, Word};
use glebe_os::internal::sync::Backoff;
use glebe_os::internal::sys::page_size;
use glebe_os::units::Bytes;

/// Most waits for a pinned page; tens of milliseconds in all.
pub(super) const WAITS: u32 = 48;

/// `Resident` keeps bytes of a region in memory, so system calls and devices can use them. No other
/// guard or copy uses their pages.
pub struct Resident<'a> {
    inner: &'a RegionCore,
    pages: Range<u64>,
    bytes: NonNull<[u8]>,
}

// SAFETY: a guard is the only reference to its bytes, like `&mut [u8]`.
unsafe impl Send for Resident<'_> {}
// SAFETY: a shared reference gives only `&[u8]`.
unsafe impl Sync for Resident<'_> {}

#[derive(Clone, Copy, Debug)]
enum Way {
    Shared,
    Alone,
}

impl Region {
    /// Brings bytes to memory and keeps them there while the guard lives. Guards may pin seven
    /// eighths of the budget, but always leave four pages of it.
    ///
    /// # Errors
    /// `Beyond`; `Pinned` if a guard or a long copy uses a page; `Budget`, `Full` or `FileFull`
    /// without room; `LostPage`, `Os`, `Pool`, `Forked`.
    pub fn resident(&self, offset: Bytes, len: Bytes) -> Result<Resident<'_>, SwapError> {
        let inner = self.inner();
        let pages = inner.checked(offset, len.get())?;
        let count = pages.end - pages.start;
        if !inner.count_pins(count) {
            return Err(SwapError::Budget {
                len: inner.offset_of(count),
                pinned: inner.offset_of(inner.pinned()),
                budget: inner.offset_of(inner.budget()),
            });
        }
        for page in pages.clone() {
            if let Err(error) = inner.pin(page, Way::Alone) {
                inner.release_pins(pages.start..page);
                inner.uncount_pins(count);
                return Err(error);
            }
        }
        Ok(Resident { inner, pages, bytes: inner.bytes_at(offset, len) })
    }

    /// Copies bytes to `buf`. Concurrent writes through [`Region::as_ptr`] may be copied in part.
    ///
    /// # Errors
    /// As [`Region::resident`]; `buf` may then hold any bytes.
    pub fn read_at(&self, offset: Bytes, buf: &mut [u8]) -> Result<(), SwapError> {
        let inner = self.inner();
        let mut done = 0;
        for (page, len) in inner.pieces(offset, buf.len())? {
            inner.pin(page, Way::Shared)?;
            inner.home.read(offset + Bytes::new(done as u64), &mut buf[done..done + len]);
            inner.unpin(page, Way::Shared);
            done += len;
        }
        Ok(())
    }

    /// Copies `bytes` into the region.
    ///
    /// # Errors
    /// As [`Region::resident`]; the first pages may then be written.
    pub fn write_at(&self, offset: Bytes, bytes: &[u8]) -> Result<(), SwapError> {
        let inner = self.inner();
        let mut done = 0;
        for (page, len) in inner.pieces(offset, bytes.len())? {
            inner.pin(page, Way::Alone)?;
            inner.home.write(offset + Bytes::new(done as u64), &bytes[done..done + len]);
            inner.unpin(page, Way::Alone);
            done += len;
        }
        Ok(())
    }
}

impl RegionCore {
    fn bytes_at(&self, offset: Bytes, len: Bytes) -> NonNull<[u8]> {
        let at = self.home.as_ptr().wrapping_add(offset.as_usize());
        let bytes = ptr::slice_from_raw_parts_mut(at, len.as_usize());
        NonNull::new(bytes).expect("no mapping is at zero")
    }

    pub(super) fn checked(&self, offset: Bytes, len: u64) -> Result<Range<u64>, SwapError> {
        self.alive()?;
        let end = offset.checked_add(Bytes::new(len)).unwrap_or(Bytes::new(u64::MAX));
        if end > self.home.len() {
            return Err(SwapError::Beyond { end, limit: self.home.len() });
        }
        let first = offset.pages_down(page_size()).get();
        Ok(first..if len == 0 { first } else { end.pages_up(page_size()).get() })
    }

    fn pieces(
        &self,
        offset: Bytes,
        len: usize,
    ) -> Result<impl Iterator<Item = (u64, usize)>, SwapError> {
        let pages = self.checked(offset, len as u64)?;
        let (start, end, page) = (offset.as_usize(), offset.as_usize() + len, self.page());
        Ok(pages.map(move |at| {
            let first = at as usize * page;
            (at, end.min(first + page) - start.max(first))
        }))
    }

    fn pin(&self, page: u64, way: Way) -> Result<(), SwapError> {
        let (word, mut backoff, mut waits) = (self.slot_of(page).word(), Backoff::default(), 0);
        let step = |word: Word| match way {
            Way::Shared => word.pinned(0),
            Way::Alone => word.pinned_alone(0),
        };
        loop {
            match change(word, step) {
                Ok(_) => return self.lift(page).inspect_err(|_| self.unpin(page, way)),
                Err(Refusal::Stale | Refusal::Stored | Refusal::Failed) => {
                    self.bring(page, Asker::Call)?;
                }
                Err(Refusal::Pinned) if waits == WAITS => return Err(SwapError::Pinned),
                Err(refusal) => {
                    waits += u32::from(refusal == Refusal::Pinned);
                    backoff.wait();
                }
            }
        }
    }

    fn unpin(&self, page: u64, way: Way) {
        let word = self.slot_of(page).word();
        match way {
            Way::Shared => unpin(word),
            Way::Alone => must(word, Word::released),
        };
    }

    fn release_pins(&self, pages: Range<u64>) {
        pages.for_each(|page| self.unpin(page, Way::Alone));
    }
}

impl Deref for Resident<'_> {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        // SAFETY: all pages are pinned exclusively.
        unsafe { self.bytes.as_ref() }
    }
}

impl DerefMut for Resident<'_> {
    fn deref_mut(&mut self) -> &mut [u8] {
        // SAFETY: all pages are pinned exclusively; `&mut self` makes this slice the only one.
        unsafe { self.bytes.as_mut() }
    }
}

impl Drop for Resident<'_> {
    fn drop(&mut self) {
        if self.inner.alive().is_err() {
            return;
        }
        self.inner.release_pins(self.pages.clone());
        self.inner.uncount_pins(self.pages.end - self.pages.start);
    }
}

impl fmt::Debug for Resident<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Resident({} bytes in pages {:?})", self.bytes.len(), self.pages)
    }
}
