//! [`Own`] notes memory that this library mapped for itself, so that callers cannot mark it.
//!
//! The kernel merges adjacent mappings of the library and the program, so mappings do not show the
//! owner. Hugetlb pages and the heap are not noted.
//!
//! Slots are reused but never freed. No lock protects slots, so a forked child never waits. `end`
//! is stored last and cleared first.
//!
//! ```text
//! slot   start: 0 = free | end: 0 = does not count | process: generation that counts it, 0 = all
//! ```

use std::ops::Range;

use crate::internal::sync::{List, MappedWord, Ordering};
use crate::internal::sys::processes::fork::ForkGuard;

static SLOTS: List<Slot> = List::new();

#[derive(Debug)]
struct Slot {
    start: MappedWord,
    end: MappedWord,
    process: MappedWord,
}

#[derive(Debug)]
pub struct Own(&'static Slot);

impl Own {
    /// Notes a range, which must not be empty or begin at zero.
    pub fn note(range: Range<usize>) -> Self {
        let slot = SLOTS.find_or_add(|slot| slot.take(range.start), || Slot::new(range.start));
        slot.process.store(0, Ordering::Relaxed);
        slot.end.store(range.end as u64, Ordering::Release);
        Self(slot)
    }

    pub fn is_lost_by_fork(&self, guard: &ForkGuard) {
        self.0.process.store(guard.generation(), Ordering::Release);
    }
}

impl Drop for Own {
    fn drop(&mut self) {
        self.0.end.store(0, Ordering::Release);
        self.0.start.store(0, Ordering::Release);
    }
}

pub fn first_in(range: &Range<usize>) -> Option<usize> {
    let here = ForkGuard::new().generation();
    SLOTS.iter().filter_map(|slot| slot.first_in(range, here)).min()
}

impl Slot {
    fn new(start: usize) -> Self {
        let start = MappedWord::new(start as u64);
        Self { start, end: MappedWord::new(0), process: MappedWord::new(0) }
    }

    fn take(&self, start: usize) -> bool {
        let (ok, failed) = (Ordering::Acquire, Ordering::Relaxed);
        self.start.load(Ordering::Relaxed) == 0
            && self.start.compare_exchange(0, start as u64, ok, failed).is_ok()
    }

    fn first_in(&self, range: &Range<usize>, here: u64) -> Option<usize> {
        // This load makes the other fields visible, because `end` was stored last.
        let end = self.end.load(Ordering::Acquire) as usize;
        let start = self.start.load(Ordering::Relaxed) as usize;
        let process = self.process.load(Ordering::Relaxed);
        let at = start.max(range.start);
        (at < end.min(range.end) && (process == 0 || process == here)).then_some(at)
    }
}

#[cfg(test)]
mod tests;
