//! Which pages of the reserve are free for first class: positions, physical runs, promises.
//!
//! Two free trees. In the *physical* tree every run of adjacent page frames starts at a position
//! congruent to its first frame modulo [`ALIGN_PAGES`], with a hole before it: an extent there is
//! one physical run, and its alignment is that of the frames. The *flat* tree counts pages from
//! the start of the mapping and serves requests that need not be physically contiguous; it is
//! kept only where the two differ. Where frames are hidden, each grain within which the kernel
//! guarantees contiguity is a run of its own.
//!
//! Cost: O(log n) a call, and one step a granule for blocks of a granule and more, whose place is
//! the one that costs least to clear.

use std::ops::Range;

use crate::contig::{Contig, Proof};
use crate::extent::Extent;
use crate::free_tree::FreeTree;

/// Positions of a run are congruent to its frames modulo this: 1 GiB of base pages of 4 KiB.
const ALIGN_PAGES: u64 = 1 << 18;

/// A physical run: `pages` of the mapping, at `base` in the physical tree.
#[derive(Clone, Copy, Debug)]
struct Run {
    base: u64,
    pages: Extent,
}

#[derive(Debug)]
pub(crate) struct Positions {
    tree: FreeTree,
    runs: Vec<Run>,
    flat: Option<FreeTree>,
    /// No block of more than one page is known to be contiguous.
    single: bool,
    granule_pages: u64,
    /// Cost to clear all granules before each one.
    sums: Vec<u64>,
}

impl Positions {
    pub(crate) fn new(contig: &Contig, pages: u64, granule_pages: u64) -> Self {
        let all = Extent::new(0, pages).expect("a reserve is not empty");
        let mut runs = Vec::new();
        let mut next = 0;
        for run in contig.runs() {
            let phase = run.pfn.map_or(run.pages.start(), |pfn| pfn.get()) % ALIGN_PAGES;
            let base = next / ALIGN_PAGES * ALIGN_PAGES + phase;
            let base = if base < next { base + ALIGN_PAGES } else { base };
            runs.push(Run { base, pages: run.pages });
            next = base + run.pages.len() + 1;
        }
        let single = runs.is_empty();
        if single {
            runs.push(Run { base: 0, pages: all });
            next = pages + 1;
        }
        let nodes = usize::try_from(pages).unwrap_or(usize::MAX);
        let span = Extent::new(0, next).expect("not empty");
        let mut tree = FreeTree::new(span, nodes);
        for run in &runs {
            let extent = Extent::new(run.base, run.pages.len()).expect("a run is not empty");
            tree.free(extent).expect("runs do not overlap");
        }
        let flat = (runs.len() > 1).then(|| {
            let mut flat = FreeTree::new(all, nodes);
            flat.free(all).expect("all of it is free");
            flat
        });
        let sums = Vec::with_capacity((pages / granule_pages) as usize + 1);
        Self { tree, runs, flat, single, granule_pages, sums }
    }

    /// The longest free run that is known to be contiguous.
    pub(crate) fn largest(&self) -> u64 {
        if self.single {
            self.tree.largest().min(1)
        } else {
            self.tree.largest()
        }
    }

    /// The longest run of free pages, contiguous or not.
    pub(crate) fn largest_any(&self) -> u64 {
        self.flat.as_ref().map_or_else(|| self.tree.largest(), FreeTree::largest)
    }

    /// Whether `pages` is one run that is known to be contiguous.
    pub(crate) fn is_contiguous(&self, pages: Extent) -> bool {
        pages.len() == 1 || !self.single && self.run_of(pages.start()).pages.contains(pages)
    }

    fn run_of(&self, page: u64) -> Run {
        self.runs[self.runs.partition_point(|run| run.pages.end() <= page)]
    }

    fn page_at(&self, position: u64) -> u64 {
        let run = self.runs[self.runs.partition_point(|run| run.base <= position) - 1];
        run.pages.start() + (position - run.base)
    }

    /// Takes the run of `len` pages that costs least to clear, `cost` saying what each granule
    /// does, and `some_free` whether one may cost nothing; `None` where no free run fits.
    pub(crate) fn take(
        &mut self,
        len: u64,
        align: u64,
        any: bool,
        some_free: bool,
        cost: impl Fn(usize) -> u64,
    ) -> Option<Extent> {
        let flat = any && self.flat.is_some();
        if !any && len > self.largest() {
            return None;
        }
        let tree = if flat { self.flat.as_ref()? } else { &self.tree };
        let lowest = tree.find(len, align, None).ok()??;
        let place = if len < self.granule_pages {
            if some_free {
                self.cheap_small(lowest, align, flat, &cost)
            } else {
                lowest
            }
        } else {
            self.cheapest(lowest, align, flat, &cost)
        };
        let start = if flat { place.start() } else { self.page_at(place.start()) };
        let pages = Extent::new(start, place.len())?;
        self.claim(pages);
        Some(pages)
    }

    /// Takes one page, chosen as [`Positions::take`] does, and those that follow it, contiguous
    /// or not, while they are free and before the page that `end` gives.
    pub(crate) fn take_with_next(
        &mut self,
        end: impl Fn(u64) -> u64,
        some_free: bool,
        cost: impl Fn(usize) -> u64,
    ) -> Option<Extent> {
        let flat = self.flat.is_some();
        let tree = self.flat.as_ref().unwrap_or(&self.tree);
        let lowest = tree.find(1, 1, None).ok()??;
        let place = if some_free { self.cheap_small(lowest, 1, flat, &cost) } else { lowest };
        let free = tree.containing(place.start())?;
        let page = self.pages_of(place, flat).start;
        let pages = Extent::new(page, (end(page) - page).min(free.end() - place.start()))?;
        self.claim(pages);
        Some(pages)
    }

    /// Takes exactly these pages, which are free.
    fn claim(&mut self, pages: Extent) {
        self.each_run(pages, |tree, part| tree.take(part).expect("found free"));
        if let Some(flat) = &mut self.flat {
            flat.take(pages).expect("free in the physical tree");
        }
    }

    /// Gives pages back that were taken.
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

    /// The page range of an extent of the tree that is searched.
    fn pages_of(&self, extent: Extent, flat: bool) -> Range<u64> {
        let start = if flat { extent.start() } else { self.page_at(extent.start()) };
        start..start + extent.len()
    }

    /// For a block smaller than a granule: the lowest place, unless its granule is in use and an
    /// empty one has room.
    fn cheap_small(
        &self,
        lowest: Extent,
        align: u64,
        flat: bool,
        cost: &impl Fn(usize) -> u64,
    ) -> Extent {
        let granule_of = |page: u64| (page / self.granule_pages) as usize;
        let pages = self.pages_of(lowest, flat);
        let here = cost(granule_of(pages.start)) + cost(granule_of(pages.end - 1));
        if here == 0 {
            return lowest;
        }
        let tree = if flat { self.flat.as_ref().unwrap_or(&self.tree) } else { &self.tree };
        let granules = self.runs.last().map_or(0, |run| granule_of(run.pages.end() - 1) + 1);
        for granule in (0..granules).filter(|g| cost(*g) == 0) {
            let first = granule as u64 * self.granule_pages;
            let base = if flat { first } else { self.position_of(first) };
            let within = Extent::new(base, self.granule_pages);
            if let Ok(Some(found)) = tree.find(lowest.len(), align, within) {
                return found;
            }
        }
        lowest
    }

    fn position_of(&self, page: u64) -> u64 {
        let run = self.run_of(page);
        run.base + (page - run.pages.start())
    }

    /// For a block of a granule and more: of the lowest place in each free run and those that
    /// start at a granule, the one whose granules cost least; the lowest of equals.
    fn cheapest(
        &mut self,
        lowest: Extent,
        align: u64,
        flat: bool,
        cost: &impl Fn(usize) -> u64,
    ) -> Extent {
        let len = lowest.len();
        self.sum_costs(cost);
        let tree = if flat { self.flat.as_ref().unwrap_or(&self.tree) } else { &self.tree };
        let price = |start: u64| {
            let pages = self.pages_of(Extent::new(start, len).unwrap_or(lowest), flat);
            let first = (pages.start / self.granule_pages) as usize;
            let last = ((pages.end - 1) / self.granule_pages) as usize;
            self.sums[last + 1] - self.sums[first]
        };
        let mut best = (price(lowest.start()), lowest.start());
        let step = align.max(self.granule_pages);
        let mut from = lowest.start();
        while let (true, Some(free)) = (best.0 > 0, tree.next_fit(from, len)) {
            let mut start = free.start().next_multiple_of(align);
            while start + len <= free.end() && best.0 > 0 {
                best = best.min((price(start), start));
                start = (start + 1).next_multiple_of(step);
            }
            from = free.end();
        }
        Extent::new(best.1, len).unwrap_or(lowest)
    }

    fn sum_costs(&mut self, cost: &impl Fn(usize) -> u64) {
        let pages = self.runs.last().map_or(0, |run| run.pages.end());
        self.sums.clear();
        self.sums.push(0);
        let mut sum = 0;
        for granule in 0..pages.div_ceil(self.granule_pages) {
            sum += cost(granule as usize);
            self.sums.push(sum);
        }
    }

    pub(crate) fn proof_grain(contig: &Contig) -> Option<u64> {
        match contig.proof() {
            Proof::Frames => None,
            Proof::Within(grain) => Some(grain.get()),
        }
    }
}
