//! [`Held`]: the blocks that first class holds, by place, kept apart from the reserve's own books.
//!
//! Cost: O(log n) to add and remove one of n blocks, O(n) for the longest gap. Unit: base pages.

use std::collections::BTreeMap;

use glebe::extent::Extent;

/// See the module.
#[derive(Debug)]
pub(super) struct Held {
    total: u64,
    held: u64,
    /// The end of each block by its start.
    ends: BTreeMap<u64, u64>,
}

impl Held {
    /// Of a reserve of `total` pages, nothing.
    pub(super) fn new(total: u64) -> Self {
        Self { total, held: 0, ends: BTreeMap::new() }
    }

    /// Adds a block; false if part of it was held or outside.
    #[must_use]
    pub(super) fn add(&mut self, block: Extent) -> bool {
        let before = self.ends.range(..block.end()).next_back();
        let apart = before.is_none_or(|(_, &end)| end <= block.start());
        self.ends.insert(block.start(), block.end());
        self.held += block.len();
        apart && block.end() <= self.total
    }

    /// Removes a block.
    pub(super) fn remove(&mut self, block: Extent) {
        if self.ends.remove(&block.start()).is_some() {
            self.held -= block.len();
        }
    }

    pub(super) fn free(&self) -> u64 {
        self.total - self.held
    }

    /// The longest run that no block holds a page of.
    pub(super) fn largest_gap(&self) -> u64 {
        let (mut at, mut largest) = (0, 0);
        for (&start, &end) in &self.ends {
            largest = largest.max(start.saturating_sub(at));
            at = end;
        }
        largest.max(self.total.saturating_sub(at))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn extent(start: u64, len: u64) -> Extent {
        Extent::new(start, len).unwrap()
    }

    #[test]
    fn gaps_before_between_and_after() {
        let mut held = Held::new(100);
        assert_eq!((held.free(), held.largest_gap()), (100, 100));
        assert!(held.add(extent(10, 5)) && held.add(extent(50, 40)));
        assert_eq!((held.free(), held.largest_gap()), (55, 35));
        assert!(held.add(extent(15, 35)));
        assert_eq!((held.free(), held.largest_gap()), (20, 10));
        held.remove(extent(10, 5));
        assert_eq!((held.free(), held.largest_gap()), (25, 15));
    }

    #[test]
    fn an_overlap_is_told() {
        let mut held = Held::new(100);
        assert!(held.add(extent(10, 10)));
        for bad in [extent(5, 6), extent(19, 1), extent(12, 30), extent(99, 2)] {
            assert!(!held.add(bad), "{bad}");
            held.remove(bad);
        }
    }
}
