//! [`State`]: which positions of a standing pool are free. Pure arithmetic.
//!
//! Positions are base pages of the file. The tree counts in *shifted* positions: behind each border
//! between two runs a gap of one huge page is left, so that no extent of the tree spans two runs,
//! and a position keeps its place in its huge page.

use crate::contig::Run;
use crate::error::OsError;
use crate::extent::Extent;
use crate::free_tree::{Classes, FreeTree};
use crate::units::Pages;

#[derive(Debug)]
pub(super) struct State {
    tree: FreeTree,
    /// Of each run the first position, in the file and in the tree.
    starts: Vec<(u64, u64)>,
}

impl State {
    /// All of `runs` are free.
    ///
    /// # Errors
    /// If memory to keep account of them cannot be had.
    pub fn new(runs: &[Run], grain: Pages) -> Result<Self, OsError> {
        let grain = grain.get();
        let end = runs.last().map_or(0, |run| run.pages.end()) + runs.len() as u64 * grain;
        let span = Extent::new(0, end.max(1)).expect("not empty");
        let most = usize::try_from(end / 2 + 1).unwrap_or(usize::MAX);
        let tree = FreeTree::with_classes(span, most, Classes::All)?;
        let start = |(n, run): (u64, &Run)| (run.pages.start(), run.pages.start() + n * grain);
        let starts = (0..).zip(runs).map(start).collect();
        let mut state = Self { tree, starts };
        runs.iter().for_each(|run| state.give_back(run.pages));
        Ok(state)
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
        let run = self.starts.partition_point(|(_, there)| *there <= shifted.start());
        let (start, there) = self.starts[run.checked_sub(1)?];
        Extent::new(shifted.start() - (there - start), shifted.len())
    }

    /// Frees pages of one run.
    pub fn give_back(&mut self, pages: Extent) {
        let run = self.starts.partition_point(|(start, _)| *start <= pages.start());
        let run = run.checked_sub(1).map(|run| self.starts[run]);
        let shifted =
            run.map(|(start, there)| Extent::new(pages.start() + (there - start), pages.len()));
        if let Some(shifted) = shifted.flatten() {
            // The tree has room for every other position, and no position is free.
            let freed = self.tree.free(shifted);
            debug_assert!(freed.is_ok(), "{freed:?}");
        }
    }
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
        State::new(&runs(lens), Pages::new(GRAIN)).unwrap()
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
        for held in [first, second, third] {
            state.give_back(held);
        }
        assert_eq!(state.free_pages(), Pages::new(44));
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
                        prop_assert!(runs(&lens).iter().any(within));
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
