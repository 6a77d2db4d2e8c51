//! Memory of a hugetlb pool, in physical order where that can be made.
//!
//! Counts and frames are huge pages here. The order relies on the pool being a stack: the page
//! freed last is handed out first (as measured; the kernel does not promise it), so what came out
//! is compared with what was planned, and the attempt repeated if somebody else drew from the
//! pool in between.

use std::io::ErrorKind;

use super::options::{Built, Request};
use super::order::{fewest_runs, Plan};
use super::pool::{PoolClaim, PoolLock};
use super::populate::{machine_available, populate, Gate, Order, Reporter};
use super::{runs, Error, Run};
use crate::error::OsError;
use crate::mapping::{Mapping, Visibility};
use crate::sys::cgroup::Resource;
use crate::sys::hugetlb::{sizes, Pool};
use crate::sys::page_size;
use crate::sys::pagemap::{frames_visible, Pagemap};
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

/// Maps `len` bytes, a multiple of `size`.
pub(super) fn build(
    request: &Request,
    len: Bytes,
    size: PageSize,
    reporter: &mut Reporter<'_>,
) -> Result<Built, Error> {
    let no_such = || Error::NoSuchSize { size, listed: sizes() };
    let pool = request.place.pool(size).ok_or_else(no_such)?;
    let gate = Gate::new(Resource::Hugetlb(size))?;
    gate.check(len)?;
    let mut builder = Builder {
        request,
        len,
        pages: len.pages_up(size).get(),
        had_before: pool.counts()?.available(),
        claim: PoolClaim::new(pool.clone(), request.place.clone()),
        pool,
        gate,
        notes: Vec::new(),
    };
    // The lock is taken and left inside: the claim is dropped after that, on failure too.
    let mapping = builder.map(reporter)?;
    let (runs, proof) = runs::read(&mapping, size)?;
    let Builder { claim, notes, .. } = builder;
    Ok(Built { mapping, claim: Some(claim), runs, proof, notes })
}

struct Builder<'a> {
    request: &'a Request,
    len: Bytes,
    pages: u64,
    pool: Pool,
    /// Pages that the pool had before it was grown.
    had_before: u64,
    claim: PoolClaim,
    gate: Gate,
    notes: Vec<String>,
}

impl Builder<'_> {
    fn map(&mut self, reporter: &mut Reporter<'_>) -> Result<Mapping, Error> {
        if !self.claim.may_change() {
            self.require_pages(None)?;
            let mapping = self.take()?;
            self.fill(&mapping, Order::Any, reporter)?;
            return Ok(mapping);
        }
        let lock = PoolLock::acquire(&self.request.place)?;
        self.had_before = self.pool.counts()?.available();
        self.notes.extend(lock.notes().iter().cloned());
        if self.pages > 1 && frames_visible() {
            let mapping = self.map_in_order(&lock, reporter);
            return self.settle(&lock, mapping);
        }
        let mapping = self.require_pages(Some(&lock)).and_then(|()| self.take());
        let mapping = self.settle(&lock, mapping)?;
        // The pages are set aside for the mapping now; zeroing them holds nobody up.
        drop(lock);
        self.fill(&mapping, Order::Any, reporter)?;
        Ok(mapping)
    }

    /// Gives back what the pool was grown by and is not needed, before others see it as free.
    fn settle(
        &mut self,
        lock: &PoolLock,
        mapping: Result<Mapping, Error>,
    ) -> Result<Mapping, Error> {
        // Pages that the claim must keep: those that the pool did not have before.
        let needed = self.pages.saturating_sub(self.had_before);
        let keep = if mapping.is_ok() { needed } else { 0 };
        // Where that fails the claim's drop tries again.
        let _ = self.claim.shrink(lock, self.claim.pages().saturating_sub(keep));
        mapping
    }
}

/// A pool of larger pages, and how many of them hold the whole length.
struct Larger {
    pool: Pool,
    pages: u64,
}

/// Pages in hand, in an order that is not theirs to keep.
struct Scratch {
    mapping: Mapping,
    /// Runs in the order in which they came.
    runs: usize,
    plan: Plan,
}

impl Builder<'_> {
    /// As few runs as the pool and the machine's free memory allow, ascending.
    fn map_in_order(
        &mut self,
        lock: &PoolLock,
        reporter: &mut Reporter<'_>,
    ) -> Result<Mapping, Error> {
        let wanted_run = self.request.run.map_or(0, |run| run.pages_up(self.pool.size()).get());
        let share = (self.pages / SPARE_SHARE).max(SPARE_MIN);
        let mut spare = if self.size() < SPARE_BELOW { share } else { 0 };
        let mut taken_before = 0;
        let mut larger = self.larger_pool();
        for attempt in 1.. {
            self.require_pages(Some(lock))?;
            let take = self.with_spare(lock, spare)?;
            let scratch = self.scratch(take, reporter)?;
            let (planned, longest) = (scratch.plan.runs, scratch.plan.longest as u64);
            if let Some(larger) = larger.take().filter(|larger| planned as u64 > larger.pages) {
                drop(scratch);
                self.split_larger(lock, larger)?;
                continue;
            }
            let short = longest < wanted_run.min(self.pages);
            if short && take > taken_before && attempt < ATTEMPTS {
                (taken_before, spare) = (take, spare.max(share).saturating_mul(4));
                continue;
            }
            if take == self.pages && scratch.runs == planned {
                return Ok(scratch.mapping);
            }
            scratch.give_back()?;
            let mapping = self.take()?;
            self.fill(&mapping, Order::Strict, reporter)?;
            let (runs, _) = runs::read(&mapping, self.pool.size())?;
            if runs.len() <= planned || attempt >= ATTEMPTS {
                self.note_order(&runs, planned);
                return Ok(mapping);
            }
        }
        unreachable!("the last attempt returns")
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

    /// Grows the pool by contiguous pages, where the machine's memory is enough.
    fn split_larger(&mut self, lock: &PoolLock, larger: Larger) -> Result<(), Error> {
        let needed = Pages::new(larger.pages).checked_bytes(larger.pool.size());
        let free = machine_available()?;
        if needed.is_some_and(|needed| needed <= free) {
            self.claim.grow_by_demotion(lock, larger.pool, larger.pages)?;
        }
        Ok(())
    }

    fn note_order(&mut self, runs: &[Run], planned: usize) {
        if runs.len() > planned {
            self.notes.push(format!(
                "hugetlb {}: {} runs where {planned} were possible; somebody else drew from the \
                 pool during {ATTEMPTS} attempts",
                self.size(),
                runs.len()
            ));
        }
    }

    /// Takes and populates `take` pages and plans which to keep.
    fn scratch(&self, take: u64, reporter: &mut Reporter<'_>) -> Result<Scratch, Error> {
        let size = self.pool.size();
        let len = Pages::new(take).bytes(size);
        let mapping =
            Mapping::hugetlb(len, size, Visibility::PRIVATE).map_err(|e| self.short(e))?;
        self.fill(&mapping, Order::Any, reporter)?;
        let entries = Pagemap::open()?.entries(mapping.addr(), len, size)?;
        let per_page = size.bytes().pages_down(page_size());
        let frames: Vec<u64> = entries
            .iter()
            .map(|entry| entry.frame().unwrap_or_default().get() / per_page.get())
            .collect();
        let keep = usize::try_from(self.pages).unwrap_or(usize::MAX);
        let runs = runs::join(&entries, per_page).0.len();
        Ok(Scratch { plan: fewest_runs(&frames, keep), runs, mapping })
    }

    /// Sees to it that the pool has pages for the whole length.
    fn require_pages(&mut self, lock: Option<&PoolLock>) -> Result<(), Error> {
        let (page, pages) = (self.pool.size(), self.pages);
        let mut have = self.pool.counts()?.available();
        if let Some(lock) = lock.filter(|_| self.may_grow()) {
            let available = machine_available()?;
            let missing = Pages::new(pages.saturating_sub(have));
            if missing.checked_bytes(page).is_none_or(|missing| missing > available) {
                let had = Pages::new(have).checked_bytes(page).unwrap_or_default();
                let available = available.checked_add(had).unwrap_or(available);
                return Err(Error::TooLarge { asked: self.len, available });
            }
            // Surplus pages become persistent ones first, so that one call may add too few.
            while have < pages && self.claim.grow(lock, pages - have)? > 0 {
                have = self.pool.counts()?.available();
            }
        }
        if have < pages {
            return Err(self.pool_short(have));
        }
        Ok(())
    }

    /// Pages to take where up to `spare` more than needed may be: from what the pool has, then
    /// from half of the machine's free memory.
    fn with_spare(&mut self, lock: &PoolLock, spare: u64) -> Result<u64, Error> {
        let wanted = self.pages.saturating_add(spare);
        let mut have = self.pool.counts()?.available();
        if have < wanted && self.may_grow() {
            let free = machine_available()?.pages_down(self.pool.size()).get() / 2;
            let more = (wanted - have).min(free);
            if more > 0 {
                self.claim.grow(lock, more)?;
                have = self.pool.counts()?.available();
            }
        }
        let take = have.min(wanted).max(self.pages);
        let allowed =
            Pages::new(take).checked_bytes(self.pool.size()).map(|len| self.gate.check(len));
        Ok(if matches!(allowed, Some(Ok(()))) { take } else { self.pages })
    }

    fn may_grow(&self) -> bool {
        self.claim.may_change() && self.request.grow_pool.unwrap_or(true)
    }

    fn take(&self) -> Result<Mapping, Error> {
        Mapping::hugetlb(self.len, self.pool.size(), Visibility::PRIVATE)
            .map_err(|error| self.short(error))
    }

    fn fill(
        &self,
        mapping: &Mapping,
        order: Order,
        report: &mut Reporter<'_>,
    ) -> Result<(), Error> {
        let (page, threads) = (self.pool.size(), self.request.threads);
        populate(mapping, page, order, threads, &self.gate, report)
    }

    /// What a refused mapping means: mostly that somebody else was quicker.
    fn short(&self, error: OsError) -> Error {
        match self.pool.counts() {
            Ok(counts) if error.kind() == ErrorKind::OutOfMemory => {
                self.pool_short(counts.available())
            }
            _ => error.into(),
        }
    }

    fn pool_short(&self, got: u64) -> Error {
        let path = self.pool.path();
        let (missing, shown) = (self.pages.saturating_sub(got), path.display());
        let how_to = if !self.claim.may_change() {
            format!("as root, add {missing} to {shown}, or run with write access to it")
        } else if !self.may_grow() {
            format!("allow the pool to grow, or add {missing} to {shown}")
        } else {
            format!(
                "memory is too fragmented to add {missing}: write 1 to \
                 /proc/sys/vm/compact_memory, \
                 or reserve at boot with hugepagesz= and hugepages="
            )
        };
        Error::PoolShort { size: self.size(), wanted: self.pages, got, path, how_to }
    }

    fn size(&self) -> Bytes {
        self.pool.size().bytes()
    }
}

impl Scratch {
    /// Gives the pages back so that the pool hands out those kept first and ascending.
    fn give_back(mut self) -> Result<(), OsError> {
        for index in &self.plan.give_back {
            self.mapping.discard(*index)?;
        }
        Ok(())
    }
}
