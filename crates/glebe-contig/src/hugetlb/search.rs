//! `search` takes huge pages until some form a run that is long enough:
//!
//! 1. take the pool's idle pages;
//! 2. compact memory, if no free run is long enough;
//! 3. add free pages of the longest runs ([`survey`](super::survey)) to the pool
//!    ([`draw`](super::draw)); if step 2 did not compact, compact now and repeat step 3;
//! 4. split pages of the next larger size;
//! 5. if the memory is still too short, take pages in the pool's order;
//! 6. take more and more pages, if step 3 was impossible or the pool has idle pages left.
//!
//! Unit of counts and frames: huge pages.

use std::time::{Duration, Instant};

use super::effort::{spare, Effort};
use super::nodes::Nodes;
use super::survey::{has_movable, longest_in_pool};
use super::{machine_available, Builder, Order};
use crate::Error;
use glebe_os::internal::mapping::Mapping;
use glebe_os::internal::sys::machine::compact::compact_memory;
use glebe_os::internal::sys::machine::hugetlb::{sizes, Pool};
use glebe_os::internal::sys::machine::kpage::Frames;
use glebe_os::internal::sys::machine::meminfo;
use glebe_os::units::{Bytes, Pages};

/// Pages from this size on are slow to zero, so a search needs an explicit request.
const LARGE: Bytes = Bytes::gib(1);
/// Time to make a page of 1 GiB.
const LARGE_TIME: Duration = Duration::from_millis(250);
/// Most time to compact a GiB.
const COMPACTION_TIME: Duration = Duration::from_millis(80);
const STEP: Bytes = Bytes::mib(64);

struct Larger {
    pool: Pool,
    pages: u64,
}

impl Builder<'_> {
    pub(super) fn search(&mut self) -> Result<(), Error> {
        let Some(run) = self.run_sought() else {
            let needed = self.take(self.pages)?;
            return self.extend(needed);
        };
        self.run = run;
        self.effort = Effort::new(self.len, self.options);
        self.until = self.options.deadline();
        self.nodes = Nodes::of_machine(self.pool.size(), self.options.node_set());
        let frames = Frames::open().ok();
        self.take_idle_first(frames.as_ref())?;
        let is_small = self.pool.size().bytes() < LARGE;
        let frames = frames.filter(|_| is_small && (self.may_choose() || !self.may_grow()));
        if let Some(frames) = frames.as_ref().filter(|_| self.may_choose()) {
            self.choose(frames)?;
            // Further pages, in the pool's order, would make no longer run.
            let is_chosen = !self.effort.is_over() && self.pool.counts()?.available() == 0;
            if self.is_refused() && is_chosen {
                return Err(self.too_short());
            }
        }
        self.take_missing()?;
        if frames.is_none() || self.pool.counts()?.available() > 0 {
            self.widen(frames.is_none())?;
        }
        if self.is_refused() {
            return Err(self.too_short());
        }
        self.until = None;
        if !self.is_had() {
            self.tried = Some(self.effort.to_string());
        }
        Ok(())
    }

    fn is_refused(&self) -> bool {
        self.options.required.is_some_and(|required| required > self.longest_in_hand())
    }

    /// Ignores the deadline if idle pages may contain the required run.
    fn take_idle_first(&mut self, frames: Option<&Frames>) -> Result<(), Error> {
        let until = self.until;
        if let (Some(frames), Some(required), true) =
            (frames, self.options.required, until.is_some())
        {
            let size = self.pool.size();
            if longest_in_pool(frames, size)?.bytes(size) >= required {
                self.until = None;
            }
        }
        let taken = self.take_idle(self.pages);
        self.until = until;
        taken
    }

    /// Takes the missing pages at once if the required run is there, else in steps that fail if
    /// time runs out.
    fn take_missing(&mut self) -> Result<(), Error> {
        let size = self.pool.size();
        let missing = |this: &Self| this.pages.saturating_sub(this.held.pages());
        if missing(self) == 0 {
            return Ok(());
        }
        if !self.is_refused() {
            let rest = self.take(missing(self))?;
            return self.extend(rest);
        }
        let step = STEP.pages_down(size).get().max(1);
        let mut pace = if size.bytes() >= LARGE { LARGE_TIME } else { Duration::ZERO };
        while missing(self) > 0 {
            let begin = Instant::now();
            if self.is_refused() && !self.has_time_at(pace, step, missing(self)) {
                return Err(self.too_short());
            }
            let part = self.take(step.min(missing(self))).map_err(|error| self.whole(error))?;
            self.extend(part)?;
            pace = begin.elapsed();
        }
        Ok(())
    }

    /// Returns true if enough missing pages can come in time; `step` pages take `pace`.
    fn has_time_at(&mut self, pace: Duration, step: u64, missing: u64) -> bool {
        let size = self.pool.size();
        let run = self.options.required.map_or(missing, |run| run.pages_up(size).get());
        let pages = missing.min(run);
        let steps = u32::try_from(pages.div_ceil(step)).unwrap_or(u32::MAX);
        let needed = pace.saturating_mul(steps);
        let has_time = pace.is_zero() || self.effort.has_time_for(needed) && !self.effort.is_over();
        if !has_time {
            self.effort.note(format!("no time for {pages} pages of {}", size.bytes()));
        }
        has_time
    }

    fn whole(&self, error: Error) -> Error {
        match error {
            Error::PoolShort { size, got, path, how_to, .. } => {
                let (wanted, got) = (self.pages, got + self.held.pages());
                Error::PoolShort { size, wanted, got, path, how_to }
            }
            other => other,
        }
    }

    fn is_had(&self) -> bool {
        self.plan(&self.held).longest >= self.run
    }

    fn run_sought(&self) -> Option<usize> {
        let size = self.pool.size();
        let options = self.options;
        let is_asked = options.required.max(options.preferred).is_some();
        let run = match (options.run(self.len), options.search) {
            (_, Some(Bytes::ZERO)) | (None, None) => return None,
            (Some(_), None) if size.bytes() >= LARGE && !is_asked => return None,
            (Some(run), _) => run.pages_up(size).get(),
            (None, Some(_)) => self.pages,
        };
        Some(usize::try_from(run.min(self.pages)).unwrap_or(usize::MAX))
    }

    fn choose(&mut self, frames: &Frames) -> Result<(), Error> {
        let mut seen = self.see(frames)?;
        let mut compacted = false;
        if seen.1.get() < self.run as u64 {
            // Compacts first, because taken pages would hinder compaction.
            compacted = self.compact();
            seen = self.see(frames)?;
        }
        self.draw(frames, seen)?;
        if !self.is_had() && !self.effort.is_over() && !compacted && self.compact() {
            let seen = self.see(frames)?;
            self.draw(frames, seen)?;
        }
        if self.is_had() || self.effort.is_over() {
            return Ok(());
        }
        let Some(larger) = self.larger_pool() else { return Ok(()) };
        let of = larger.pool.size();
        let pages = u32::try_from(larger.pages).unwrap_or(u32::MAX);
        if !self.effort.has_time_for(LARGE_TIME.saturating_mul(pages)) {
            self.effort.note(format!("no time for {pages} pages of {} to split", of.bytes()));
            return Ok(());
        }
        if !has_movable(frames, of)? {
            let none = format!("no {} are free or movable as a whole, to be split", of.bytes());
            self.effort.note(none);
            return Ok(());
        }
        match self.take_split(&larger)? {
            Some(more) => self.extend(more)?,
            None => {
                self.effort.note(format!("no page of {} could be had to be split", of.bytes()));
            }
        }
        Ok(())
    }

    fn compact(&mut self) -> bool {
        let gib = meminfo::total().map_or(0, |total| total.get() >> 30);
        let times = u32::try_from(gib).unwrap_or(u32::MAX).max(1);
        if !self.effort.has_time_for(COMPACTION_TIME.saturating_mul(times)) {
            self.effort.note("no time for a compaction".to_owned());
            return false;
        }
        // The search's processor time excludes compaction, to leave time to take the freed pages.
        let compacted = self.effort.apart(compact_memory);
        self.effort.note(match &compacted {
            Ok(()) => "memory was compacted".to_owned(),
            Err(refused) => format!("no compaction: {refused}"),
        });
        compacted.is_ok()
    }

    fn widen(&mut self, may_grow: bool) -> Result<(), Error> {
        if self.is_had() {
            return Ok(());
        }
        let size = self.pool.size();
        let mut more = (self.pages / 4).max(8);
        while !self.is_had() && !self.effort.is_over() {
            let before = self.held.pages();
            let most = more.min(self.effort.looks_at(size).saturating_sub(before));
            match may_grow {
                false => self.take_idle(most)?,
                true => {
                    if let Some(taken) = self.take_some(most)? {
                        self.extend(taken)?;
                    }
                }
            }
            if self.held.pages() == before {
                break;
            }
            more = more.saturating_mul(2);
        }
        let all = Pages::new(self.held.pages()).bytes(size);
        self.effort.note(format!("{all} were looked at"));
        Ok(())
    }

    fn take_idle(&mut self, most: u64) -> Result<(), Error> {
        let pages = most.min(self.pool.counts()?.available());
        let len = Pages::new(pages).checked_bytes(self.pool.size());
        if pages == 0 || len.is_none_or(|len| self.gate.check(len).is_err()) {
            return Ok(());
        }
        match self.mapped(pages) {
            Err(Error::Os(_)) => Ok(()),
            mapped => self.extend(mapped?),
        }
    }

    fn take_some(&mut self, most: u64) -> Result<Option<Mapping>, Error> {
        let have = self.pool.counts()?.available();
        let more = match self.may_grow() {
            true => spare(&self.pool.nodes())?.pages_down(self.pool.size()).get(),
            false => 0,
        };
        let pages = most.min(have.saturating_add(more));
        let len = Pages::new(pages).checked_bytes(self.pool.size());
        if pages == 0 || len.is_none_or(|len| self.gate.check(len).is_err()) {
            return Ok(None);
        }
        match self.take(pages) {
            Err(Error::PoolShort { got: 0, .. }) => Ok(None),
            Err(Error::PoolShort { got, .. }) if got < pages => self.take(got).map(Some),
            taken => taken.map(Some),
        }
        .or_else(|error| match error {
            Error::PoolShort { .. } | Error::TooLarge { .. } => Ok(None),
            other => Err(other),
        })
    }

    fn extend(&mut self, mapping: Mapping) -> Result<(), Error> {
        // One thread populates a long private mapping, because several would mix the frames' order.
        let few = mapping.len().pages_up(self.pool.size()).get() <= super::STRETCHES_MAX as u64;
        let order = if few || self.options.is_of_files() { Order::Any } else { Order::Strict };
        self.fill(&mapping, order)?;
        Ok(self.held.add(mapping, self.pool.size())?)
    }

    fn larger_pool(&self) -> Option<Larger> {
        let size = self.pool.size();
        let pools =
            sizes().into_iter().filter_map(|larger| Pool::below(&self.options.place.pools, larger));
        // The kernel chooses the node of a split, so a search on chosen nodes cannot split.
        let pool = pools
            .filter(|_| self.may_grow() && !self.pool.is_part())
            .find(|pool| pool.is_writable() && pool.demote_size() == Some(size))?;
        Some(Larger { pages: self.len.pages_up(pool.size()).get(), pool })
    }

    fn take_split(&mut self, larger: &Larger) -> Result<Option<Mapping>, Error> {
        let needed = Pages::new(larger.pages).checked_bytes(larger.pool.size());
        let free = machine_available()?;
        if needed.is_none_or(|needed| needed > free) || self.gate.check(self.len).is_err() {
            return Ok(None);
        }
        let lock = self.lock()?;
        let pages = self.pages;
        lock.with_split(&self.pool, &larger.pool, larger.pages, |came| match came.min(pages) {
            0 => Ok(None),
            pages => self.mapped(pages).map(Some),
        })
    }
}
