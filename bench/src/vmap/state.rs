//! [`State`]: what is free and what is held when a case begins.
//!
//! Owns both lists, from which every contestant is filled, so that all begin alike. Holes made by
//! service are those that exact first fit leaves. Units: pages. A state of n is n held blocks, but
//! for the adversary's, which is n / 2 holes.

use glebe::extent::Extent;
use glebe::free_tree::{Classes, FreeTree};

use crate::reserve::keyed::Random;

use super::case::Case;

/// Pages of the space.
pub(super) const END: u64 = 1 << 31;

#[derive(Clone, Debug)]
pub(super) struct State {
    /// Ascending.
    pub(super) free: Vec<Extent>,
    pub(super) held: Vec<Extent>,
    /// Where the last held block ends.
    pub(super) used_end: u64,
}

impl State {
    /// What `case` begins with; `aged` is [`State::aged`] of n, which most do.
    pub(super) fn of(case: Case, n: usize, aged: &Self) -> Self {
        match case {
            Case::FixSize | Case::LongBusyList => Self::packed((0..n).map(|_| (1, true))),
            Case::FullFit => Self::packed((0..2 * n).map(|i| (1, i % 2 == 0))),
            Case::BusyFrag => {
                let mut random = Random::new(n as u64);
                Self::packed((0..2 * n).map(|i| (1 + random.below(8), i % 2 == 0)))
            }
            Case::Adversary => {
                // Eight pages each, and each starts one past a multiple of eight.
                let blocks = (0..n).map(|i| (8, i % 2 == 1));
                Self::packed([(1, true)].into_iter().chain(blocks))
            }
            _ => aged.clone(),
        }
    }

    /// Blocks side by side from 0, held or not; behind them all is free.
    fn packed(blocks: impl Iterator<Item = (u64, bool)>) -> Self {
        let (mut free, mut held, mut at) = (Vec::new(), Vec::new(), 0);
        for (len, is_held) in blocks {
            let extent = Extent::new(at, len).expect("not empty");
            if is_held { &mut held } else { &mut free }.push(extent);
            at += len;
        }
        let rest = Extent::new(at, END - at).expect("room behind");
        match free.last_mut() {
            Some(last) if last.end() == at => {
                *last = Extent::new(last.start(), END - last.start()).expect("not empty");
            }
            _ => free.push(rest),
        }
        Self { free, held, used_end: at }
    }

    /// Blocks of 1 to 100 pages, of which four times as many as there are were freed and allocated
    /// again.
    pub(super) fn aged(n: usize) -> Self {
        let mut random = Random::new(n as u64);
        let span = Extent::new(0, END).expect("not empty");
        let mut tree = FreeTree::with_classes(span, 2 * n + 2, Classes::None).expect("memory");
        tree.free(span).expect("empty before");
        let mut alloc = |tree: &mut FreeTree| {
            let found = tree.alloc(1 + random.below(100), 1, None).expect("in order");
            (found.expect("room"), random.below(n as u64) as usize)
        };
        let mut held: Vec<Extent> = (0..n).map(|_| alloc(&mut tree).0).collect();
        let mut victim = 0;
        for _ in 0..4 * n {
            tree.free(held[victim]).expect("held");
            let (extent, next) = alloc(&mut tree);
            held[victim] = extent;
            victim = next;
        }
        let used_end = held.iter().map(|extent| extent.end()).max().unwrap_or(0);
        Self { free: tree.iter().collect(), held, used_end }
    }
}
