//! [`Cold`] holds ranges of pages that leave memory first.
//!
//! ```text
//! range   63 first page 32 | 31 pages 0
//! ```
//!
//! A new range replaces the oldest of [`RANGES`], because ranges are hints. No lock.

use std::ops::Range;

use glebe_os::internal::sync::{MappedWord, Ordering};

const RANGES: usize = 8;
const LEN_BITS: u32 = 32;

#[derive(Debug)]
pub(super) struct Cold {
    ranges: [MappedWord; RANGES],
    last: MappedWord,
}

fn parts(range: u64) -> (u64, u64) {
    (range >> LEN_BITS, range & ((1 << LEN_BITS) - 1))
}

fn range_of(first: u64, len: u64) -> u64 {
    if len == 0 {
        0
    } else {
        first << LEN_BITS | len
    }
}

impl Cold {
    pub(super) fn new() -> Self {
        Self { ranges: [const { MappedWord::new(0) }; RANGES], last: MappedWord::new(0) }
    }

    fn at(&self, nth: u64) -> &MappedWord {
        &self.ranges[nth as usize % RANGES]
    }

    pub(super) fn add(&self, pages: Range<u64>) {
        let (from, more) = (pages.start, pages.end.saturating_sub(pages.start));
        if more == 0 {
            return;
        }
        let longer = |range| {
            let (first, len) = parts(range);
            (len > 0 && first + len == from).then(|| range_of(first, len + more))
        };
        let last = self.at(self.last.load(Ordering::Relaxed));
        if last.fetch_update(Ordering::Relaxed, Ordering::Relaxed, longer).is_err() {
            let next = self.last.fetch_add(1, Ordering::Relaxed) + 1;
            self.at(next).store(range_of(from, more), Ordering::Relaxed);
        }
    }

    pub(super) fn take(&self, most: u64) -> Option<Range<u64>> {
        let last = self.last.load(Ordering::Relaxed);
        let shorter = |range| {
            let (first, len) = parts(range);
            let taken = len.min(most);
            (len > 0).then(|| range_of(first + taken, len - taken))
        };
        (1..=RANGES as u64).find_map(|nth| {
            let range = self.at(last + nth);
            let was = range.fetch_update(Ordering::Relaxed, Ordering::Relaxed, shorter).ok()?;
            let (first, len) = parts(was);
            Some(first..first + len.min(most))
        })
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    fn taken(cold: &Cold) -> Vec<Range<u64>> {
        std::iter::from_fn(|| cold.take(8)).collect()
    }

    #[test]
    fn the_oldest_are_taken_first_and_what_follows_is_one_range() {
        let cold = Cold::new();
        assert_eq!(cold.take(8), None);
        cold.add(0..3);
        cold.add(5..5);
        (100..110).for_each(|page| cold.add(page..page + 1));
        let end = 1 << 31;
        cold.add(end - 9..end);
        assert_eq!(taken(&cold), [0..3, 100..108, 108..110, end - 9..end - 1, end - 1..end]);
        assert_eq!(cold.take(8), None);
    }

    #[test]
    fn of_too_many_ranges_the_oldest_are_forgotten() {
        let cold = Cold::new();
        let ranges: Vec<_> = (0..RANGES as u64 + 2).map(|nth| 10 * nth..10 * nth + 2).collect();
        ranges.iter().for_each(|range| cold.add(range.clone()));
        assert_eq!(taken(&cold), ranges[2..]);
    }
}
