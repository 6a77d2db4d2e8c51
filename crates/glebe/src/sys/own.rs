//! [`Own`]: which memory this library has mapped for itself, so that nobody has it made volatile.
//!
//! The kernel cannot tell: it makes one mapping of ours and of what the program has beside it.
//! Addresses are in bytes. Files and pages of the hugetlb pools need no note, since their mappings
//! show what they are. What lies in the heap is not known here.
//!
//! Slots that are never freed and used again, without a lock, so that a forked child waits for
//! nobody. A slot counts while its `end` is not zero; that is stored last and cleared
//! first. Memory that fork does not pass on is noted with the number of its process
//! ([`ForkGuard::generation`]). Cost: a few loads for each slot ever used.
//!
//! ```text
//! slot   start: 0 = free | end: 0 = does not count | process: 0 = this one and its children
//! ```

use std::ops::Range;

use crate::sync::{List, MappedWord, Ordering};
use crate::sys::fork::ForkGuard;

static SLOTS: List<Slot> = List::new();

#[derive(Debug)]
struct Slot {
    start: MappedWord,
    end: MappedWord,
    process: MappedWord,
}

/// A note of memory that was mapped; it ends when this is dropped.
#[derive(Debug)]
pub(crate) struct Own(&'static Slot);

impl Own {
    /// Notes a range, which is not empty and does not begin at zero.
    pub(crate) fn note(range: Range<usize>) -> Self {
        let slot = SLOTS.find_or_add(|slot| slot.take(range.start), || Slot::new(range.start));
        slot.process.store(0, Ordering::Relaxed);
        slot.end.store(range.end as u64, Ordering::Release);
        Self(slot)
    }

    /// Says that the process of `guard` alone has the memory.
    pub(crate) fn is_lost_by_fork(&self, guard: &ForkGuard) {
        self.0.process.store(guard.generation(), Ordering::Release);
    }
}

impl Drop for Own {
    fn drop(&mut self) {
        self.0.end.store(0, Ordering::Release);
        self.0.start.store(0, Ordering::Release);
    }
}

/// The first address of `range` at which memory of this library lies.
pub(crate) fn first_in(range: &Range<usize>) -> Option<usize> {
    let here = ForkGuard::new().generation();
    SLOTS.iter().filter_map(|slot| slot.first_in(range, here)).min()
}

impl Slot {
    fn new(start: usize) -> Self {
        let start = MappedWord::new(start as u64);
        Self { start, end: MappedWord::new(0), process: MappedWord::new(0) }
    }

    /// Whether it was free, and is the caller's now.
    fn take(&self, start: usize) -> bool {
        let (ok, failed) = (Ordering::Acquire, Ordering::Relaxed);
        self.start.load(Ordering::Relaxed) == 0
            && self.start.compare_exchange(0, start as u64, ok, failed).is_ok()
    }

    fn first_in(&self, range: &Range<usize>, here: u64) -> Option<usize> {
        // `end` first: with it comes the rest, which was stored before it.
        let end = self.end.load(Ordering::Acquire) as usize;
        let start = self.start.load(Ordering::Relaxed) as usize;
        let process = self.process.load(Ordering::Relaxed);
        let at = start.max(range.start);
        (at < end.min(range.end) && (process == 0 || process == here)).then_some(at)
    }
}

#[cfg(test)]
mod tests;
