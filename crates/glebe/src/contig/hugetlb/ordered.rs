//! Huge pages in physical order, and the search for the longest runs of them.
//!
//! The pages are taken as the pool hands them out, and their frames read. Where a run is wanted,
//! or a length to look at, more are taken than needed, pages of the next larger size are split if
//! that makes fewer runs, and the fewest runs that suffice are kept: every page is zeroed once.
//!
//! Pages of the caller's alone are moved into order, some 8 µs for each stretch that did not come
//! so; the mapping is as many to the kernel as there are stretches. A file's pages are where their
//! offset says: they are given back in descending order of frames and taken again, which zeroes
//! them once more, and relies on the pool being a stack: the page freed last is handed out first
//! (as measured; the kernel does not promise it). So what came out is compared with what was
//! planned, and the attempt repeated if somebody else drew from the pool in between.
//!
//! Counts and frames are huge pages.

use super::{machine_available, Builder, Order, Reporter};
use crate::contig::order::{fewest_runs, Plan};
use crate::contig::{runs, Error, Run};
use crate::error::OsError;
use crate::mapping::{Mapping, Stretch};
use crate::sys::hugetlb::{sizes, Pool};
use crate::sys::page_size;
use crate::sys::pagemap::Pagemap;
use crate::units::{Bytes, PageSize, Pages};

/// Of pages from this size on no more than needed are taken at the first attempt: each is long,
/// and zeroing it costs seconds.
const SPARE_BELOW: Bytes = Bytes::gib(1);
/// Attempts to have pages in order, and to find the run asked for.
const ATTEMPTS: u32 = 4;
/// Pages beyond those needed, of which the best are kept, at the first attempt: a share of those
/// needed, and at least so many.
const SPARE_SHARE: u64 = 4;
const SPARE_MIN: u64 = 8;
/// Stretches of which a mapping is made, at most: an eighth of the kernel's own default limit on
/// the mappings of a process.
const STRETCHES_MAX: usize = 1 << 13;

/// A pool of larger pages, and how many of them hold the whole length.
struct Larger {
    pool: Pool,
    pages: u64,
}

/// Pages in hand, in an order that is not theirs to keep.
#[derive(Default)]
struct Held {
    parts: Vec<Mapping>,
    /// Of each page its part, and its number there.
    places: Vec<(usize, u64)>,
    frames: Vec<u64>,
}

impl Builder<'_> {
    /// As few runs as the pages that were looked at allow, ascending.
    pub(super) fn map_in_order(&mut self, reporter: &mut Reporter<'_>) -> Result<Mapping, Error> {
        for attempt in 1.. {
            let mut held = self.search(reporter)?;
            let plan = self.plan(&held);
            let planned = plan.runs;
            if held.came_so(self.pages) {
                return Ok(held.parts.remove(0));
            }
            let stretches = held.stretches(&plan, self.pages, self.pool.size());
            if !self.request.mappable && stretches.len() <= STRETCHES_MAX {
                return self.moved(held, &stretches, reporter);
            }
            let mapping = self.taken_again(held, &plan)?;
            self.fill(&mapping, Order::Strict, reporter)?;
            let (runs, _) = runs::read(&mapping, self.pool.size())?;
            let ascend = runs.is_sorted_by_key(|run| run.pfn);
            if (runs.len() <= planned && ascend) || attempt >= ATTEMPTS {
                self.note_order(&runs, planned);
                return Ok(mapping);
            }
        }
        unreachable!("the last attempt returns")
    }

    /// Takes pages, and more where longer runs are wanted than those make.
    fn search(&mut self, reporter: &mut Reporter<'_>) -> Result<Held, Error> {
        let size = self.pool.size();
        let wanted = self.request.run.map_or(0, |run| run.pages_up(size).get()).min(self.pages);
        let share = (self.pages / SPARE_SHARE).max(SPARE_MIN);
        let searched = self.request.search.pages_down(size).get().saturating_sub(self.pages);
        let is_search = wanted > 0 || searched > 0 || self.request.for_runs;
        let mut spare = if is_search && size.bytes() < SPARE_BELOW { share } else { 0 };
        spare = spare.max(searched);
        let mut held = Held::default();
        let needed = self.take(self.pages)?;
        self.extend(&mut held, needed, reporter)?;
        if let Some(more) = self.take_some(spare)? {
            self.extend(&mut held, more, reporter)?;
        }
        let mut larger = if is_search { self.larger_pool() } else { None };
        for _ in 1..ATTEMPTS {
            let plan = self.plan(&held);
            let is_better = |larger: &Larger| plan.runs as u64 > larger.pages;
            let mut more = match larger.take().filter(is_better) {
                Some(larger) => self.take_split(&larger)?,
                None => None,
            };
            if more.is_none() && (plan.longest as u64) < wanted {
                let next = spare.max(share).saturating_mul(4);
                more = self.take_some(next - spare)?;
                spare = next;
            }
            let Some(more) = more else { break };
            self.extend(&mut held, more, reporter)?;
        }
        Ok(held)
    }

    fn plan(&self, held: &Held) -> Plan {
        fewest_runs(&held.frames, usize::try_from(self.pages).unwrap_or(usize::MAX))
    }

    /// Populates `mapping` and takes its pages in hand.
    fn extend(
        &self,
        held: &mut Held,
        mapping: Mapping,
        reporter: &mut Reporter<'_>,
    ) -> Result<(), Error> {
        let (size, len) = (self.pool.size(), mapping.len());
        // Threads that draw from the pool in turn leave no two pages side by side as they were.
        let few = len.pages_up(size).get() <= STRETCHES_MAX as u64;
        let order = if few || self.request.mappable { Order::Any } else { Order::Strict };
        self.fill(&mapping, order, reporter)?;
        let entries = Pagemap::open()?.entries(mapping.addr(), len, size)?;
        let per_page = size.bytes().pages_down(page_size());
        let part = held.parts.len();
        for (n, entry) in entries.iter().enumerate() {
            held.places.push((part, n as u64));
            held.frames.push(entry.frame().unwrap_or_default().get() / per_page.get());
        }
        held.parts.push(mapping);
        Ok(())
    }

    /// Moves the pages that are kept side by side; where that is refused, takes what comes.
    fn moved(
        &mut self,
        held: Held,
        stretches: &[Stretch],
        reporter: &mut Reporter<'_>,
    ) -> Result<Mapping, Error> {
        match Mapping::gathered(held.parts, stretches, self.pool.size()) {
            Ok(mapping) => return Ok(mapping),
            Err(error) => {
                let size = self.pool.size().bytes();
                self.notes.push(format!("hugetlb {size}: not put in order: {error}"));
            }
        }
        let mapping = self.take(self.pages)?;
        self.fill(&mapping, Order::Strict, reporter)?;
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
        let taken = lock.with_pages(&self.pool, 0, |_| {
            held.give_back(kept)?;
            self.mapped(pages).map_err(|error| self.short(pages, error))
        });
        drop(lock);
        match taken {
            // Somebody else was quicker.
            Err(Error::PoolShort { .. }) => self.take(pages),
            taken => taken,
        }
    }

    /// The pool whose pages split into pages of this size, if it may be grown.
    fn larger_pool(&self) -> Option<Larger> {
        let size = self.pool.size();
        let pools = sizes().into_iter().filter_map(|larger| self.request.place.pool(larger));
        let pool = pools
            .filter(|_| self.may_grow())
            .find(|pool| pool.is_writable() && pool.demote_size() == Some(size))?;
        Some(Larger { pages: self.len.pages_up(pool.size()).get(), pool })
    }

    /// Pages that come of splitting larger ones, where the machine's memory is enough for those.
    fn take_split(&mut self, larger: &Larger) -> Result<Option<Mapping>, Error> {
        let needed = Pages::new(larger.pages).checked_bytes(larger.pool.size());
        let free = machine_available()?;
        if needed.is_none_or(|needed| needed > free) || self.gate.check(self.len).is_err() {
            return Ok(None);
        }
        let lock = self.lock()?;
        let pages = self.pages;
        let mapping = lock.with_split(&self.pool, &larger.pool, larger.pages, |came| match came
            .min(pages)
        {
            0 => Ok(None),
            pages => self.mapped(pages).map(Some),
        })?;
        self.grew |= mapping.is_some();
        Ok(mapping)
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

impl Held {
    /// Whether they are one mapping of `pages` in ascending order already. As few runs as planned
    /// are not enough: each may ascend, and the next begin below it.
    fn came_so(&self, pages: u64) -> bool {
        self.parts.len() == 1 && self.frames.len() as u64 == pages && self.frames.is_sorted()
    }

    /// Where those are that `plan` keeps, ascending.
    fn stretches(&self, plan: &Plan, keep: u64, size: PageSize) -> Vec<Stretch> {
        let keep = usize::try_from(keep).unwrap_or(usize::MAX);
        let kept = plan.give_back.iter().rev().take(keep);
        Stretch::of_pages(kept.map(|n| self.places[*n]), size)
    }

    /// Gives pages back, by index, in that order.
    fn give_back(&mut self, pages: &[usize]) -> Result<(), OsError> {
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
    use crate::mapping::Visibility;

    #[test]
    fn runs_that_do_not_ascend_are_put_in_order() {
        let part = || Mapping::aligned(Bytes::mib(1), page_size(), Visibility::PRIVATE).unwrap();
        let held = |parts: usize, frames: &[u64]| Held {
            parts: (0..parts).map(|_| part()).collect(),
            frames: frames.to_vec(),
            ..Held::default()
        };
        assert!(held(1, &[3, 4, 8]).came_so(3));
        assert!(!held(1, &[8, 9, 3, 4]).came_so(4), "two runs, and two are the fewest");
        assert!(!held(1, &[3, 4, 8]).came_so(2), "one too many");
        assert!(!held(2, &[3, 4]).came_so(2), "in two places");
    }
}
