//! Public crates that hand out positions, each as a [`Space`].
//!
//! None has windows. `range-alloc` gives the best fit, `offset-allocator` a good one in O(1), and
//! neither promises the lowest; `vm-allocator` does. Units: pages; `vm-allocator` is given bytes,
//! since free blocks of one unit never become one there.

use glebe::extent::Extent;
use vm_allocator::{AddressAllocator, AllocPolicy, RangeInclusive};

use super::space::{fill_in_order, Place, Space};
use super::state::{State, END};

/// A vector of free ranges in order, best fit; O(n).
pub(super) struct RangeAlloc(range_alloc::RangeAllocator<u64>);

impl RangeAlloc {
    pub(super) fn new() -> Self {
        Self(range_alloc::RangeAllocator::new(0..END))
    }
}

impl Space for RangeAlloc {
    fn alloc(&mut self, len: u64, align: u64, _: Option<Extent>) -> Option<Place> {
        let found = match align {
            1 => self.0.allocate_range(len),
            _ => self.0.allocate_range_aligned(len, align),
        };
        found.ok().map(|range| Place::at(range.start))
    }

    fn free(&mut self, place: Place, len: u64) {
        let start = u64::from(place.start);
        self.0.free_range(start..start + len);
    }

    fn fill(&mut self, state: &State) -> Vec<Place> {
        fill_in_order(self, state)
    }
}

/// Bins of sizes, O(1). It knows no alignments: one is asked for by so much more length.
pub(super) struct OffsetAllocator {
    allocator: offset_allocator::Allocator,
    /// What it wants back, by [`Place::token`].
    given: Vec<Option<offset_allocator::Allocation>>,
    spare: Vec<u32>,
}

impl OffsetAllocator {
    /// For so many blocks at once.
    pub(super) fn new(most: usize) -> Self {
        let most = u32::try_from(most).expect("fewer than 2^32 blocks");
        let allocator = offset_allocator::Allocator::with_max_allocs(END as u32, most);
        Self { allocator, given: Vec::new(), spare: Vec::new() }
    }
}

impl Space for OffsetAllocator {
    fn alloc(&mut self, len: u64, align: u64, _: Option<Extent>) -> Option<Place> {
        let padded = u32::try_from(len.checked_add(align - 1)?).ok()?;
        let given = self.allocator.allocate(padded)?;
        let token = self.spare.pop().unwrap_or_else(|| {
            self.given.push(None);
            (self.given.len() - 1) as u32
        });
        self.given[token as usize] = Some(given);
        let start = u64::from(given.offset).next_multiple_of(align);
        Some(Place { token, ..Place::at(start) })
    }

    fn free(&mut self, place: Place, _: u64) {
        let given = self.given[place.token as usize].take().expect("given before");
        self.allocator.free(given);
        self.spare.push(place.token);
    }

    fn fill(&mut self, state: &State) -> Vec<Place> {
        fill_in_order(self, state)
    }
}

/// A balanced tree of free and held ranges, searched from its first on: the lowest fit, O(n).
pub(super) struct VmAllocator(AddressAllocator);

impl VmAllocator {
    /// Logarithm of the bytes of a page.
    const PAGE_LOG: u64 = 12;

    pub(super) fn new() -> Self {
        let all = AddressAllocator::new(0, END << Self::PAGE_LOG);
        Self(all.expect("a space that is not empty"))
    }

    fn take(&mut self, len: u64, align: u64, policy: AllocPolicy) -> Option<u64> {
        let [len, align] = [len, align].map(|pages| pages << Self::PAGE_LOG);
        self.0.allocate(len, align, policy).ok().map(|range| range.start())
    }
}

impl Space for VmAllocator {
    fn alloc(&mut self, len: u64, align: u64, _: Option<Extent>) -> Option<Place> {
        let start = self.take(len, align, AllocPolicy::FirstMatch)?;
        Some(Place::at(start >> Self::PAGE_LOG))
    }

    fn free(&mut self, place: Place, len: u64) {
        let start = u64::from(place.start) << Self::PAGE_LOG;
        let range = RangeInclusive::new(start, start + (len << Self::PAGE_LOG) - 1);
        self.0.free(&range.expect("in order")).expect("taken before");
    }

    fn fill(&mut self, state: &State) -> Vec<Place> {
        let mut places = Vec::with_capacity(state.held.len());
        for held in &state.held {
            let start = held.start() << Self::PAGE_LOG;
            self.take(held.len(), 1, AllocPolicy::ExactMatch(start)).expect("free");
            places.push(Place::at(held.start()));
        }
        places
    }
}
