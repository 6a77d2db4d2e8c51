//! [`Space`]: what hands out positions, and [`Who`]: all that are compared.
//!
//! Owns nothing. Units: pages, as positions and lengths. A peer that cannot do what a case asks has
//! a row that says so.

use glebe::extent::Extent;
use glebe::free_tree::{Classes, FreeTree};
use vm_allocator::{AddressAllocator, AllocPolicy, RangeInclusive};

use super::case::Case;
use super::list::List;
use super::rbtree::RbTree;
use super::state::{State, END};

/// Hands out positions of a space, all of which are less than 2^32.
pub(super) trait Space {
    /// Takes `len` positions from a multiple of `align` in the window, the lowest.
    fn alloc(&mut self, len: u64, align: u64, within: Option<Extent>) -> Option<u32>;

    /// Gives back what was taken.
    fn free(&mut self, start: u32, len: u64);

    /// Makes free what is so in `state`, and held the rest. As it is here, for a space of which
    /// nothing is free yet.
    fn fill(&mut self, state: &State) {
        for extent in &state.free {
            self.free(extent.start() as u32, extent.len());
        }
    }
}

/// A contestant.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Who {
    /// Free tree with every class of alignments: as the reserve has it.
    Classes,
    /// Free tree without.
    Plain,
    /// Red-black tree.
    RbTree,
    /// Linked list.
    List,
    /// The public crate that promises the lowest place and knows alignments.
    VmAllocator,
    /// Nothing: what the harness costs.
    Null,
}

impl Who {
    pub(super) const ALL: [Self; 6] =
        [Self::Classes, Self::Plain, Self::RbTree, Self::List, Self::VmAllocator, Self::Null];

    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Classes => "glebe",
            Self::Plain => "glebe without classes",
            Self::RbTree => "red-black tree",
            Self::List => "linked list",
            Self::VmAllocator => "vm-allocator",
            Self::Null => "nothing (the harness)",
        }
    }

    /// Why there are no figures of it, if there are none.
    pub(super) fn absent(self, case: Case, log: u32) -> Option<&'static str> {
        match (self, case) {
            (Self::VmAllocator, Case::Window) => Some("not applicable: no windows"),
            (Self::VmAllocator, _) if log > 5 => {
                Some("left out: minutes to fill, and more than 10 ms a request")
            }
            _ => None,
        }
    }

    /// The space below [`END`] as `state` has it.
    pub(super) fn space(self, state: &State) -> Box<dyn Space> {
        let span = Extent::new(0, END).expect("a space is not empty");
        let most = state.free.len() + 2 * state.held.len() + 16;
        let mut space: Box<dyn Space> = match self {
            Self::Classes => Box::new(FreeTree::new(span, most)),
            Self::Plain => {
                Box::new(FreeTree::with_classes(span, most, Classes::None).expect("memory"))
            }
            Self::RbTree => Box::new(RbTree::new(most)),
            Self::List => Box::new(List::new()),
            Self::VmAllocator => Box::new(VmAllocator::new()),
            Self::Null => Box::new(Null),
        };
        space.fill(state);
        space
    }
}

struct Null;

impl Space for Null {
    fn alloc(&mut self, _: u64, _: u64, _: Option<Extent>) -> Option<u32> {
        Some(0)
    }

    fn free(&mut self, _: u32, _: u64) {}
}

impl Space for FreeTree {
    fn alloc(&mut self, len: u64, align: u64, within: Option<Extent>) -> Option<u32> {
        let found = FreeTree::alloc(self, len, align, within).expect("a request in order");
        found.map(|extent| extent.start() as u32)
    }

    fn free(&mut self, start: u32, len: u64) {
        let extent = Extent::new(start.into(), len).expect("taken before");
        FreeTree::free(self, extent).expect("taken before");
    }
}

/// A balanced tree of free and held ranges, searched from its first on: the lowest fit, O(n). It is
/// given bytes, since free blocks of one unit never become one there.
struct VmAllocator(AddressAllocator);

impl VmAllocator {
    /// Logarithm of the bytes of a page.
    const PAGE_LOG: u64 = 12;

    fn new() -> Self {
        let all = AddressAllocator::new(0, END << Self::PAGE_LOG);
        Self(all.expect("a space that is not empty"))
    }

    fn take(&mut self, len: u64, align: u64, policy: AllocPolicy) -> Option<u64> {
        let [len, align] = [len, align].map(|pages| pages << Self::PAGE_LOG);
        self.0.allocate(len, align, policy).ok().map(|range| range.start())
    }
}

impl Space for VmAllocator {
    fn alloc(&mut self, len: u64, align: u64, _: Option<Extent>) -> Option<u32> {
        let start = self.take(len, align, AllocPolicy::FirstMatch)?;
        Some((start >> Self::PAGE_LOG) as u32)
    }

    fn free(&mut self, start: u32, len: u64) {
        let start = u64::from(start) << Self::PAGE_LOG;
        let range = RangeInclusive::new(start, start + (len << Self::PAGE_LOG) - 1);
        self.0.free(&range.expect("in order")).expect("taken before");
    }

    fn fill(&mut self, state: &State) {
        for held in &state.held {
            let policy = AllocPolicy::ExactMatch(held.start() << Self::PAGE_LOG);
            self.take(held.len(), 1, policy).expect("free");
        }
    }
}
