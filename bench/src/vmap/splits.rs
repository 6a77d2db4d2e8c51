//! [`Splits`]: how what is allocated lies in the free extent that it is taken from.
//!
//! Owns nothing. The four fits of "improve vmap allocation" (Linux 2019): the whole extent (FL),
//! its left edge (LE), its right edge (RE), or neither (NE), which splits it in two.

use glebe::extent::Extent;
use glebe::free_tree::{Classes, FreeTree};

use super::case::{Case, Held, Request};
use super::space::{Place, Space};
use super::state::{State, END};

/// Names, in the order of the counts.
pub(super) const NAMES: [&str; 4] = ["FL", "LE", "RE", "NE"];

/// A free tree that counts the fits.
struct Splits {
    tree: FreeTree,
    counts: [u64; 4],
}

impl Space for Splits {
    fn alloc(&mut self, len: u64, align: u64, within: Option<Extent>) -> Option<Place> {
        let found = self.tree.find(len, align, within).expect("a request in order")?;
        let whole = self.tree.containing(found.start()).expect("found free");
        let fit = match (found.start() == whole.start(), found.end() == whole.end()) {
            (true, true) => 0,
            (true, false) => 1,
            (false, true) => 2,
            (false, false) => 3,
        };
        self.counts[fit] += 1;
        self.tree.take(found).expect("found free");
        Some(Place::at(found.start()))
    }

    fn free(&mut self, place: Place, len: u64) {
        Space::free(&mut self.tree, place, len);
    }
}

/// How often the answers to `requests` were of each fit.
pub(super) fn count(case: Case, state: &State, requests: &[Request]) -> [u64; 4] {
    let span = Extent::new(0, END).expect("a space is not empty");
    let most = state.free.len() + 2 * state.held.len() + 16;
    let tree = FreeTree::with_classes(span, most, Classes::ALL);
    let mut space = Splits { tree, counts: [0; 4] };
    let mut held = Held::all(state, &space.fill(state));
    case.serve(&mut space, &mut held, requests, |_| ());
    space.counts
}
