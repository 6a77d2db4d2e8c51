//! Unmarking: what was lost, told once and to the last page.
#![allow(unsafe_code)] // exported names

use std::ffi::c_int;
use std::ops::Range;

use glebe::extent::Extent;
use glebe::sys::page_size;
use glebe::units::Bytes;
use glebe::volatile::{Error, Purged, Region};

use super::claims::{lock, range};
use super::regions::{with, Volatile};
use super::runs::{merged, split};
use crate::abi::*;
use crate::boundary::{call, Array, Out};
use crate::failure::Failure;

/// Unmarks, and takes what of the range was not told before: ascending runs with a gap between
/// any two.
fn unmark(
    of: &Volatile,
    range: Range<Bytes>,
    by: impl FnOnce(&Region, Range<Bytes>) -> Result<Purged, Error>,
) -> Result<Vec<Extent>, Failure> {
    let page = page_size();
    let (start, end) = (range.start.pages_down(page).get(), range.end.pages_up(page).get());
    let mut runs = by(&of.region, range)?.runs().to_vec();
    let Some(asked) = Extent::new(start, end - start) else { return Ok(runs) };
    let mut untold = lock(&of.untold);
    if !untold.is_empty() {
        let (told, kept) = split(&untold, asked);
        *untold = kept;
        runs = merged(runs.into_iter().chain(told).collect());
    }
    Ok(runs)
}

/// Unmarks a range, and writes the first runs that were lost to the caller's array.
fn tell_runs(
    region: glebe_volatile,
    range: Range<Bytes>,
    (runs, capacity, count): (Out<glebe_extent>, usize, Out<usize>),
    by: impl FnOnce(&Region, Range<Bytes>) -> Result<Purged, Error>,
) -> Result<c_int, Failure> {
    let out = Array::new(runs, capacity, count, "runs")?;
    with(region, |of| {
        let all = unmark(of, range, by)?;
        out.set(all.iter().map(glebe_extent::of));
        let untold = all.get(capacity..).unwrap_or_default();
        if untold.is_empty() {
            return Ok(GLEBE_UNMARK_TOLD);
        }
        let mut before = lock(&of.untold);
        *before = merged(before.iter().chain(untold).copied().collect());
        Ok(GLEBE_UNMARK_MORE)
    })
}

#[no_mangle]
pub extern "C" fn glebe_volatile_unmark(
    region: glebe_volatile,
    offset_bytes: u64,
    len_bytes: u64,
    runs: Out<glebe_extent>,
    capacity: usize,
    count: Out<usize>,
) -> c_int {
    call(|| {
        let range = range(offset_bytes, len_bytes)?;
        tell_runs(region, range, (runs, capacity, count), Region::unmark)
    })
}

#[no_mangle]
pub extern "C" fn glebe_volatile_resident(
    region: glebe_volatile,
    offset_bytes: u64,
    len_bytes: u64,
    runs: Out<glebe_extent>,
    capacity: usize,
    count: Out<usize>,
) -> c_int {
    call(|| {
        let range = range(offset_bytes, len_bytes)?;
        let keep = |of: &Region, range| Ok(of.resident(range)?.leave());
        tell_runs(region, range, (runs, capacity, count), keep)
    })
}

#[no_mangle]
pub extern "C" fn glebe_volatile_release(
    region: glebe_volatile,
    offset_bytes: u64,
    len_bytes: u64,
) -> c_int {
    call(|| {
        let range = range(offset_bytes, len_bytes)?;
        with(region, |of| Ok(of.region.release(range)?))?;
        Ok(GLEBE_OK)
    })
}
