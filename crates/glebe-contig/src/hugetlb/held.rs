//! [`HeldPages`] owns huge pages, in any order. Frame numbers count huge pages.

use std::collections::BTreeSet;
use std::ops::Range;

use crate::order::{plan_of_bricks, RunPlan};
use glebe_os::error::OsError;
use glebe_os::internal::mapping::{Mapping, Stretch};
use glebe_os::internal::sys::memory::pagemap::Pagemap;
use glebe_os::internal::sys::page_size;
use glebe_os::units::PageSize;

#[derive(Default)]
pub(crate) struct HeldPages {
    pub parts: Vec<Mapping>,
    /// Part and index of each page.
    places: Vec<(usize, u64)>,
    pub frames: Vec<u64>,
}

impl HeldPages {
    pub fn pages(&self) -> u64 {
        self.frames.len() as u64
    }

    pub fn numbers(&self) -> BTreeSet<u64> {
        self.frames.iter().copied().collect()
    }

    pub fn add(&mut self, mapping: Mapping, size: PageSize) -> Result<(), OsError> {
        let entries = Pagemap::open()?.entries(mapping.addr(), mapping.len(), size)?;
        let per_page = size.bytes().pages_down(page_size());
        let part = self.parts.len();
        for (n, entry) in entries.iter().enumerate() {
            self.places.push((part, n as u64));
            self.frames.push(entry.frame().unwrap_or_default().get() / per_page.get());
        }
        self.parts.push(mapping);
        Ok(())
    }

    /// Plans to keep pages in bricks of `brick` pages.
    pub fn plan(&self, keep: u64, brick: u64) -> RunPlan {
        plan_of_bricks(&self.frames, usize::try_from(keep).unwrap_or(usize::MAX), brick)
    }

    /// Returns true if all came as one mapping, in the planned order. Pages that were drawn are
    /// private memory, so they do not suffice for memory `of_files`.
    pub fn came_so(&self, pages: u64, plan: &RunPlan, of_files: bool) -> bool {
        let [part] = &*self.parts else { return false };
        let is_of_kind = !of_files || part.bricks().is_some() || part.file().is_some();
        let is_planned = plan.give_back.iter().rev().copied().eq(0..self.frames.len());
        is_of_kind && self.pages() == pages && is_planned
    }

    pub fn stretches(&self, plan: &RunPlan, keep: u64, size: PageSize) -> Vec<Stretch> {
        let keep = usize::try_from(keep).unwrap_or(usize::MAX);
        let kept = plan.give_back.iter().rev().take(keep);
        Stretch::of_pages(kept.map(|n| self.places[*n]), size)
    }

    /// Maps `pages` adjacent frames in `within`, the first at a multiple of `align` if possible;
    /// `None` if no run is that long.
    pub fn run_within(
        self,
        within: &Range<u64>,
        (pages, align): (u64, u64),
        size: PageSize,
    ) -> Result<Option<Mapping>, OsError> {
        let all = self.frames.iter().copied().zip(self.places.iter().copied());
        let mut here: Vec<_> = all.filter(|(frame, _)| within.contains(frame)).collect();
        here.sort_unstable();
        let runs = || here.chunk_by(|a, b| a.0 + 1 == b.0);
        let aligned = runs().filter_map(|run| {
            let before = run.iter().take_while(|(frame, _)| frame % align != 0).count();
            run.get(before..)
        });
        let run = aligned.chain(runs()).find(|run| run.len() as u64 >= pages);
        let Some(run) = run else { return Ok(None) };
        let kept = run.iter().take(pages as usize).map(|(_, place)| *place);
        let stretches = Stretch::of_pages(kept, size);
        Mapping::gathered(self.parts, &stretches, size).map(Some)
    }

    pub fn give_back(&mut self, pages: &[usize]) -> Result<(), OsError> {
        for n in pages {
            let (part, index) = self.places[*n];
            self.parts[part].discard(usize::try_from(index).unwrap_or(usize::MAX))?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use glebe_os::internal::mapping::Visibility;
    use glebe_os::units::Bytes;

    #[test]
    fn runs_that_do_not_ascend_are_put_in_order() {
        let part = || Mapping::aligned(Bytes::mib(1), page_size(), Visibility::PRIVATE).unwrap();
        let held = |parts: usize, frames: &[u64]| HeldPages {
            parts: (0..parts).map(|_| part()).collect(),
            frames: frames.to_vec(),
            ..HeldPages::default()
        };
        let came_so = |held: HeldPages, keep| held.came_so(keep, &held.plan(keep, 1), false);
        assert!(came_so(held(1, &[3, 4, 8]), 3));
        assert!(!came_so(held(1, &[8, 9, 3, 4]), 4), "two runs, and two are the fewest");
        assert!(!came_so(held(1, &[3, 4, 8]), 2), "one too many");
        assert!(!came_so(held(2, &[3, 4]), 2), "in two places");
        let private = held(1, &[3, 4]);
        assert!(!private.came_so(2, &private.plan(2, 1), true), "no file");
        let in_pairs = |frames| held(1, frames).came_so(4, &held(1, frames).plan(4, 2), false);
        assert!(in_pairs(&[4, 5, 3, 8]), "the pair first");
        assert!(!in_pairs(&[3, 4, 5, 8]));
    }
}
