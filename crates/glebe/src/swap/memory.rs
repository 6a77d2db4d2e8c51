//! [`Memory`]: the addresses of a store's objects, and the pages that are there at present.
//!
//! An object has its addresses for life, its pages while it is resident. Pages that come are
//! zero. Cost: a system call to populate an object, and one to give back up to [`DISCARD_MAX`]
//! objects.
//!
//! # Safety
//! Bytes are lent only of places, which lie in the mapping, while they are populated. That nobody
//! writes what another has is what callers promise, by the object's [word](super::word).
#![allow(unsafe_code)]

use std::ptr::{self, NonNull};

use super::slots::Place;
use crate::error::OsError;
use crate::mapping::Reserved;
pub(super) use crate::mapping::DISCARD_MAX;
use crate::sys::page_size;
use crate::units::{Bytes, Pages};

/// See the module.
#[derive(Debug)]
pub(super) struct Memory {
    reserved: Reserved,
    /// log2 of the page size, here for the hot path.
    shift: u32,
}

impl Memory {
    /// Addresses for so many pages, and no page.
    pub(super) fn new(pages: Pages) -> Result<Self, OsError> {
        let len = pages.checked_bytes(page_size()).unwrap_or(Bytes::new(u64::MAX));
        Ok(Self { reserved: Reserved::new(len, false)?, shift: page_size().shift() })
    }

    /// The bytes of a place: to be read or written only while its pages are there.
    #[inline]
    pub(super) fn bytes(&self, place: Place) -> NonNull<[u8]> {
        let start = (place.first << self.shift) as usize;
        debug_assert!(start + place.len <= self.reserved.len().as_usize(), "{place:?}");
        let at = self.reserved.as_ptr().wrapping_add(start);
        NonNull::new(ptr::slice_from_raw_parts_mut(at, place.len)).expect("no mapping is at zero")
    }

    /// The bytes of an object.
    ///
    /// # Safety
    /// The object is resident, and nobody writes it or gives it back while the slice is there.
    #[inline]
    pub(super) unsafe fn shared(&self, place: Place) -> &[u8] {
        // SAFETY: passed on.
        unsafe { self.bytes(place).as_ref() }
    }

    /// The bytes of an object, to write.
    ///
    /// # Safety
    /// The pages are there, and the caller has the object to itself while the slice is there.
    #[inline]
    #[allow(clippy::mut_from_ref)] // the word says who may have it
    pub(super) unsafe fn alone(&self, place: Place) -> &mut [u8] {
        // SAFETY: passed on.
        unsafe { self.bytes(place).as_mut() }
    }

    fn range(place: Place) -> (Bytes, Bytes) {
        let bytes = |pages| Pages::new(pages).bytes(page_size());
        (bytes(place.first), bytes(place.pages()))
    }

    /// Makes the pages of an object present.
    pub(super) fn populate(&self, place: Place) -> Result<(), OsError> {
        let (at, len) = Self::range(place);
        self.reserved.populate(at, len)
    }

    /// Gives the pages of an object back, whose bytes nobody wants any more; false if the kernel
    /// does not take them, and then they are zero.
    ///
    /// # Safety
    /// As [`Memory::alone`].
    pub(super) unsafe fn give_up(&self, place: Place) -> bool {
        // SAFETY: the caller has the object to itself.
        let is_gone = unsafe { self.give_back(place) }.is_ok();
        if !is_gone {
            // SAFETY: as above, and its pages are still there.
            unsafe { self.alone(place) }.fill(0);
        }
        is_gone
    }

    /// Gives the pages of an object back.
    ///
    /// # Safety
    /// As [`Memory::alone`].
    pub(super) unsafe fn give_back(&self, place: Place) -> Result<(), OsError> {
        let (at, len) = Self::range(place);
        // SAFETY: passed on.
        unsafe { self.reserved.give_back(at, len) }
    }

    /// Gives the pages of objects back, [`DISCARD_MAX`] at most; of how many, from the first on,
    /// they are gone. The others are as they were.
    ///
    /// # Safety
    /// As [`Memory::alone`], of each.
    pub(super) unsafe fn give_back_all(&self, places: &[Place]) -> usize {
        let mut ranges = [(0, Bytes::ZERO); DISCARD_MAX];
        for (range, place) in ranges.iter_mut().zip(places) {
            let (at, len) = Self::range(*place);
            *range = (at.as_usize(), len);
        }
        // SAFETY: the caller has the objects to itself.
        unsafe { self.reserved.give_back_all(&mut ranges[..places.len()]) }
    }
}
