//! Compaction of a pool: by request, and by itself.
//!
//! Objects of a class's emptiest zspages go to its fullest, by
//! [`State::compact`](super::class::State::compact), a bounded number of bytes under one hold of
//! the class's lock. Zspages of high numbers are given low ones, so that the table of zspages
//! becomes shorter when they become few. By itself a pool compacts a little whenever an object
//! goes, as long as more than a share of its pages would be freed; so nobody does more than a
//! bounded amount.

use std::time::Instant;

use super::class::{Stop, Work};
use super::error::Error;
use super::options::{Budget, Compaction};
use super::pool::Pool;
use crate::units::{Bytes, Pages};

/// Bytes that are moved under one hold of a lock, and between two looks at the clock: of zspages
/// that are nearly empty they free dozens of pages, which leave by a call each.
const STEP_BYTES: usize = 4 << 10;
/// Bytes that are moved by a thread that removes an object.
const OWN_STEP_BYTES: usize = 8 << 10;
/// Of so many pages one may be freeable before a pool compacts by itself.
const PAGES_PER_FREEABLE: u64 = 2000;
/// Pages beyond those that may be kept which are gathered before they leave together.
const GATHERED: u64 = 32;
/// Zspages that are given a lower number at a time.
const LOWERED_MAX: usize = 3;
/// Of so many pages freed one zspage is given a lower number, and some besides.
const PAGES_PER_LOWERED: u64 = 8;
const LOWERED_MIN: u64 = 16;
/// Freeable pages that are not worth it: a zspage that comes and goes stays, however long it is.
const FREEABLE_MIN: u64 = 10;
/// Whenever so many more slots wait for readers, it is looked whether these have left.
const WAITING: u64 = 64;
/// Objects that a full step of draining moves, times the bytes of each, at most.
const DRAIN_BYTES: usize = 16 << 10;

/// What a compaction did.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Compacted {
    /// Objects that were moved.
    pub moved: u64,
    /// Pages that were freed.
    pub freed: Pages,
}

impl Pool {
    /// Pages that [`Pool::compact`] would free now, if nobody reads or writes meanwhile. Exact, as
    /// long as no class is retired, as [`Pool::set_table`] and the pool itself do: pages of such
    /// are not counted, and their objects will go to slots of others that are.
    #[must_use]
    pub fn freeable(&self) -> Pages {
        Pages::new(self.objects.memory.freeable())
    }

    /// Compacts, as far as the budget allows. Objects that are being read or written meanwhile are
    /// passed over.
    ///
    /// # Errors
    /// [`Error::NoBudget`] for a budget of zero.
    pub fn compact(&self, budget: Budget) -> Result<Compacted, Error> {
        self.alive()?;
        let until = match budget {
            Budget::Pages(Pages::ZERO) => return Err(Error::NoBudget),
            Budget::Time(time) if time.is_zero() => return Err(Error::NoBudget),
            Budget::Time(time) => Instant::now().checked_add(time),
            Budget::Pages(_) | Budget::All => None,
        };
        let mut work = Work { until, ..Work::default() };
        let is_spent = |work: &Work| match budget {
            Budget::Pages(pages) => work.pages >= pages.get(),
            Budget::Time(_) => work.is_late(),
            Budget::All => false,
        };
        self.compact_until(&mut work, is_spent);
        let lowered = work.pages / PAGES_PER_LOWERED + LOWERED_MIN;
        let _ = (0..lowered).all(|_| !is_spent(&work) && self.lower_one());
        let memory = &self.objects.memory;
        memory.pages.trim(&memory.account);
        Ok(Compacted { moved: work.moved, freed: Pages::new(work.pages) })
    }

    fn compact_until(&self, work: &mut Work, is_spent: impl Fn(&Work) -> bool) {
        let memory = &self.objects.memory;
        self.objects.settle();
        while self.objects.classes.is_draining() && !is_spent(work) {
            if !matches!(self.objects.drain(work), Ok(true)) {
                break;
            }
        }
        let (mut from, mut rounds) = (0, 0);
        while let Some(class) = memory.next_ready(from) {
            // Once round: what a class has left then is being used.
            if class < from {
                rounds += 1;
            }
            if rounds > 0 || is_spent(work) {
                return;
            }
            work.bytes_left = STEP_BYTES;
            if self.objects.compact(class, work, true) != Some(Stop::Spent) {
                from = class + 1;
            } else {
                from = class;
            }
            memory.pages.trim_above(&memory.account, GATHERED);
        }
    }

    /// After an object went.
    #[inline]
    pub(crate) fn after_gone(&self) {
        let memory = &self.objects.memory;
        memory.pages.trim(&memory.account);
        if self.compaction == Compaction::Automatic {
            let bound = memory.pages.used() / PAGES_PER_FREEABLE + FREEABLE_MIN;
            let waiting = memory.waiting();
            if waiting != 0 && waiting % WAITING == 0 {
                self.objects.settle();
            }
            if memory.freeable() > bound {
                self.compact_some();
            } else {
                self.spill_if_due();
            }
            if self.objects.classes.is_draining() {
                self.drain_some();
            }
        }
        self.look_if_due();
    }

    #[cold]
    fn compact_some(&self) {
        let memory = &self.objects.memory;
        let mut work = Work { bytes_left: OWN_STEP_BYTES, ..Work::default() };
        // Where the last one stopped, so that no class is left out for long.
        let from = self.next_class.load(crate::sync::Ordering::Relaxed) as u32;
        let Some(class) = memory.next_ready(from) else { return };
        let stop = self.objects.compact(class, &mut work, false);
        let next = if stop == Some(Stop::Spent) { class } else { class + 1 };
        self.next_class.store(next.into(), crate::sync::Ordering::Relaxed);
        let _ = (0..LOWERED_MAX).all(|_| self.lower_one());
        memory.pages.trim(&memory.account);
    }

    /// Gives a zspage of a high number a low one, where the table of zspages is sparse; whether it
    /// did.
    pub(crate) fn lower_one(&self) -> bool {
        let memory = &self.objects.memory;
        let Some(zspage) = memory.zspages.sparse() else { return false };
        let class = self.objects.classes.get(memory.zspages.about(zspage).class);
        class.is_some_and(|class| class.lock().lower(memory, zspage))
    }

    #[cold]
    pub(crate) fn drain_some(&self) {
        if self.compaction == Compaction::Automatic {
            let mut work = Work { bytes_left: DRAIN_BYTES, ..Work::default() };
            // Without room it goes on when there is some.
            let _ = self.objects.drain(&mut work);
        }
    }

    /// Compacts until some pages are free, or nothing more can be; whether any came.
    pub(crate) fn compact_for_room(&self) -> bool {
        let mut work = Work::default();
        self.compact_until(&mut work, |work| work.pages > 0);
        work.pages > 0
    }

    /// Bytes that the pool holds, everything counted; of small tables some KiB more than there are.
    #[must_use]
    pub fn held(&self) -> Bytes {
        Bytes::new(self.objects.memory.account.held())
    }
}
