//! [`Space`]: what hands out positions, and [`Who`]: all that are compared.
//!
//! Owns nothing. Units: pages, as positions and lengths. A peer that cannot do what a case asks has
//! a row that says so.

use glebe::extent::Extent;
use glebe::free_tree::{Classes, FreeTree};

use super::case::Case;
use super::crates::{OffsetAllocator, RangeAlloc, VmAllocator};
use super::list::List;
use super::rbtree::RbTree;
use super::state::{State, END};
use super::tlsf::Rlsf;

/// Where something lies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Place {
    pub(super) start: u32,
    /// What a peer needs to have it back, beside that.
    pub(super) token: u32,
}

impl Place {
    /// At a position of the space, all of which are less than 2^32.
    pub(super) fn at(start: u64) -> Self {
        Self { start: start as u32, token: 0 }
    }
}

/// Hands out positions of a space.
pub(super) trait Space {
    /// Takes `len` positions from a multiple of `align` in the window; its lowest if that is what
    /// the peer promises.
    fn alloc(&mut self, len: u64, align: u64, within: Option<Extent>) -> Option<Place>;

    /// Gives back what was taken.
    fn free(&mut self, place: Place, len: u64);

    /// Makes free and held what is so in `state`; where the held ones are, in its order. As it is
    /// here, for a space of which nothing is free yet.
    fn fill(&mut self, state: &State) -> Vec<Place> {
        for extent in &state.free {
            self.free(Place::at(extent.start()), extent.len());
        }
        state.held.iter().map(|held| Place::at(held.start())).collect()
    }
}

/// Fills a wholly free space that takes from its front: all blocks in order, then every hole back.
pub(super) fn fill_in_order(space: &mut dyn Space, state: &State) -> Vec<Place> {
    let held = state.held.iter().copied().enumerate().map(|(nth, extent)| (extent, Some(nth)));
    let holes = state.free.iter().filter(|hole| hole.end() < END).map(|&hole| (hole, None));
    let mut all: Vec<(Extent, Option<usize>)> = held.chain(holes).collect();
    all.sort_unstable();
    let mut places = vec![Place::at(0); state.held.len()];
    let mut holes = Vec::new();
    for (extent, nth) in all {
        let place = space.alloc(extent.len(), 1, None).expect("all is free from here on");
        assert_eq!(u64::from(place.start), extent.start(), "taken from the front");
        match nth {
            Some(nth) => places[nth] = place,
            None => holes.push((place, extent.len())),
        }
    }
    for (place, len) in holes {
        space.free(place, len);
    }
    places
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
    RangeAlloc,
    OffsetAllocator,
    VmAllocator,
    Rlsf,
    /// Nothing: what the harness costs.
    Null,
}

impl Who {
    pub(super) const ALL: [Self; 10] = [
        Self::Classes,
        Self::Plain,
        Self::RbExact,
        Self::RbPadded,
        Self::List,
        Self::RangeAlloc,
        Self::OffsetAllocator,
        Self::VmAllocator,
        Self::Rlsf,
        Self::Null,
    ];

    /// The public crates.
    pub(super) const CRATES: [Self; 4] =
        [Self::RangeAlloc, Self::OffsetAllocator, Self::VmAllocator, Self::Rlsf];

    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Classes => "glebe",
            Self::Plain => "glebe without classes",
            Self::RbExact => "red-black tree",
            Self::RbPadded => "red-black tree, size+align",
            Self::List => "linked list",
            Self::RangeAlloc => "range-alloc",
            Self::OffsetAllocator => "offset-allocator",
            Self::VmAllocator => "vm-allocator",
            Self::Rlsf => "rlsf",
            Self::Null => "nothing (the harness)",
        }
    }

    /// Why there are no figures of it, if there are none.
    pub(super) fn absent(self, case: Case, log: u32) -> Option<&'static str> {
        if !Self::CRATES.contains(&self) {
            return None;
        }
        match (self, case) {
            (_, Case::Window) => Some("not applicable: no windows"),
            (Self::Rlsf, Case::AlignShift) => Some("not applicable: positions are addresses"),
            (Self::OffsetAllocator, _) => None,
            (Self::Rlsf, _) if log > 5 => {
                Some("left out: would need gigabytes to write headers in")
            }
            _ if log > 5 => Some("left out: minutes to fill, and more than 10 ms a request"),
            _ => None,
        }
    }

    /// The space below [`END`] as `state` has it, and where the held blocks are.
    pub(super) fn space(self, state: &State) -> (Box<dyn Space>, Vec<Place>) {
        let span = Extent::new(0, END).expect("a space is not empty");
        let most = state.free.len() + 2 * state.held.len() + 16;
        let mut space: Box<dyn Space> = match self {
            Self::Classes => Box::new(FreeTree::new(span, most)),
            Self::Plain => Box::new(FreeTree::with_classes(span, most, Classes::NONE)),
            Self::RbExact => Box::new(RbTree::new(most, false)),
            Self::RbPadded => Box::new(RbTree::new(most, true)),
            Self::List => Box::new(List::new()),
            Self::RangeAlloc => Box::new(RangeAlloc::new()),
            Self::OffsetAllocator => Box::new(OffsetAllocator::new(most)),
            Self::VmAllocator => Box::new(VmAllocator::new()),
            Self::Rlsf => Box::new(Rlsf::new(state.used_end)),
            Self::Null => Box::new(Null),
        };
        let places = space.fill(state);
        (space, places)
    }
}

struct Null;

impl Space for Null {
    fn alloc(&mut self, _: u64, _: u64, _: Option<Extent>) -> Option<Place> {
        Some(Place::at(0))
    }

    fn free(&mut self, _: Place, _: u64) {}
}

impl Space for FreeTree {
    fn alloc(&mut self, len: u64, align: u64, within: Option<Extent>) -> Option<Place> {
        let found = FreeTree::alloc(self, len, align, within).expect("a request in order");
        found.map(|extent| Place::at(extent.start()))
    }

    fn free(&mut self, place: Place, len: u64) {
        let extent = Extent::new(place.start.into(), len).expect("taken before");
        FreeTree::free(self, extent).expect("taken before");
    }
}
