//! [`Builder::map_in_order`] maps huge pages in physical order, in the fewest runs.
//!
//! The call moves private pages, at 8 µs and one VMA per stretch of adjacent pages.
//!
//! The call frees pages of a file, or of too many stretches, by descending frame and takes them
//! again, because a pool first hands out the last freed page. The kernel promises no order, so the
//! call compares the result with the plan.

use std::ops::Range;

use super::held::HeldPages;
use super::{Builder, Order, STRETCHES_MAX};
use crate::bricks::recast;
use crate::order::RunPlan;
use crate::{runs, Error, Run};
use glebe_os::internal::mapping::{BrickSize, Mapping, Stretch, Visibility};
use glebe_os::internal::sys::page_size;
use glebe_os::units::PageSize;

const ATTEMPTS: u32 = 4;

impl Builder<'_> {
    pub(super) fn map_in_order(&mut self) -> Result<Mapping, Error> {
        for attempt in 1.. {
            self.search()?;
            let mut held = std::mem::take(&mut self.held);
            let plan = self.plan(&held);
            let planned = (plan.runs, plan.kept);
            if held.came_so(self.pages, &plan, self.options.is_of_files()) {
                return Ok(held.parts.remove(0));
            }
            let stretches = held.stretches(&plan, self.pages, self.pool.size());
            if !self.options.is_of_files() && stretches.len() <= STRETCHES_MAX {
                return self.moved(held, &stretches);
            }
            let mapping = self.taken_again(held, &plan)?;
            self.fill(&mapping, Order::Strict)?;
            let (runs, _) = runs::read(&mapping, self.pool.size())?;
            let is_ordered = match self.brick() {
                1 => runs.is_sorted_by_key(|run| run.pfn),
                _ => self.whole_bricks(&runs) >= planned.1,
            };
            if (runs.len() <= planned.0 && is_ordered) || attempt >= ATTEMPTS {
                let kept = if self.brick() > 1 { self.whole_bricks(&runs) } else { planned.1 };
                self.notes.extend(note_of((runs.len(), kept), planned, self.pool.size()));
                return Ok(mapping);
            }
        }
        unreachable!("the last attempt returns")
    }

    fn moved(&mut self, held: HeldPages, stretches: &[Stretch]) -> Result<Mapping, Error> {
        match Mapping::gathered(held.parts, stretches, self.pool.size()) {
            Ok(mapping) => return Ok(mapping),
            Err(error) => {
                let size = self.pool.size().bytes();
                self.notes.push(format!("hugetlb {size}: not put in order: {error}"));
            }
        }
        let mapping = self.take(self.pages)?;
        self.fill(&mapping, Order::Strict)?;
        Ok(mapping)
    }

    /// Frees the held pages and maps the planned pages again. If the pool is not locked, maps pages
    /// in arbitrary order.
    fn taken_again(&mut self, mut held: HeldPages, plan: &RunPlan) -> Result<Mapping, Error> {
        let pages = self.pages;
        let kept = held.frames.len().saturating_sub(usize::try_from(pages).unwrap_or(usize::MAX));
        let (others, kept) = plan.give_back.split_at(kept);
        let lock = match self.may_change.then(|| self.lock()) {
            Some(Ok(lock)) => lock,
            refused => {
                let why = refused.and_then(Result::err).map_or(String::new(), |e| format!(": {e}"));
                let size = self.pool.size().bytes();
                self.notes.push(format!("hugetlb {size}: not put in order{why}"));
                held.give_back(others)?;
                held.give_back(kept)?;
                return self.take(pages);
            }
        };
        // Frees unwanted pages outside `with_pages`, which keeps freed surplus pages in the pool.
        held.give_back(others)?;
        let pool = self.pool.clone();
        let taken = lock.with_pages(&pool, 0, |_| {
            held.give_back(kept)?;
            self.mapped_beside_idle(pages)
        });
        drop(lock);
        match taken {
            Err(Error::PoolShort { .. }) => self.take(pages),
            taken => taken,
        }
    }

    /// Returns the bricks of adjacent frames that are aligned to a brick.
    fn whole_bricks(&self, runs: &[Run]) -> usize {
        let each = self.brick() * self.pool.size().bytes().pages_down(page_size()).get();
        let in_run = |run: &Run| {
            let (start, end) = (run.pages.start(), run.pages.end());
            let is_even = run.pfn.is_some_and(|pfn| pfn.get() % each == start % each);
            match is_even {
                true => (end / each).saturating_sub(start.div_ceil(each)) as usize,
                false => 0,
            }
        };
        runs.iter().map(in_run).sum()
    }

    /// Moves a run of frames `within` to bricks. Returns `None` if other programs took pages of it.
    pub fn moved_to_bricks(
        &mut self,
        held: HeldPages,
        within: &Range<u64>,
        brick: BrickSize,
    ) -> Result<Option<Mapping>, Error> {
        let (pages, size, pool) = (self.pages, self.pool.size(), self.pool.clone());
        let aligned = (pages, self.brick());
        let Some(run) = held.run_within(within, aligned, size)? else { return Ok(None) };
        let planned = self.whole_bricks(&runs::read(&run, size)?.0);
        let lock = self.lock()?;
        let bricks = lock.with_pages(&pool, 0, |_| {
            // Frees the last page last, and `recast` fills the last brick first.
            drop(run);
            let lens = (0..pages / self.brick()).map(|_| brick.each.bytes());
            let bricks = recast(&[], size, lens);
            if pool.is_part() {
                self.promise_idle()?;
            }
            Ok::<_, Error>(bricks)
        })?;
        drop(lock);
        let Ok(bricks) = bricks.into_iter().collect::<Result<_, _>>() else { return Ok(None) };
        let mapping = self.bound(Mapping::with_bricks(bricks, brick, Visibility::PRIVATE)?)?;
        self.fill(&mapping, Order::Strict)?;
        let (runs, _) = runs::read(&mapping, size)?;
        let each = size.bytes().pages_down(page_size()).get();
        let is_within = |run: &Run| run.pfn.is_some_and(|pfn| within.contains(&(pfn.get() / each)));
        let is_aligned = self.whole_bricks(&runs) >= planned;
        Ok((runs.len() == 1 && is_within(&runs[0]) && is_aligned).then_some(mapping))
    }
}

/// Compares runs and whole bricks with the plan.
fn note_of(
    (runs, bricks): (usize, usize),
    planned: (usize, usize),
    size: PageSize,
) -> Option<String> {
    let size = size.bytes();
    let shown = match (runs > planned.0, bricks < planned.1) {
        (_, true) => format!("{bricks} whole bricks where {} were possible", planned.1),
        (true, false) => format!("{runs} runs where {} were possible", planned.0),
        (false, false) => return None,
    };
    Some(format!(
        "hugetlb {size}: {shown}; somebody else drew from the pool during {ATTEMPTS} attempts"
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fewer_whole_bricks_than_planned_are_noted() {
        let size = PageSize::new(2 << 20).unwrap();
        let note = |found| note_of(found, (3, 2), size);
        assert_eq!([note((3, 2)), note((2, 5))], [None, None]);
        assert!(note((4, 2)).unwrap().contains("4 runs where 3 were possible"));
        assert!(note((3, 1)).unwrap().contains("1 whole bricks where 2 were possible"));
        assert!(note((4, 1)).unwrap().contains("1 whole bricks where 2 were possible"));
    }
}
