//! Huge pages in physical order.
//!
//! The pages are taken as the pool hands them out, or as a [`search`](super::search) chose them,
//! and their frames read. The fewest runs that suffice are kept: every page is zeroed once.
//!
//! Pages of the caller's alone are moved into order, some 8 µs for each stretch that did not come
//! so; the mapping is as many to the kernel as there are stretches. A file's pages are where their
//! offset says: they are given back in descending order of frames and taken again, which zeroes
//! them once more, and relies on the pool being a stack: the page freed last is handed out first
//! (as measured; the kernel does not promise it). So what came out is compared with what was
//! planned, and the attempt repeated if somebody else drew from the pool in between.
//!
//! Counts and frames are huge pages.

use super::held::Held;
use super::{Builder, Order, STRETCHES_MAX};
use crate::contig::order::Plan;
use crate::contig::{runs, Error, Run};
use crate::mapping::{Mapping, Stretch};

/// Attempts to have a file's pages in order.
const ATTEMPTS: u32 = 4;

impl Builder<'_> {
    /// As few runs as the pages that were looked at allow, ascending.
    pub(super) fn map_in_order(&mut self) -> Result<Mapping, Error> {
        for attempt in 1.. {
            self.search()?;
            let mut held = std::mem::take(&mut self.held);
            let plan = held.plan(self.pages);
            let planned = plan.runs;
            if held.came_so(self.pages) {
                return Ok(held.parts.remove(0));
            }
            let stretches = held.stretches(&plan, self.pages, self.pool.size());
            if !self.options.mappable && stretches.len() <= STRETCHES_MAX {
                return self.moved(held, &stretches);
            }
            let mapping = self.taken_again(held, &plan)?;
            self.fill(&mapping, Order::Strict)?;
            let (runs, _) = runs::read(&mapping, self.pool.size())?;
            let ascend = runs.is_sorted_by_key(|run| run.pfn);
            if (runs.len() <= planned && ascend) || attempt >= ATTEMPTS {
                self.note_order(&runs, planned);
                return Ok(mapping);
            }
        }
        unreachable!("the last attempt returns")
    }

    /// Moves the pages that are kept side by side; where that is refused, takes what comes.
    fn moved(&mut self, held: Held, stretches: &[Stretch]) -> Result<Mapping, Error> {
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

    /// Frees the pages in hand and maps those that are kept once more, to be populated in order.
    /// Where the pool cannot be locked, they are mapped as they come.
    fn taken_again(&mut self, mut held: Held, plan: &Plan) -> Result<Mapping, Error> {
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
        // While some pages are surplus, those that are not wanted leave the pool.
        held.give_back(others)?;
        let pool = self.pool.clone();
        let taken = lock.with_pages(&pool, 0, |_| {
            held.give_back(kept)?;
            self.mapped_beside_idle(pages)
        });
        drop(lock);
        match taken {
            // Somebody else was quicker.
            Err(Error::PoolShort { .. }) => self.take(pages),
            taken => taken,
        }
    }

    fn note_order(&mut self, runs: &[Run], planned: usize) {
        if runs.len() > planned {
            self.notes.push(format!(
                "hugetlb {}: {} runs where {planned} were possible; somebody else drew from the \
                 pool during {ATTEMPTS} attempts",
                self.pool.size().bytes(),
                runs.len()
            ));
        }
    }
}
