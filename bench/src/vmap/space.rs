//! [`Space`]: what hands out positions, and [`Who`]: all that are compared.
//!
//! Owns nothing. Units: pages, as positions and lengths. A peer that cannot do what a case asks has
//! a row that says so.

use glebe::extent::Extent;
use glebe::free_tree::{Classes, FreeTree};

use super::list::List;
use super::rbtree::RbTree;

/// Hands out positions of a space of which nothing is free at first.
pub(super) trait Space {
    /// Takes `len` positions from a multiple of `align` in the window; its lowest if that is what
    /// the peer promises.
    fn alloc(&mut self, len: u64, align: u64, within: Option<Extent>) -> Option<u64>;
    /// Gives back what was taken, or what was not free at first.
    fn free(&mut self, start: u64, len: u64);
}

/// A contestant.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Who {
    /// Free tree with every class of alignments: as the reserve has it.
    Classes,
    /// Free tree without.
    Plain,
    /// Red-black tree, exact.
    RbExact,
    /// Red-black tree that looks for length and alignment together.
    RbPadded,
    /// Linked list.
    List,
}

impl Who {
    pub(super) const ALL: [Self; 5] =
        [Self::Classes, Self::Plain, Self::RbExact, Self::RbPadded, Self::List];

    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Classes => "glebe",
            Self::Plain => "glebe without classes",
            Self::RbExact => "red-black tree",
            Self::RbPadded => "red-black tree, size+align",
            Self::List => "linked list",
        }
    }

    /// The space below `end` with the given extents free, which ascend, for `most` of them.
    pub(super) fn space(self, end: u64, most: usize, free: &[Extent]) -> Box<dyn Space> {
        let span = Extent::new(0, end).expect("a space is not empty");
        let mut space: Box<dyn Space> = match self {
            Self::Classes => Box::new(FreeTree::new(span, most)),
            Self::Plain => Box::new(FreeTree::with_classes(span, most, Classes::NONE)),
            Self::RbExact => Box::new(RbTree::new(false)),
            Self::RbPadded => Box::new(RbTree::new(true)),
            Self::List => Box::new(List::new()),
        };
        for extent in free {
            space.free(extent.start(), extent.len());
        }
        space
    }
}

impl Space for FreeTree {
    fn alloc(&mut self, len: u64, align: u64, within: Option<Extent>) -> Option<u64> {
        FreeTree::alloc(self, len, align, within).expect("a request in order").map(Extent::start)
    }

    fn free(&mut self, start: u64, len: u64) {
        let extent = Extent::new(start, len).expect("taken before");
        FreeTree::free(self, extent).expect("taken before");
    }
}
