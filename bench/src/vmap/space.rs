//! [`Space`] allocates positions. [`SpaceKind`] lists the compared allocators.
//!
//! Units: pages, for positions and lengths.

use glebe::extent::Extent;
use glebe::free_tree::{Classes, FreeTree};
use vm_allocator::{AddressAllocator, AllocPolicy, RangeInclusive};

use super::case::{State, END, PAGE_LOG};
use super::list::List;
use super::rbtree::RbTree;

/// An allocator of positions below 2^32.
pub(super) trait Space {
    /// Takes the lowest `len` positions from a multiple of `align`.
    fn alloc(&mut self, len: u64, align: u64) -> Option<u32>;

    fn free(&mut self, start: u32, len: u64);
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum SpaceKind {
    /// Free tree with every class of alignments, like the reserve's.
    Classes,
    Plain,
    RbTree,
    List,
    /// The public crate that promises the lowest place and supports alignments.
    VmAllocator,
    /// No allocator, which shows the cost of the harness.
    Nobody,
}

impl SpaceKind {
    pub(super) const ALL: [Self; 6] =
        [Self::Classes, Self::Plain, Self::RbTree, Self::List, Self::VmAllocator, Self::Nobody];

    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Classes => "glebe",
            Self::Plain => "glebe without classes",
            Self::RbTree => "red-black tree",
            Self::List => "linked list",
            Self::VmAllocator => "vm-allocator",
            Self::Nobody => "nothing (the harness)",
        }
    }

    pub(super) fn absent(self, log: u32) -> Option<&'static str> {
        let is_slow = self == Self::VmAllocator && log > 5;
        is_slow.then_some("left out: minutes to fill, and more than 10 ms a request")
    }

    pub(super) fn space(self, state: &State) -> Box<dyn Space> {
        let span = Extent::new(0, END).expect("not empty");
        let most = state.free.len() + 2 * state.held.len() + 16;
        let tree = |classes| FreeTree::with_classes(span, most, classes).expect("memory");
        let mut space: Box<dyn Space> = match self {
            Self::Classes => Box::new(tree(Classes::All)),
            Self::Plain => Box::new(tree(Classes::None)),
            Self::RbTree => Box::new(RbTree::new(most)),
            Self::List => Box::new(List::new()),
            Self::VmAllocator => return Box::new(VmAllocator::new(state)),
            Self::Nobody => Box::new(Nobody),
        };
        for extent in &state.free {
            space.free(extent.start() as u32, extent.len());
        }
        space
    }
}

struct Nobody;

impl Space for Nobody {
    fn alloc(&mut self, _: u64, _: u64) -> Option<u32> {
        Some(0)
    }

    fn free(&mut self, _: u32, _: u64) {}
}

impl Space for FreeTree {
    fn alloc(&mut self, len: u64, align: u64) -> Option<u32> {
        let found = FreeTree::alloc(self, len, align, None).expect("a request in order");
        found.map(|extent| extent.start() as u32)
    }

    fn free(&mut self, start: u32, len: u64) {
        let extent = Extent::new(start.into(), len).expect("taken before");
        FreeTree::free(self, extent).expect("taken before");
    }
}

/// A balanced tree of free and held ranges, searched from the first: lowest fit, O(n). Converts
/// pages to bytes, because the crate never merges free blocks of length 1.
struct VmAllocator(AddressAllocator);

impl VmAllocator {
    fn new(state: &State) -> Self {
        let all = AddressAllocator::new(0, END << PAGE_LOG);
        let mut this = Self(all.expect("a space that is not empty"));
        for held in &state.held {
            let policy = AllocPolicy::ExactMatch(held.start() << PAGE_LOG);
            this.take(held.len(), 1, policy).expect("free");
        }
        this
    }

    fn take(&mut self, len: u64, align: u64, policy: AllocPolicy) -> Option<u32> {
        let found = self.0.allocate(len << PAGE_LOG, align << PAGE_LOG, policy);
        found.ok().map(|range| (range.start() >> PAGE_LOG) as u32)
    }
}

impl Space for VmAllocator {
    fn alloc(&mut self, len: u64, align: u64) -> Option<u32> {
        self.take(len, align, AllocPolicy::FirstMatch)
    }

    fn free(&mut self, start: u32, len: u64) {
        let start = u64::from(start) << PAGE_LOG;
        let range = RangeInclusive::new(start, start + (len << PAGE_LOG) - 1);
        self.0.free(&range.expect("in order")).expect("taken before");
    }
}
