//! Compaction of a pool: by request, and by itself.
//!
//! Objects of a class's emptiest zspages go to its fullest, by
//! [`State::compact`](crate::zpool::class::State::compact), a bounded number of bytes under one
//! hold of the class's lock. Zspages of high numbers are given low ones, so that the table of
//! zspages becomes shorter when they become few. By itself a pool compacts a little whenever an
//! object goes, as long as more than a share of its pages would be freed; so nobody does more than
//! a bounded amount.

use crate::sync::{AtomicU64, Ordering};
use crate::units::Pages;
use crate::zpool::class::{Stop, Work};
use crate::zpool::error::Error;
use crate::zpool::objects::Objects;
use crate::zpool::options::{Budget, Compaction};

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

/// When a pool compacts, and where it goes on.
#[derive(Debug)]
pub(crate) struct Compactor {
    when: Compaction,
    /// The class at which compaction by itself goes on.
    next_class: AtomicU64,
}

/// Compacts `objects`, as far as the budget allows.
///
/// # Errors
/// [`Error::NoBudget`] for a budget of zero.
pub(crate) fn compact(objects: &Objects, budget: Budget) -> Result<Compacted, Error> {
    let until = budget.until()?;
    let mut work = Work { until, ..Work::default() };
    let is_spent = |work: &Work| match budget {
        Budget::Pages(pages) => work.pages >= pages.get(),
        Budget::Time(_) => work.is_late(),
        Budget::All => false,
    };
    compact_until(objects, &mut work, is_spent);
    let lowered = work.pages / PAGES_PER_LOWERED + LOWERED_MIN;
    let _ = (0..lowered).all(|_| !is_spent(&work) && lower_one(objects));
    let memory = &objects.memory;
    memory.pages.trim(&memory.account);
    Ok(Compacted { moved: work.moved, freed: Pages::new(work.pages) })
}

fn compact_until(objects: &Objects, work: &mut Work, is_spent: impl Fn(&Work) -> bool) {
    let memory = &objects.memory;
    objects.settle();
    while objects.classes.is_draining() && !is_spent(work) {
        if !matches!(objects.drain(work), Ok(true)) {
            break;
        }
    }
    // Once round: what a class has left then is being used.
    for class in 0..objects.classes.all().count() as u32 {
        let mut stop = None;
        while memory.freeable() > 0 && !is_spent(work) && stop.is_none_or(|it| it == Stop::Spent) {
            work.bytes_left = STEP_BYTES;
            stop = objects.compact(class, work, true);
            memory.pages.trim_above(&memory.account, GATHERED);
        }
    }
}

impl Compactor {
    pub(crate) fn new(when: Compaction) -> Self {
        Self { when, next_class: AtomicU64::new(0) }
    }

    /// Does what is due after an object went.
    #[inline]
    pub(crate) fn after_gone(&self, objects: &Objects) {
        let memory = &objects.memory;
        memory.pages.trim(&memory.account);
        if self.when == Compaction::Automatic {
            let bound = memory.pages.used() / PAGES_PER_FREEABLE + FREEABLE_MIN;
            let waiting = memory.waiting();
            if waiting != 0 && waiting % WAITING == 0 {
                objects.settle();
            }
            if memory.freeable() > bound {
                self.compact_some(objects);
            }
        }
        self.drain_if_due(objects);
    }

    #[cold]
    fn compact_some(&self, objects: &Objects) {
        let memory = &objects.memory;
        let mut work = Work { bytes_left: OWN_STEP_BYTES, ..Work::default() };
        // Where the last one stopped, so that no class is left out for long.
        let from = self.next_class.load(Ordering::Relaxed) as u32;
        let count = objects.classes.all().count() as u32;
        for class in (from..from + count).map(|class| class % count) {
            let stop = objects.compact(class, &mut work, false);
            if stop != Some(Stop::Done) || work.pages > 0 {
                let next = if stop == Some(Stop::Spent) { class } else { class + 1 };
                self.next_class.store(next.into(), Ordering::Relaxed);
                break;
            }
        }
        let _ = (0..LOWERED_MAX).all(|_| lower_one(objects));
        memory.pages.trim(&memory.account);
    }

    /// Moves a few objects to classes of a new table, where that is automatic.
    #[inline]
    pub(crate) fn drain_if_due(&self, objects: &Objects) {
        if objects.classes.is_draining() && self.when == Compaction::Automatic {
            let mut work = Work { bytes_left: DRAIN_BYTES, ..Work::default() };
            // Without room it goes on when there is some.
            let _ = objects.drain(&mut work);
        }
    }
}

/// Gives a zspage of a high number a low one, where the table of zspages is sparse; whether it
/// did.
fn lower_one(objects: &Objects) -> bool {
    let memory = &objects.memory;
    let Some(zspage) = memory.zspages.sparse() else { return false };
    let class = objects.classes.get(memory.zspages.about(zspage).class);
    class.is_some_and(|class| class.lock().lower(memory, zspage))
}

/// Compacts until some pages are free, or nothing more can be; whether any came.
pub(crate) fn compact_for_room(objects: &Objects) -> bool {
    let mut work = Work::default();
    compact_until(objects, &mut work, |work| work.pages > 0);
    work.pages > 0
}
