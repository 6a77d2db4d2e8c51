//! Lends an item's *place*, its pages in the region, as values.
//!
//! # Safety
//! A lent place is inside the region, unmarked and of one item. Only the builder uses an item that
//! is being built, and nobody writes to a pinned item. Nobody marks these items, and drops change
//! only marked pages.
#![allow(unsafe_code)]

use std::ops::Range;
use std::{ptr, slice};

use bytemuck::Pod;

use crate::Region;
use glebe_os::extent::Extent;
use glebe_os::internal::sys::page_size;
use glebe_os::units::{Bytes, Pages};

pub(super) fn range_of(place: Extent) -> Range<Bytes> {
    let at = |page| Pages::new(page).bytes(page_size());
    at(place.start())..at(place.end())
}

fn start<V>(region: &Region, place: Extent, count: usize) -> *mut V {
    let range = range_of(place);
    let len = (range.end - range.start).as_usize();
    let is_inside = count.checked_mul(size_of::<V>()).is_some_and(|bytes| bytes <= len);
    let is_aligned = align_of::<V>() <= page_size().bytes().as_usize();
    assert!(is_inside && is_aligned && range.end <= region.len(), "{count} values in {place}");
    region.as_ptr().wrapping_add(range.start.as_usize()).cast()
}

/// # Safety
/// The calling thread builds the place's item, and the place is not marked.
pub(super) unsafe fn lend_zeroed<V: Pod, T>(
    region: &Region,
    place: Extent,
    count: usize,
    build: impl FnOnce(&mut [V]) -> T,
) -> T {
    let start = start::<V>(region, place, count);
    // SAFETY: `start` checked bounds and alignment; no other thread uses the values; zeros are
    // valid plain data.
    let values = unsafe {
        ptr::write_bytes(start, 0, count);
        slice::from_raw_parts_mut(start, count)
    };
    build(values)
}

/// # Safety
/// The item was built with `count` values of this type, and is pinned while the slice exists.
#[inline]
pub(super) unsafe fn values<V: Pod>(region: &Region, place: Extent, count: usize) -> &[V] {
    let start = start::<V>(region, place, count);
    // SAFETY: `start` checked bounds and alignment; no thread writes a built, pinned item.
    unsafe { slice::from_raw_parts(start, count) }
}
