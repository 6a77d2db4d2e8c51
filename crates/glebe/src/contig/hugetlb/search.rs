//! The search for the longest runs of huge pages.
//!
//! What costs least comes first, and the search ends when a run is long enough:
//!
//! 1. pages that lie idle in the pool, which are there to be used;
//! 2. where no free run is long enough, a compaction of the machine's memory;
//! 3. pages that are free, of the longest runs ([`survey`](super::survey)), drawn into the pool
//!    ([`draw`](super::draw)); if others were quicker, a compaction and once more;
//! 4. pages of the next larger size, split;
//! 5. where frames are hidden, or no page may be chosen, pages as the pool hands them out, ever
//!    more of them.
//!
//! What is missing in number at the end is had as it comes. No step has the kernel drop more of
//! the page cache than the pages taken need, but the fourth: to make one larger page it moves or
//! drops what stands there.
//!
//! Counts and frames are huge pages.

use std::time::{Duration, Instant};

use super::effort::{spare, Effort};
use super::nodes::Nodes;
use super::survey::{has_movable, longest_in_pool};
use super::{machine_available, Builder, Order};
use crate::contig::Error;
use crate::mapping::Mapping;
use crate::sys::compact::compact_memory;
use crate::sys::hugetlb::{sizes, Pool};
use crate::sys::kpage::Frames;
use crate::sys::meminfo;
use crate::units::{Bytes, Pages};

/// Of pages from this size on no more than needed are taken to choose from, unless a run is asked
/// for: each is long, and zeroing it costs seconds.
const LARGE: Bytes = Bytes::gib(1);
/// The kernel takes this long to make such a page.
const LARGE_TIME: Duration = Duration::from_millis(250);
/// The kernel takes this long at most to compact a GiB of the machine's memory.
const COMPACTION_TIME: Duration = Duration::from_millis(80);
/// Pages are taken in steps of this length where they may not contain the required run.
const STEP: Bytes = Bytes::mib(64);

/// A pool of larger pages, and how many of them hold the whole length.
struct Larger {
    pool: Pool,
    pages: u64,
}

impl Builder<'_> {
    /// Takes pages in hand, and more where longer runs are wanted than those make.
    pub(super) fn search(&mut self) -> Result<(), Error> {
        let Some(run) = self.run_sought() else {
            let needed = self.take(self.pages)?;
            return self.extend(needed);
        };
        self.run = run;
        self.effort = Effort::new(self.len, self.options);
        self.until = self.options.deadline();
        self.nodes = Nodes::of_machine(self.pool.size(), self.options.node);
        let frames = Frames::open().ok();
        self.take_idle_first(frames.as_ref())?;
        let is_small = self.pool.size().bytes() < LARGE;
        let frames = frames.filter(|_| is_small && (self.may_choose() || !self.may_grow()));
        if let Some(frames) = frames.as_ref().filter(|_| self.may_choose()) {
            self.choose(frames)?;
            // Pages as they come would make no longer run than those that were chosen.
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

    /// Whether a run is required that is not in hand.
    fn is_refused(&self) -> bool {
        self.options.required.is_some_and(|required| required > self.longest_in_hand())
    }

    /// Takes what lies idle, which is no part of the search: for as long as that takes, if the run
    /// that is required may be there.
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

    /// Has the pages that are missing as they come: a few at a time, and only while there is time,
    /// where a run is required that is not in hand.
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

    /// Whether as many of the `missing` pages as the required run needs can be had in time, where
    /// `step` of them take as long as `pace`.
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

    /// A refusal of a few pages, as one of all.
    fn whole(&self, error: Error) -> Error {
        match error {
            Error::PoolShort { size, got, path, how_to, .. } => {
                let (wanted, got) = (self.pages, got + self.held.pages());
                Error::PoolShort { size, wanted, got, path, how_to }
            }
            other => other,
        }
    }

    /// Whether a run is long enough.
    fn is_had(&self) -> bool {
        self.held.plan(self.pages).longest >= self.run
    }

    /// The run to look for, if any.
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
        // A longer one than all of the pages cannot be.
        Some(usize::try_from(run.min(self.pages)).unwrap_or(usize::MAX))
    }

    /// Has the longest runs that are free, or can be made so.
    fn choose(&mut self, frames: &Frames) -> Result<(), Error> {
        let mut seen = self.see(frames)?;
        let mut compacted = false;
        if seen.1.get() < self.run as u64 {
            // Before pages are taken that would stand in the way.
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

    /// Compacts the machine's memory, where that is allowed.
    fn compact(&mut self) -> bool {
        let gib = meminfo::total().map_or(0, |total| total.get() >> 30);
        let times = u32::try_from(gib).unwrap_or(u32::MAX).max(1);
        if !self.effort.has_time_for(COMPACTION_TIME.saturating_mul(times)) {
            self.effort.note("no time for a compaction".to_owned());
            return false;
        }
        // It may take longer than the search has, and is for nothing if what it made is not drawn.
        let compacted = self.effort.apart(compact_memory);
        self.effort.note(match &compacted {
            Ok(()) => "memory was compacted".to_owned(),
            Err(refused) => format!("no compaction: {refused}"),
        });
        compacted.is_ok()
    }

    /// Takes ever more of what the pool hands out, until a run is long enough or nothing is left.
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

    /// Takes up to `most` of the pages that lie idle in the pool.
    fn take_idle(&mut self, most: u64) -> Result<(), Error> {
        let pages = most.min(self.pool.counts()?.available());
        let len = Pages::new(pages).checked_bytes(self.pool.size());
        if pages == 0 || len.is_none_or(|len| self.gate.check(len).is_err()) {
            return Ok(());
        }
        match self.mapped(pages) {
            // Somebody else was quicker.
            Err(Error::Os(_)) => Ok(()),
            mapped => self.extend(mapped?),
        }
    }

    /// Up to `most` pages, at least one; `None` where none can be had.
    fn take_some(&mut self, most: u64) -> Result<Option<Mapping>, Error> {
        let have = self.pool.counts()?.available();
        let more = match self.may_grow() {
            true => spare(self.pool.node())?.pages_down(self.pool.size()).get(),
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

    /// Populates `mapping` and takes its pages in hand.
    fn extend(&mut self, mapping: Mapping) -> Result<(), Error> {
        // Threads that draw from the pool in turn leave no two pages side by side as they were.
        let few = mapping.len().pages_up(self.pool.size()).get() <= super::STRETCHES_MAX as u64;
        let order = if few || self.options.mappable { Order::Any } else { Order::Strict };
        self.fill(&mapping, order)?;
        Ok(self.held.add(mapping, self.pool.size())?)
    }

    /// The pool whose pages split into pages of this size, if it may be grown.
    fn larger_pool(&self) -> Option<Larger> {
        let size = self.pool.size();
        let pools =
            sizes().into_iter().filter_map(|larger| Pool::below(&self.options.place.pools, larger));
        // Nobody can say on which node a page is split.
        let pool = pools
            .filter(|_| self.may_grow() && self.pool.node().is_none())
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
        lock.with_split(&self.pool, &larger.pool, larger.pages, |came| match came.min(pages) {
            0 => Ok(None),
            pages => self.mapped(pages).map(Some),
        })
    }
}
