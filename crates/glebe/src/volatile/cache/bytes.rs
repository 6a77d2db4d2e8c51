//! The bytes of a place in the region, as values.
//!
//! Owns nothing. A place is safe while this is called: unmarked, and no other item's.
//!
//! # Safety
//! Only whole places are lent: of one item, not marked, inside the region, which the cache keeps
//! mapped as long as it lives. A building item is its builder's alone; a pinned one is only read.
//! What the region itself does to a place, it does while the item moves.
#![allow(unsafe_code)]

use std::ops::Range;
use std::{ptr, slice};

use bytemuck::Pod;

use crate::extent::Extent;
use crate::sys::page_size;
use crate::units::{Bytes, Pages};
use crate::volatile::Region;

/// A place as the region counts.
pub(super) fn range_of(place: Extent) -> Range<Bytes> {
    let at = |page| Pages::new(page).bytes(page_size());
    at(place.start())..at(place.end())
}

/// The address of a place that is to hold so many values.
fn start<V>(region: &Region, place: Extent, count: usize) -> *mut V {
    let range = range_of(place);
    let len = (range.end - range.start).as_usize();
    let is_inside = count.checked_mul(size_of::<V>()).is_some_and(|bytes| bytes <= len);
    let is_aligned = align_of::<V>() <= page_size().bytes().as_usize();
    assert!(is_inside && is_aligned && range.end <= region.len(), "{count} values in {place}");
    region.as_ptr().wrapping_add(range.start.as_usize()).cast()
}

/// Fills the values of a place with zeros and lends them to their builder.
///
/// # Safety
/// The place is of an item that the calling thread builds, and not marked.
pub(super) unsafe fn lend_zeroed<V: Pod, T>(
    region: &Region,
    place: Extent,
    count: usize,
    build: impl FnOnce(&mut [V]) -> T,
) -> T {
    let start = start::<V>(region, place, count);
    // SAFETY: inside the region, aligned, and, as the caller says, nobody else's; zeros are values
    // of plain data.
    let values = unsafe {
        ptr::write_bytes(start, 0, count);
        slice::from_raw_parts_mut(start, count)
    };
    build(values)
}

/// The values of a place.
///
/// # Safety
/// The place is of an item that was built with so many values of this type and that is pinned as
/// long as the slice is used.
#[inline]
pub(super) unsafe fn values<V: Pod>(region: &Region, place: Extent, count: usize) -> &[V] {
    let start = start::<V>(region, place, count);
    // SAFETY: inside the region, aligned, written when it was built; nobody writes what is pinned.
    unsafe { slice::from_raw_parts(start, count) }
}
