//! [`StoreMemory`] owns the addresses and pages of a store's objects. New pages are zero.
//!
//! # Safety
//! Places lie in the mapping. References exist only to populated bytes. The object's
//! [word](super::word) excludes other writers.
#![allow(unsafe_code)]

use std::ptr::{self, NonNull};

use super::slots::Place;
use glebe_os::error::OsError;
use glebe_os::internal::mapping::Reserved;
pub(super) use glebe_os::internal::mapping::DISCARD_MAX;
use glebe_os::internal::sys::page_size;
use glebe_os::units::{Bytes, Pages};

#[derive(Debug)]
pub(super) struct StoreMemory {
    reserved: Reserved,
    shift: u32,
}

impl StoreMemory {
    pub(super) fn new(pages: Pages) -> Result<Self, OsError> {
        let len = pages.checked_bytes(page_size()).unwrap_or(Bytes::new(u64::MAX));
        Ok(Self { reserved: Reserved::new(len, false)?, shift: page_size().shift() })
    }

    #[inline]
    pub(super) fn bytes(&self, place: Place) -> NonNull<[u8]> {
        let start = (place.first << self.shift) as usize;
        debug_assert!(start + place.len <= self.reserved.len().as_usize(), "{place:?}");
        let at = self.reserved.as_ptr().wrapping_add(start);
        NonNull::new(ptr::slice_from_raw_parts_mut(at, place.len)).expect("no mapping is at zero")
    }

    /// # Safety
    /// The object is resident; nobody writes or gives back its bytes while the slice lives.
    #[inline]
    pub(super) unsafe fn shared(&self, place: Place) -> &[u8] {
        // SAFETY: the caller promises it.
        unsafe { self.bytes(place).as_ref() }
    }

    /// # Safety
    /// The pages are present; the caller owns the object while the slice lives.
    #[inline]
    #[allow(clippy::mut_from_ref)] // the word excludes other users
    pub(super) unsafe fn alone(&self, place: Place) -> &mut [u8] {
        // SAFETY: the caller promises it.
        unsafe { self.bytes(place).as_mut() }
    }

    fn range(place: Place) -> (Bytes, Bytes) {
        let bytes = |pages| Pages::new(pages).bytes(page_size());
        (bytes(place.first), bytes(place.pages()))
    }

    pub(super) fn populate(&self, place: Place) -> Result<(), OsError> {
        let (at, len) = Self::range(place);
        self.reserved.populate(at, len)
    }

    /// Frees the pages. If the kernel refuses, zeroes them and returns false.
    ///
    /// # Safety
    /// As [`StoreMemory::alone`].
    pub(super) unsafe fn give_up(&self, place: Place) -> bool {
        // SAFETY: the caller owns the object.
        let is_gone = unsafe { self.give_back(place) }.is_ok();
        if !is_gone {
            // SAFETY: as above; the pages are still present.
            unsafe { self.alone(place) }.fill(0);
        }
        is_gone
    }

    /// # Safety
    /// As [`StoreMemory::alone`].
    pub(super) unsafe fn give_back(&self, place: Place) -> Result<(), OsError> {
        let (at, len) = Self::range(place);
        // SAFETY: the caller promises it.
        unsafe { self.reserved.give_back(at, len) }
    }

    /// Returns the number freed before a failure.
    ///
    /// # Safety
    /// As [`StoreMemory::alone`], for each object.
    pub(super) unsafe fn give_back_all(&self, places: &[Place]) -> usize {
        let mut ranges = [(0, Bytes::ZERO); DISCARD_MAX];
        for (range, place) in ranges.iter_mut().zip(places) {
            let (at, len) = Self::range(*place);
            *range = (at.as_usize(), len);
        }
        // SAFETY: the caller owns the objects.
        unsafe { self.reserved.give_back_all(&mut ranges[..places.len()]) }
    }
}
