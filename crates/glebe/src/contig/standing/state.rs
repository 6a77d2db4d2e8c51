//! [`State`]: which positions of a standing pool are free. Pure arithmetic.
//!
//! Positions are base pages of the file. The tree counts in *shifted* positions: behind each border
//! between two runs a gap of one huge page is left, so that no extent of the tree spans two runs,
//! and a position keeps its place in its huge page.

use std::collections::BTreeMap;

use crate::contig::{Proof, Run};
use crate::error::OsError;
use crate::extent::Extent;
use crate::free_tree::{Classes, FreeTree};
use crate::units::Pages;

#[derive(Debug)]
pub(super) struct State {
    tree: FreeTree,
    runs: Vec<Run>,
    proof: Proof,
    /// First positions of what is held, and how long that is.
    held: BTreeMap<u64, u64>,
    /// Base pages in a huge page.
    grain: u64,
}

impl State {
    /// All of `runs` are free.
    ///
    /// # Errors
    /// If memory to keep account of them cannot be had.
    pub fn new(runs: Vec<Run>, proof: Proof, grain: Pages) -> Result<Self, OsError> {
        let grain = grain.get();
        let tree = tree_of(&runs, &BTreeMap::new(), grain)?;
        Ok(Self { tree, runs, proof, held: BTreeMap::new(), grain })
    }

    pub fn runs(&self) -> &[Run] {
        &self.runs
    }

    pub fn proof(&self) -> Proof {
        self.proof
    }

    pub fn largest(&self) -> Pages {
        Pages::new(self.tree.largest())
    }

    pub fn free_pages(&self) -> Pages {
        Pages::new(self.tree.free_len())
    }

    /// The lowest free positions of one run; `None` if no run is long enough.
    pub fn take(&mut self, pages: Pages, align: Pages) -> Option<Extent> {
        // Refused are lengths of none and alignments that are no power of two: neither is asked.
        let shifted = self.tree.alloc(pages.get(), align.get(), None).ok()??;
        let position = self.position(shifted.start());
        self.held.insert(position, shifted.len());
        Extent::new(position, shifted.len())
    }

    pub fn give_back(&mut self, pages: Extent) {
        if self.held.remove(&pages.start()).is_none() {
            return;
        }
        if let Some(shifted) = shifted(&self.runs, pages, self.grain) {
            // The tree has room for every other position, and the extent was taken from it.
            let freed = self.tree.free(shifted);
            debug_assert!(freed.is_ok(), "{freed:?}");
        }
    }

    /// Whether nobody holds any of `pages`, all of which are of runs.
    pub fn is_free(&self, pages: Extent) -> bool {
        let before = self.held.range(..pages.end()).next_back();
        before.is_none_or(|(start, len)| start + len <= pages.start())
    }

    /// Takes other runs for those there were; what is held stays so.
    ///
    /// # Panics
    /// If memory to keep account of them cannot be had.
    pub fn renew(&mut self, runs: Vec<Run>, proof: Proof) {
        let tree = tree_of(&runs, &self.held, self.grain);
        self.tree = tree.unwrap_or_else(|why| panic!("{why}"));
        (self.runs, self.proof) = (runs, proof);
    }

    /// The position in the file of one of the tree.
    fn position(&self, at: u64) -> u64 {
        let border = |(n, run): (usize, &Run)| run.pages.start() + n as u64 * self.grain;
        let (mut low, mut high) = (0, self.runs.len());
        while high - low > 1 {
            let middle = usize::midpoint(low, high);
            if border((middle, &self.runs[middle])) <= at {
                low = middle;
            } else {
                high = middle;
            }
        }
        at - low as u64 * self.grain
    }
}

/// The positions of the tree for some of the file, of one run.
fn shifted(runs: &[Run], pages: Extent, grain: u64) -> Option<Extent> {
    let run = runs.partition_point(|run| run.pages.start() <= pages.start()).checked_sub(1)?;
    Extent::new(pages.start() + run as u64 * grain, pages.len())
}

/// A tree in which all of `runs` is free but what is held.
fn tree_of(runs: &[Run], held: &BTreeMap<u64, u64>, grain: u64) -> Result<FreeTree, OsError> {
    let end = runs.last().map_or(0, |run| run.pages.end()) + runs.len() as u64 * grain;
    let span = Extent::new(0, end.max(1)).expect("not empty");
    let most = usize::try_from(end / 2 + 1).unwrap_or(usize::MAX);
    let mut tree = FreeTree::with_classes(span, most, Classes::All)?;
    for (n, run) in runs.iter().enumerate() {
        let start = run.pages.start() + n as u64 * grain;
        if let Some(extent) = Extent::new(start, run.pages.len()) {
            // Ascending, and none of them another's: nothing is refused.
            let freed = tree.free(extent);
            debug_assert!(freed.is_ok(), "{freed:?}");
        }
    }
    for (start, len) in held {
        let extent = Extent::new(*start, *len).and_then(|pages| shifted(runs, pages, grain));
        if let Some(extent) = extent {
            let taken = tree.take(extent);
            debug_assert!(taken.is_ok(), "{taken:?}");
        }
    }
    Ok(tree)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::units::Pfn;
    use proptest::prelude::*;

    const GRAIN: u64 = 8;

    fn runs(lens: &[u64]) -> Vec<Run> {
        let mut at = 0;
        lens.iter()
            .enumerate()
            .map(|(n, len)| {
                let pages = Extent::new(at, len * GRAIN).unwrap();
                at = pages.end();
                Run { pages, pfn: Some(Pfn::new(n as u64 * 1000)) }
            })
            .collect()
    }

    fn state(lens: &[u64]) -> State {
        State::new(runs(lens), Proof::Frames, Pages::new(GRAIN)).unwrap()
    }

    #[test]
    fn no_run_is_crossed_and_the_spare_stays() {
        let mut state = state(&[1, 3, 2]);
        assert_eq!(state.largest(), Pages::new(24));
        let first = state.take(Pages::new(12), Pages::new(1)).unwrap();
        assert_eq!((first.start(), first.len()), (8, 12), "the first run is too short");
        let second = state.take(Pages::new(GRAIN), Pages::new(GRAIN)).unwrap();
        assert_eq!(second.start(), 0);
        let third = state.take(Pages::new(GRAIN), Pages::new(GRAIN)).unwrap();
        assert_eq!(third.start(), 24, "behind half a huge page");
        assert_eq!(state.take(Pages::new(4), Pages::new(1)).unwrap().start(), 20, "the spare");
        assert!(state.take(Pages::new(17), Pages::new(1)).is_none());
        assert!(!state.is_free(Extent::new(19, 3).unwrap()));
        assert!(state.is_free(Extent::new(32, 16).unwrap()));
        for held in [first, second, third] {
            state.give_back(held);
        }
        assert_eq!(state.free_pages(), Pages::new(44));
        state.give_back(first);
        assert_eq!(state.free_pages(), Pages::new(44), "given back once");
    }

    #[test]
    fn other_runs_leave_what_is_held() {
        let mut state = state(&[1, 1, 1, 1]);
        let held = state.take(Pages::new(GRAIN), Pages::new(1)).unwrap();
        let mut other = runs(&[1, 3]);
        other[1].pfn = Some(Pfn::new(9));
        state.renew(other, Proof::Frames);
        assert_eq!(state.largest(), Pages::new(3 * GRAIN));
        assert!(!state.is_free(held));
        state.give_back(held);
        assert_eq!(state.free_pages(), Pages::new(4 * GRAIN));
    }

    proptest! {
        #[test]
        fn pieces_are_disjoint_and_each_in_one_run(
            lens in proptest::collection::vec(1_u64..6, 1..8),
            asked in proptest::collection::vec((1_u64..40, any::<bool>()), 1..40),
        ) {
            let mut state = state(&lens);
            let total = state.free_pages();
            let mut held: Vec<Extent> = Vec::new();
            for (pages, aligned) in asked {
                let align = Pages::new(if aligned { GRAIN } else { 1 });
                match state.take(Pages::new(pages), align) {
                    Some(piece) => {
                        prop_assert!(held.iter().all(|other| !other.overlaps(piece)));
                        let within = |run: &Run| run.pages.contains(piece);
                        prop_assert!(state.runs().iter().any(within));
                        prop_assert_eq!(piece.start() % align.get(), 0);
                        held.push(piece);
                    }
                    None if held.is_empty() => {}
                    None => state.give_back(held.swap_remove(pages as usize % held.len())),
                }
            }
            held.into_iter().for_each(|piece| state.give_back(piece));
            prop_assert_eq!(state.free_pages(), total);
        }
    }
}
