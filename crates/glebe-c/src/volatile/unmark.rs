//! Unmarking: what was lost, as runs or as a bitmap, told once and to the last page.
//!
//! # Safety
//! Pointers are what the header says of them.
#![allow(unsafe_code)]

use std::ffi::{c_int, c_uchar};

use glebe::extent::Extent;
use glebe::sys::page_size;

use super::regions::{lock, with, Volatile};
use crate::abi::*;
use crate::boundary::{call, Out};
use crate::failure::Failure;

/// Unmarks, and takes what of the range was not told before: ascending runs with a gap between
/// any two.
fn unmark(of: &Volatile, offset_bytes: u64, len_bytes: u64) -> Result<Vec<Extent>, Failure> {
    let range = super::range(offset_bytes, len_bytes)?;
    let page = page_size();
    let (start, end) = (range.start.pages_down(page).get(), range.end.pages_up(page).get());
    let mut runs = of.region.unmark(range)?.runs().to_vec();
    let Some(asked) = Extent::new(start, end - start) else { return Ok(runs) };
    let mut untold = lock(&of.untold);
    if !untold.is_empty() {
        let (told, kept) = split(&untold, asked);
        *untold = kept;
        runs = merged(runs.into_iter().chain(told).collect());
    }
    Ok(runs)
}

/// What of `runs` lies within `asked`, and what does not.
pub(super) fn split(runs: &[Extent], asked: Extent) -> (Vec<Extent>, Vec<Extent>) {
    let within = runs.iter().filter_map(|run| run.intersection(asked)).collect();
    let before = |run: &Extent| between(run.start(), run.end().min(asked.start()));
    let after = |run: &Extent| between(run.start().max(asked.end()), run.end());
    let without = runs.iter().flat_map(|run| [before(run), after(run)]).flatten().collect();
    (within, without)
}

/// From `start` up to `end`, unless that is nothing.
pub(super) fn between(start: u64, end: u64) -> Option<Extent> {
    Extent::new(start, end.saturating_sub(start))
}

/// Runs that overlap or touch become one.
pub(super) fn merged(mut runs: Vec<Extent>) -> Vec<Extent> {
    runs.sort_unstable();
    let mut all: Vec<Extent> = Vec::with_capacity(runs.len());
    for run in runs {
        match all.last_mut() {
            Some(last) if run.start() <= last.end() => {
                let end = last.end().max(run.end());
                *last = between(last.start(), end).unwrap_or(*last);
            }
            _ => all.push(run),
        }
    }
    all
}

/// # Safety
/// As the header says.
#[no_mangle]
pub unsafe extern "C" fn glebe_volatile_unmark(
    region: glebe_volatile,
    offset_bytes: u64,
    len_bytes: u64,
    runs: *mut glebe_lost_run,
    capacity: usize,
    count: *mut usize,
) -> c_int {
    call(|| {
        // SAFETY: the caller's duty.
        let out = unsafe { Out::new(count, "count")? };
        if runs.is_null() && capacity > 0 {
            return Err(Failure::Null("runs"));
        }
        let there = with(region, |of| {
            let all = unmark(of, offset_bytes, len_bytes)?;
            let (told, kept) = all.split_at(capacity.min(all.len()));
            for (index, run) in told.iter().enumerate() {
                let run = glebe_lost_run { start_pages: run.start(), len_pages: run.len() };
                // SAFETY: below `capacity`, for which the caller vouches.
                unsafe { runs.add(index).write_unaligned(run) };
            }
            if !kept.is_empty() {
                let mut untold = lock(&of.untold);
                *untold = merged(untold.iter().chain(kept).copied().collect());
            }
            Ok(all.len())
        })?;
        out.set(there);
        Ok(if there > capacity { GLEBE_UNMARK_MORE } else { GLEBE_UNMARK_TOLD })
    })
}

/// # Safety
/// As the header says.
#[no_mangle]
pub unsafe extern "C" fn glebe_volatile_unmark_bitmap(
    region: glebe_volatile,
    offset_bytes: u64,
    len_bytes: u64,
    bits: *mut c_uchar,
    bits_len_bytes: usize,
    lost_pages: *mut u64,
) -> c_int {
    call(|| {
        // SAFETY: the caller's duty.
        let out = unsafe { Out::new(lost_pages, "lost_pages")? };
        if bits.is_null() {
            return Err(Failure::Null("bits"));
        }
        let range = super::range(offset_bytes, len_bytes)?;
        let (first, page) = (range.start.pages_down(page_size()).get(), page_size());
        let pages = range.end.pages_up(page).get().saturating_sub(first);
        let needed = pages.div_ceil(u64::from(u8::BITS));
        if (bits_len_bytes as u64) < needed {
            return Err(Failure::ShortBitmap { given: bits_len_bytes, pages, needed });
        }
        let lost = with(region, |of| unmark(of, offset_bytes, len_bytes))?;
        // SAFETY: the caller vouches for as many bytes; an unmark that was not refused is of a
        // region, so that they are far from too many.
        let bits = unsafe { std::slice::from_raw_parts_mut(bits, needed as usize) };
        bits.fill(0);
        for bit in lost.iter().flat_map(|run| run.start() - first..run.end() - first) {
            bits[(bit / u64::from(u8::BITS)) as usize] |= 1 << (bit % u64::from(u8::BITS));
        }
        Ok(out.set(lost.iter().map(|run| run.len()).sum()))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn runs(of: &[(u64, u64)]) -> Vec<Extent> {
        of.iter().map(|(start, end)| between(*start, *end).unwrap()).collect()
    }

    #[test]
    fn what_is_asked_for_is_cut_out() {
        let all = runs(&[(0, 4), (6, 8), (10, 20)]);
        let asked = between(2, 12).unwrap();
        let (within, without) = split(&all, asked);
        assert_eq!(within, runs(&[(2, 4), (6, 8), (10, 12)]));
        assert_eq!(without, runs(&[(0, 2), (12, 20)]));
        let (within, without) = split(&runs(&[(0, 30)]), asked);
        assert_eq!((within, without), (runs(&[(2, 12)]), runs(&[(0, 2), (12, 30)])));
    }

    #[test]
    fn runs_that_touch_become_one() {
        let all = runs(&[(8, 9), (0, 2), (1, 4), (4, 5), (9, 12), (20, 21), (8, 10)]);
        assert_eq!(merged(all), runs(&[(0, 5), (8, 12), (20, 21)]));
        assert_eq!(merged(Vec::new()), []);
    }
}
