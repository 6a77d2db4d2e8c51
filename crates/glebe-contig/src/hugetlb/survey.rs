//! Finds entirely free huge pages, so that a pool can grow without moving pages.
//!
//! [`free_pages`] first reads one frame of each huge page. Where many in a row look free, it reads
//! all their frames. Counts and numbers are in huge pages.

use std::collections::BTreeSet;
use std::ops::Range;

use glebe_os::error::OsError;
use glebe_os::internal::sys::machine::kpage::{Frames, Kind};
use glebe_os::internal::sys::page_size;
use glebe_os::units::{PageSize, Pages, Pfn};

fn frame(number: u64, size: PageSize) -> Pfn {
    Pfn::new(number * base_pages(size).get())
}

fn base_pages(size: PageSize) -> Pages {
    size.bytes().pages_down(page_size())
}

/// Returns free huge pages that satisfy `may`. Searches the longest runs first, until `pages` pages
/// with a run of `run` are found, or `is_over` is true. Pages `in_hand` count as free, but are not
/// returned.
pub(super) fn free_pages(
    frames: &Frames,
    size: PageSize,
    in_hand: &BTreeSet<u64>,
    (run, pages): (u64, u64),
    may: impl Fn(u64) -> bool,
    is_over: impl Fn() -> bool,
) -> Result<Vec<u64>, OsError> {
    let mut firsts = frames.firsts(base_pages(size))?;
    for (number, first) in (0..).zip(&mut firsts) {
        if !may(number) {
            *first = Kind::Fixed;
        }
    }
    let is_free = |number: u64| {
        if in_hand.contains(&number) {
            return Ok(true);
        }
        if is_over() {
            return Ok(false);
        }
        let (first, each) = (frame(number, size), base_pages(size));
        // Two more frames cheaply rule out many partly free pages.
        for other in [1, each.get() / 2] {
            if frames.kind(Pfn::new(first.get() + other))? != Kind::Free {
                return Ok(false);
            }
        }
        Ok(frames.occupancy(first, each, false)?.free == each.get())
    };
    let mut found = confirm(candidates(&firsts, in_hand), run, pages, is_free)?;
    found.retain(|number| !in_hand.contains(number));
    Ok(found)
}

pub(super) fn in_pool(frames: &Frames, size: PageSize) -> Result<BTreeSet<u64>, OsError> {
    let firsts = (0..).zip(frames.firsts(base_pages(size))?);
    Ok(firsts.filter(|(_, kind)| *kind == Kind::Pool).map(|(number, _)| number).collect())
}

pub(super) fn longest_in_pool(frames: &Frames, size: PageSize) -> Result<Pages, OsError> {
    let numbers: Vec<u64> = in_pool(frames, size)?.into_iter().collect();
    let runs = numbers.chunk_by(|a, b| a + 1 == *b).map(<[u64]>::len);
    Ok(Pages::new(runs.max().unwrap_or(0) as u64))
}

pub(crate) fn is_in_pool(frames: &Frames, number: u64, size: PageSize) -> Result<bool, OsError> {
    Ok(frames.kind(frame(number, size))? == Kind::Pool)
}

pub(super) fn has_movable(frames: &Frames, size: PageSize) -> Result<bool, OsError> {
    for (number, first) in (0..).zip(frames.firsts(base_pages(size))?) {
        let may_be = matches!(first, Kind::Free | Kind::Movable | Kind::Unmarked);
        if may_be && frames.occupancy(frame(number, size), base_pages(size), false)?.fixed == 0 {
            return Ok(true);
        }
    }
    Ok(false)
}

fn candidates(firsts: &[Kind], in_hand: &BTreeSet<u64>) -> Vec<Range<u64>> {
    let mut runs: Vec<Range<u64>> = Vec::new();
    for (number, kind) in (0..).zip(firsts) {
        if *kind != Kind::Free && !in_hand.contains(&number) {
            continue;
        }
        match runs.last_mut() {
            Some(run) if run.end == number => run.end = number + 1,
            _ => runs.push(number..number + 1),
        }
    }
    runs
}

fn confirm(
    mut runs: Vec<Range<u64>>,
    run: u64,
    pages: u64,
    is_free: impl Fn(u64) -> Result<bool, OsError>,
) -> Result<Vec<u64>, OsError> {
    runs.sort_unstable_by_key(|run| run.end - run.start);
    let (mut all, mut longest) = (Vec::new(), 0);
    while let Some(next) = runs.pop() {
        let could_be = next.end - next.start;
        if all.len() as u64 >= pages && longest >= could_be {
            break;
        }
        let mut len = 0;
        for number in next {
            if all.len() as u64 >= pages && longest >= run {
                break;
            }
            len = if is_free(number)? { len + 1 } else { 0 };
            longest = longest.max(len);
            if len > 0 {
                all.push(number);
            }
        }
    }
    all.sort_unstable();
    Ok(all)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::cell::RefCell;

    #[test]
    fn the_longest_runs_are_looked_at_until_they_suffice() {
        let firsts: Vec<Kind> = "..ff.ffffff.fff.P"
            .chars()
            .map(|c| match c {
                'f' => Kind::Free,
                'P' => Kind::Pool,
                _ => Kind::Movable,
            })
            .collect();
        let none = BTreeSet::new();
        assert_eq!(candidates(&firsts, &none), [2..4, 5..11, 12..15]);
        assert_eq!(candidates(&firsts, &BTreeSet::from([4, 16])), [2..11, 12..15, 16..17]);
        let looked = RefCell::new(Vec::new());
        let seen = |run, pages, taken: u64| {
            looked.borrow_mut().clear();
            let is_free = |number| {
                looked.borrow_mut().push(number);
                Ok(number != taken)
            };
            confirm(candidates(&firsts, &none), run, pages, is_free).unwrap()
        };
        assert_eq!(seen(6, 6, 99), [5, 6, 7, 8, 9, 10]);
        assert_eq!(seen(3, 3, 8), [5, 6, 7]);
        assert_eq!(looked.borrow().len(), 3, "no more than suffice");
        assert_eq!(seen(3, 5, 8), [5, 6, 7, 9, 10]);
        assert_eq!(seen(4, 4, 8), [5, 6, 7, 9, 10], "none can be longer than 3");
        assert_eq!(seen(4, 6, 8), [5, 6, 7, 9, 10, 12, 13, 14]);
        assert_eq!(seen(9, 99, 8).len(), 10, "all that there is");
    }
}
