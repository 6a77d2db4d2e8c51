//! [`Positions`] has the pages that are free for first class, and their physical runs.
//!
//! In the *physical* free tree, positions are congruent to frames modulo [`ALIGN_PAGES`], with a
//! hole between runs of adjacent frames. So an extent there is contiguous, and aligned like its
//! frames. The *flat* tree counts pages from the mapping's start, for requests that accept any
//! pages. It exists only if there are several runs. If frames are hidden, a run is a grain that the
//! kernel keeps contiguous.
//!
//! A block takes the lowest place that fits, or a cheaper place if granules have costs (copies to
//! wait for, pages to zero). If the pages are on several NUMA nodes, places on the caller's node
//! ([`nodes`]) come first.
//!
//! Cost: O(log n) a call; with costs also a step a granule, and a search for each extent or granule
//! that may be cheaper. On several nodes also a search for each stretch of the caller's node.

mod nodes;
pub(crate) mod resize;

use std::ops::{Range, RangeInclusive};

use self::nodes::Stretch;
use crate::contig::{self, Contig, Proof};
use crate::free_tree::{Classes, FreeTree};
use glebe_os::error::OsError;
use glebe_os::extent::Extent;
use glebe_os::internal::mapping::Bricks;
use glebe_os::internal::sys::page_size;

/// 1 GiB in base pages of 4 KiB.
const ALIGN_PAGES: u64 = 1 << 18;

/// `pages` of the mapping are at `base` in the physical tree.
#[derive(Clone, Copy, Debug)]
struct Run {
    base: u64,
    pages: Extent,
    /// Frame of the first page (page number if frames are hidden), for alignments.
    first: u64,
}

#[derive(Clone, Copy, Debug)]
pub(crate) struct Search {
    pub(crate) len: u64,
    pub(crate) align: u64,
    pub(crate) any: bool,
    pub(crate) by_cost: bool,
    /// Slot of the node to search first.
    pub(crate) near: Option<usize>,
}

/// A granule of this cost or more is to be avoided, even if that leads to another node. Exceeds all
/// smaller costs of a block together.
pub(crate) const COST_OF_WAITING: u64 = 1 << 32;

#[derive(Debug)]
pub(crate) struct Positions {
    tree: FreeTree,
    runs: Vec<Run>,
    flat: Option<FreeTree>,
    /// True if no two pages are known to be contiguous.
    single: bool,
    grain: Option<u64>,
    granule_pages: u64,
    costs: Vec<u64>,
    sums: Vec<u64>,
    /// Stretches of the nodes, by slot; empty if nodes make no difference.
    nodes: Vec<Vec<Stretch>>,
}

impl Positions {
    pub(crate) fn new(contig: &Contig, pages: u64, granule_pages: u64) -> Result<Self, OsError> {
        let present = Extent::new(0, contig.len().pages_down(page_size()).get());
        let present = present.expect("memory is not empty");
        let brick = contig::internal::bricks(contig).map(Bricks::size);
        let known = resize::runs_of_bricks(resize::filled(contig.runs(), &[present]), brick);
        let mut made = Self::none_free(&known, contig.proof(), pages, granule_pages)?;
        made.free(present);
        Ok(made)
    }

    #[cfg(test)]
    fn of_runs(known: &[contig::Run], pages: u64, granule_pages: u64) -> Result<Self, OsError> {
        let mut made = Self::none_free(known, Proof::Frames, pages, granule_pages)?;
        made.free(Extent::new(0, pages).expect("not empty"));
        Ok(made)
    }

    /// Returns positions that are all taken. If `known` is empty, all pages form one run.
    pub(crate) fn none_free(
        known: &[contig::Run],
        proof: Proof,
        pages: u64,
        granule_pages: u64,
    ) -> Result<Self, OsError> {
        let all = Extent::new(0, pages).expect("a reserve is not empty");
        let mut runs = Vec::new();
        let mut next = 0;
        for run in known {
            let first = run.pfn.map_or(run.pages.start(), |pfn| pfn.get());
            let base = next / ALIGN_PAGES * ALIGN_PAGES + first % ALIGN_PAGES;
            let base = if base < next { base + ALIGN_PAGES } else { base };
            runs.push(Run { base, pages: run.pages, first });
            next = base + run.pages.len() + 1;
        }
        let single = runs.is_empty();
        if single {
            runs.push(Run { base: 0, pages: all, first: 0 });
            next = pages + 1;
        }
        let nodes = usize::try_from(pages).unwrap_or(usize::MAX);
        let span = Extent::new(0, next).expect("not empty");
        let tree = FreeTree::with_classes(span, nodes, Classes::All)?;
        let differ = runs.len() > 1;
        let flat = differ.then(|| FreeTree::with_classes(all, nodes, Classes::All));
        let grain = match proof {
            Proof::Frames => None,
            Proof::Within(grain) => Some(grain.get()),
        };
        let flat = flat.transpose()?;
        let granules = pages.div_ceil(granule_pages) as usize;
        let (costs, sums) = (vec![0; granules], Vec::with_capacity(granules + 1));
        let nodes = Vec::new();
        Ok(Self { tree, runs, flat, single, grain, granule_pages, costs, sums, nodes })
    }

    pub(crate) fn largest(&self) -> u64 {
        if self.single {
            self.tree.largest().min(1)
        } else {
            self.tree.largest()
        }
    }

    pub(crate) fn free_len(&self) -> u64 {
        self.tree.free_len()
    }

    pub(crate) fn largest_any(&self) -> u64 {
        self.flat.as_ref().map_or_else(|| self.tree.largest(), FreeTree::largest)
    }

    /// Returns the first page, below `align`, where [`Search::any`] places blocks that are aligned
    /// to `align` pages.
    #[cfg(any(feature = "cuda", test))]
    pub(crate) fn first_aligned(&self, align: u64) -> u64 {
        match self.runs.first().filter(|_| self.flat.is_none()) {
            Some(run) => (run.pages.start() % align + align - run.first % align) % align,
            None => 0,
        }
    }

    pub(crate) fn is_contiguous(&self, pages: Extent) -> bool {
        pages.len() == 1 || !self.single && self.run_of(pages.start()).pages.contains(pages)
    }

    fn run_of(&self, page: u64) -> Run {
        self.runs[self.runs.partition_point(|run| run.pages.end() <= page)]
    }

    fn page_at(&self, position: u64) -> u64 {
        let run = self.run_at(position);
        run.pages.start() + (position - run.base)
    }

    fn run_at(&self, position: u64) -> Run {
        self.runs[self.runs.partition_point(|run| run.base <= position) - 1]
    }

    /// Returns the granules' costs, for the caller to set before each search with
    /// [`Search::by_cost`]. A cost above 0 lets searches skip a granule without memory.
    pub(crate) fn costs(&mut self) -> &mut [u64] {
        &mut self.costs
    }

    pub(crate) fn take(&mut self, search: &Search) -> Option<Extent> {
        let Search { len, align, any, by_cost, .. } = *search;
        let flat = any && self.flat.is_some();
        if !any && len > self.largest() {
            return None;
        }
        let near = self.near(search, flat);
        if near.is_some() || by_cost || align > ALIGN_PAGES && !flat {
            let place = near.or_else(|| self.choose(search, flat, None))?;
            let pages = Extent::new(self.pages_of(place, flat).start, len)?;
            self.claim(pages);
            return Some(pages);
        }
        let tree = self.flat.as_mut().filter(|_| flat).unwrap_or(&mut self.tree);
        let place = tree.alloc(len, align, None).ok()??;
        let pages = Extent::new(self.pages_of(place, flat).start, len)?;
        match flat {
            true => self.claim_physical(pages),
            false => self.claim_flat(pages),
        }
        Some(pages)
    }

    /// Takes the lowest free page and the free pages directly behind it in its chunk, even if their
    /// frames are not adjacent. With a slot, takes pages of this node only.
    pub(crate) fn take_in_chunk(&mut self, chunk: u64, slot: Option<usize>) -> Option<Extent> {
        let flat = self.flat.is_some();
        let tree = self.searched(flat);
        let (place, within) = match slot {
            None => (tree.find(1, 1, None).ok()??, None),
            Some(slot) => self.lowest_on(slot, flat)?,
        };
        let free = tree.containing(place.start())?;
        let end = within.map_or(free.end(), |within| within.end().min(free.end()));
        let page = self.pages_of(place, flat).start;
        let in_chunk = chunk - page % chunk;
        let pages = Extent::new(page, in_chunk.min(end - place.start()))?;
        self.claim(pages);
        Some(pages)
    }

    fn searched(&self, flat: bool) -> &FreeTree {
        self.flat.as_ref().filter(|_| flat).unwrap_or(&self.tree)
    }

    fn choose(&mut self, search: &Search, flat: bool, within: Option<Extent>) -> Option<Extent> {
        let (len, align) = (search.len, search.align);
        if align > ALIGN_PAGES && !flat {
            return self.choose_far_aligned(search, within);
        }
        let lowest = self.searched(flat).find(len, align, within).ok()??;
        if !search.by_cost || self.price(lowest, flat) == 0 {
            return Some(lowest);
        }
        Some(match len < self.granule_pages {
            true => self.cheap_small(lowest, align, flat, within),
            false => self.cheapest(lowest, align, flat, within),
        })
    }

    fn choose_far_aligned(&self, search: &Search, within: Option<Extent>) -> Option<Extent> {
        let mut best: Option<(u64, Extent)> = None;
        let (mut from, end) = within.map_or((0, u64::MAX), |within| (within.start(), within.end()));
        while let Some(rest) = end.checked_sub(from).and_then(|len| Extent::new(from, len)) {
            let Ok(Some(place)) = self.tree.find(search.len, ALIGN_PAGES, Some(rest)) else {
                break;
            };
            from = place.start() + ALIGN_PAGES;
            let run = self.run_at(place.start());
            if (run.first + (place.start() - run.base)) % search.align != 0 {
                continue;
            }
            let price = if search.by_cost { self.price(place, false) } else { 0 };
            if best.is_none_or(|(best, _)| price < best) {
                best = Some((price, place));
            }
            if price == 0 {
                break;
            }
        }
        best.map(|(_, place)| place)
    }

    fn granules_of(&self, place: Extent, flat: bool) -> RangeInclusive<usize> {
        let pages = self.pages_of(place, flat);
        let of = |page: u64| (page / self.granule_pages) as usize;
        of(pages.start)..=of(pages.end - 1)
    }

    fn price(&self, place: Extent, flat: bool) -> u64 {
        self.costs[self.granules_of(place, flat)].iter().sum()
    }

    fn claim(&mut self, pages: Extent) {
        self.claim_physical(pages);
        self.claim_flat(pages);
    }

    fn claim_physical(&mut self, pages: Extent) {
        self.each_run(pages, |tree, part| tree.take(part).expect("free in both trees"));
    }

    fn claim_flat(&mut self, pages: Extent) {
        if let Some(flat) = &mut self.flat {
            flat.take(pages).expect("free in both trees");
        }
    }

    pub(crate) fn free(&mut self, pages: Extent) {
        self.each_run(pages, |tree, part| tree.free(part).expect("was taken"));
        if let Some(flat) = &mut self.flat {
            flat.free(pages).expect("was taken");
        }
    }

    fn each_run(&mut self, pages: Extent, mut change: impl FnMut(&mut FreeTree, Extent)) {
        let mut at = pages.start();
        while at < pages.end() {
            let run = self.run_of(at);
            let end = pages.end().min(run.pages.end());
            let base = run.base + (at - run.pages.start());
            change(&mut self.tree, Extent::new(base, end - at).expect("not empty"));
            at = end;
        }
    }

    fn pages_of(&self, extent: Extent, flat: bool) -> Range<u64> {
        let start = if flat { extent.start() } else { self.page_at(extent.start()) };
        start..start + extent.len()
    }

    fn cheap_small(
        &self,
        lowest: Extent,
        align: u64,
        flat: bool,
        within: Option<Extent>,
    ) -> Extent {
        let tree = self.searched(flat);
        for (granule, _) in self.costs.iter().enumerate().filter(|(_, cost)| **cost == 0) {
            let first = granule as u64 * self.granule_pages;
            // Skips a granule that is being added, whose run is not yet known.
            let Some(base) = self.position_of(first, flat) else { continue };
            let granule = Extent::new(base, self.granule_pages);
            let part =
                granule.and_then(|all| within.map_or(granule, |in_it| all.intersection(in_it)));
            let Some(part) = part else { continue };
            if let Ok(Some(found)) = tree.find(lowest.len(), align, Some(part)) {
                return found;
            }
        }
        lowest
    }

    fn position_of(&self, page: u64, flat: bool) -> Option<u64> {
        let run = self.runs.get(self.runs.partition_point(|run| run.pages.end() <= page))?;
        let within = page.checked_sub(run.pages.start())?;
        Some(if flat { page } else { run.base + within })
    }

    /// Returns the cheapest aligned place at the start of a free extent or at a multiple of a
    /// granule's length; the lowest if several are equal.
    fn cheapest(
        &mut self,
        lowest: Extent,
        align: u64,
        flat: bool,
        within: Option<Extent>,
    ) -> Extent {
        let len = lowest.len();
        self.sum_costs();
        let tree = self.searched(flat);
        let price = |start: u64| {
            let place = Extent::new(start, len).unwrap_or(lowest);
            let (first, last) = self.granules_of(place, flat).into_inner();
            self.sums[last + 1] - self.sums[first]
        };
        let mut best = (price(lowest.start()), lowest.start());
        let step = align.max(self.granule_pages);
        let (low, high) = within.map_or((0, u64::MAX), |within| (within.start(), within.end()));
        let mut from = lowest.start();
        while let (true, Some(free)) = (best.0 > 0, tree.next_fit(from, len)) {
            let mut start = free.start().max(low).next_multiple_of(align);
            if start >= high {
                break;
            }
            while start + len <= free.end().min(high) && best.0 > 0 {
                best = best.min((price(start), start));
                start = (start + 1).next_multiple_of(step);
            }
            from = free.end();
        }
        Extent::new(best.1, len).unwrap_or(lowest)
    }

    fn sum_costs(&mut self) {
        let mut sum = 0;
        self.sums.clear();
        self.sums.push(0);
        self.sums.extend(self.costs.iter().map(|cost| {
            sum += cost;
            sum
        }));
    }

    pub(crate) fn grain(&self) -> Option<u64> {
        self.grain
    }
}

#[cfg(test)]
mod tests;
