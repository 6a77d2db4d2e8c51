//! [`Positions`] get new runs when a reserve grows, and give up whole units when it shrinks.
//!
//! Positions without memory stay taken, so no block gets them. Cost: one step per free extent;
//! `take_units` also sorts the extents.

use std::ops::Range;

use super::Positions;
use crate::contig::Run;
use glebe_os::extent::Extent;
use glebe_os::internal::mapping::BrickSize;
use glebe_os::internal::sys::page_size;
use glebe_os::units::Pages;

/// Returns `known` plus a run of one page for each other present page. An empty `known` stays
/// empty, because it means a single run.
pub(crate) fn filled(known: &[Run], present: &[Extent]) -> Vec<Run> {
    let mut all = Vec::with_capacity(known.len());
    if known.is_empty() {
        return all;
    }
    let alone = |page| Extent::new(page, 1).map(|pages| Run { pages, pfn: None });
    for extent in present {
        let mut at = extent.start();
        let first = known.partition_point(|run| run.pages.end() <= extent.start());
        for run in known[first..].iter().take_while(|run| run.pages.start() < extent.end()) {
            all.extend((at..run.pages.start()).filter_map(alone));
            all.push(*run);
            at = run.pages.end();
        }
        all.extend((at..extent.end()).filter_map(alone));
    }
    all
}

/// Leaves runs of whole bricks whose frames are aligned to a brick. The other pages are apart,
/// because no contiguous block of bricks can use them.
pub(crate) fn runs_of_bricks(known: Vec<Run>, size: Option<BrickSize>) -> Vec<Run> {
    let Some(BrickSize { each, page }) = size else { return known };
    let [each, page] = [each, page].map(|size| size.bytes().pages_down(page_size()).get());
    let mut all = Vec::with_capacity(known.len());
    for run in known {
        let (start, end) = (run.pages.start(), run.pages.end());
        let (from, to) = (start.next_multiple_of(each), end / each * each);
        let pfn = run.pfn.filter(|pfn| pfn.get() % each == start % each && from < to);
        let (from, to) = if pfn.is_some() { (from, to) } else { (end, end) };
        let apart = |range: Range<u64>| {
            let end = range.end;
            let pages = range.step_by(page as usize);
            let pages = pages.filter_map(move |at| Extent::new(at, page.min(end - at)));
            pages.map(|pages| Run { pages, pfn: None })
        };
        all.extend(apart(start..from));
        let whole = to.checked_sub(from).and_then(|len| Extent::new(from, len));
        let pfn = pfn.map(|pfn| pfn.plus(Pages::new(from - start)));
        all.extend(whole.map(|pages| Run { pages, pfn }));
        all.extend(apart(to..end));
    }
    all
}

impl Positions {
    /// All pages of `next` must be taken.
    pub(crate) fn replace(&mut self, mut next: Self) -> Self {
        self.free_pages().for_each(|pages| next.free(pages));
        std::mem::replace(self, next)
    }

    fn free_pages(&self) -> impl Iterator<Item = Extent> + '_ {
        let flat = self.flat.is_some();
        let pages = move |place| Extent::new(self.pages_of(place, flat).start, place.len());
        self.searched(flat).iter().filter_map(pages)
    }

    fn whole_units(&self, unit: u64) -> impl Iterator<Item = Extent> + '_ {
        self.free_pages().filter_map(move |free| {
            let start = free.start().next_multiple_of(unit);
            Extent::new(start, (free.end() / unit * unit).checked_sub(start)?)
        })
    }

    pub(crate) fn units(&self, unit: u64) -> u64 {
        self.whole_units(unit).map(Extent::len).sum()
    }

    /// Takes `len` pages in whole units, in the fewest extents, the highest if several suffice. The
    /// error is the number of pages in free whole units.
    pub(crate) fn take_units(&mut self, len: u64, unit: u64) -> Result<Vec<Extent>, u64> {
        let mut free: Vec<Extent> = self.whole_units(unit).collect();
        let all = free.iter().map(|pages| pages.len()).sum();
        if all < len {
            return Err(all);
        }
        free.sort_by_key(|pages| (pages.len(), pages.start()));
        let (mut found, mut missing) = (Vec::new(), len);
        while missing > 0 {
            let enough = free.iter().filter(|pages| pages.len() >= missing);
            let from = enough.max_by_key(|pages| pages.start()).copied().or_else(|| free.pop());
            let Some(from) = from else { break };
            let part = from.len().min(missing);
            found.extend(Extent::new(from.end() - part, part));
            missing -= part;
        }
        found.iter().for_each(|pages| self.claim(*pages));
        Ok(found)
    }
}
