//! [`compact`] and [`Compactor`] move objects to free pages.

use crate::class::{Stop, Work};
use crate::error::Error;
use crate::objects::Objects;
use crate::options::{Budget, Compaction};
use glebe_os::internal::sync::{AtomicU64, Ordering};
use glebe_os::units::Pages;

/// Bytes after which a move of objects releases the class's lock.
const STEP_BYTES: usize = 4 << 10;
/// Bytes after which a remove stops moving objects.
const OWN_STEP_BYTES: usize = 8 << 10;
const PAGES_PER_FREEABLE: u64 = 2000;
/// A compaction trims kept pages when they exceed their bound by more than this number.
const GATHERED: u64 = 32;
const LOWERED_MAX: usize = 3;
/// [`compact`] renumbers at most one zspage per this many freed pages, and `LOWERED_MIN` more.
const PAGES_PER_LOWERED: u64 = 8;
const LOWERED_MIN: u64 = 16;
/// Freeable pages that automatic compaction always tolerates, because an empty zspage may stay for
/// the next object.
const FREEABLE_MIN: u64 = 10;
/// A remove tries to free waiting slots when their number is a multiple of this.
const WAITING: u64 = 64;

/// Holds the result of a compaction.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Compacted {
    /// Objects moved.
    pub moved: u64,
    /// Pages freed.
    pub freed: Pages,
}

#[derive(Debug)]
pub(crate) struct Compactor {
    when: Compaction,
    next_class: AtomicU64,
}

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
    // Visits each class only once: `freeable()` may stay above 0 while objects are pinned.
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
        // Starts where the last call stopped, so that every class gets its turn.
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

    #[inline]
    pub(crate) fn drain_if_due(&self, objects: &Objects) {
        if objects.classes.is_draining() && self.when == Compaction::Automatic {
            let mut work = Work::default();
            let _ = objects.drain(&mut work);
        }
    }
}

fn lower_one(objects: &Objects) -> bool {
    let memory = &objects.memory;
    let Some(zspage) = memory.zspages.sparse() else { return false };
    let class = objects.classes.get(memory.zspages.about(zspage).class);
    class.is_some_and(|class| class.lock().lower(memory, zspage))
}

pub(crate) fn compact_for_room(objects: &Objects) -> bool {
    let mut work = Work::default();
    compact_until(objects, &mut work, |work| work.pages > 0);
    work.pages > 0
}
