//! Searches [`Positions`] on the caller's NUMA node first.
//!
//! A *stretch* is a range of positions on one node. Positions without memory, and pages whose node
//! is not told, belong to the stretch before them. Cost: a search for each stretch of the node, at
//! most [`STRETCHES_MAX`].

use super::{Positions, Run, Search, COST_OF_WAITING};
use glebe_os::extent::Extent;

/// Most stretches of a node that a search looks at; the longest are kept.
const STRETCHES_MAX: usize = 64;

/// A stretch in the flat tree and in the physical tree.
#[derive(Clone, Copy, Debug)]
pub(super) struct Stretch {
    flat: Extent,
    physical: Extent,
}

impl Stretch {
    fn within(&self, flat: bool) -> Extent {
        if flat {
            self.flat
        } else {
            self.physical
        }
    }
}

impl Positions {
    /// Sets the nodes of the pages as slots below `slots`, in order of position. No pages, or no
    /// slots, mean that nodes make no difference.
    pub(crate) fn on_nodes(mut self, pages: &[(Extent, usize)], slots: usize) -> Self {
        self.nodes = vec![Vec::new(); slots];
        for (flat, slot) in stretches(pages, self.costs.len() as u64 * self.granule_pages) {
            let physical = in_physical(&self.runs, flat);
            self.nodes[slot].extend(physical.map(|physical| Stretch { flat, physical }));
        }
        for all in &mut self.nodes {
            all.sort_by_key(|stretch| std::cmp::Reverse(stretch.flat.len()));
            all.truncate(STRETCHES_MAX);
            all.sort_by_key(|stretch| stretch.flat.start());
        }
        self
    }

    /// Returns the place of `search` on the node that it prefers.
    #[inline]
    pub(super) fn near(&mut self, search: &Search, flat: bool) -> Option<Extent> {
        search.near.and_then(|slot| self.near_on(slot, search, flat))
    }

    #[inline(never)]
    fn near_on(&mut self, slot: usize, search: &Search, flat: bool) -> Option<Extent> {
        let mut best: Option<(u64, Extent)> = None;
        for nth in 0..self.nodes.get(slot)?.len() {
            let within = self.nodes[slot][nth].within(flat);
            let Some(place) = self.choose(search, flat, Some(within)) else { continue };
            let price = if search.by_cost { self.price(place, flat) } else { 0 };
            if best.is_none_or(|(least, _)| price < least) {
                best = Some((price, place));
            }
            if price == 0 {
                break;
            }
        }
        best.filter(|(price, _)| *price < COST_OF_WAITING).map(|(_, place)| place)
    }

    /// Returns the lowest free page on a node, and the stretch that it is in.
    pub(super) fn lowest_on(&self, slot: usize, flat: bool) -> Option<(Extent, Option<Extent>)> {
        let tree = self.searched(flat);
        self.nodes.get(slot)?.iter().find_map(|stretch| {
            let within = Some(stretch.within(flat));
            Some((tree.find(1, 1, within).ok()??, within))
        })
    }
}

/// Joins neighbours on one node, and fills the gaps up to `end`.
fn stretches(pages: &[(Extent, usize)], end: u64) -> Vec<(Extent, usize)> {
    let mut starts: Vec<(u64, usize)> = Vec::new();
    for (extent, slot) in pages {
        if starts.last().is_none_or(|(_, last)| last != slot) {
            let start = if starts.is_empty() { 0 } else { extent.start() };
            starts.push((start, *slot));
        }
    }
    let ends = starts.iter().skip(1).map(|(start, _)| *start).chain([end]);
    let all = starts.iter().zip(ends);
    all.filter_map(|((start, slot), end)| {
        Some((Extent::new(*start, end.checked_sub(*start)?)?, *slot))
    })
    .collect()
}

/// Returns the place of the pages with memory in the physical tree, where runs are in the order of
/// their pages; `None` if no page has memory.
fn in_physical(runs: &[Run], pages: Extent) -> Option<Extent> {
    let first = runs.get(runs.partition_point(|run| run.pages.end() <= pages.start()))?;
    let behind = runs.partition_point(|run| run.pages.start() < pages.end());
    let last = runs[behind.checked_sub(1)?];
    let start = first.base + pages.start().saturating_sub(first.pages.start());
    let end = last.base + (pages.end().min(last.pages.end()) - last.pages.start());
    Extent::new(start, end.checked_sub(start)?)
}
