//! [`Own`]: which memory this library has mapped for itself, so that nobody has it made volatile.
//!
//! The kernel cannot tell: it makes one mapping of ours and of what the program has beside it.
//! Addresses are in bytes. Files and pages of the hugetlb pools need no note, since their mappings
//! show what they are. What lies in the heap is not known here.
//!
//! Slots in chunks that are never freed and used again, without a lock, so that a forked child
//! waits for nobody. A slot counts while its `end` is not zero; that is stored last and cleared
//! first. Memory that fork does not pass on is noted with the number of its process
//! ([`ForkGuard::generation`]). Cost: a few loads for each slot ever used.
//!
//! ```text
//! slot   start: 0 = free | end: 0 = does not count | process: 0 = this one and its children
//! ```
//!
//! # Safety
//! A pointer of this file is null, or leads to a chunk that was whole before it was stored and is
//! never freed.
#![allow(unsafe_code)]

use std::iter;
use std::ops::Range;
use std::ptr;

use crate::sync::{MappedPtr, MappedWord, Ordering};
use crate::sys::fork::ForkGuard;

const SLOTS: usize = 64;

#[derive(Debug)]
struct Slot {
    start: MappedWord,
    end: MappedWord,
    process: MappedWord,
}

struct Chunk {
    slots: [Slot; SLOTS],
    next: MappedPtr<Chunk>,
}

static FIRST: Chunk = Chunk::new();

/// A note of memory that was mapped; it ends when this is dropped.
#[derive(Debug)]
pub(crate) struct Own(&'static Slot);

impl Own {
    /// Notes a range, which is not empty and does not begin at zero.
    pub(crate) fn note(range: Range<usize>) -> Self {
        let slot = slots().find(|slot| slot.take(range.start)).unwrap_or_else(|| grow(range.start));
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
    slots().filter_map(|slot| slot.first_in(range, here)).min()
}

impl Slot {
    const fn new() -> Self {
        Self { start: MappedWord::new(0), end: MappedWord::new(0), process: MappedWord::new(0) }
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

impl Chunk {
    const fn new() -> Self {
        Self { slots: [const { Slot::new() }; SLOTS], next: MappedPtr::new(ptr::null_mut()) }
    }

    fn next(&self) -> Option<&'static Chunk> {
        // SAFETY: as the file's head says.
        unsafe { self.next.load(Ordering::Acquire).as_ref() }
    }
}

fn chunks() -> impl Iterator<Item = &'static Chunk> {
    iter::successors(Some(&FIRST), |chunk| chunk.next())
}

fn slots() -> impl Iterator<Item = &'static Slot> {
    chunks().flat_map(|chunk| &chunk.slots)
}

/// A slot, taken, of a new chunk at the end of the list.
#[cold]
fn grow(start: usize) -> &'static Slot {
    let new: &'static Chunk = Box::leak(Box::new(Chunk::new()));
    new.slots[0].take(start);
    let (ok, failed) = (Ordering::AcqRel, Ordering::Acquire);
    let link = ptr::from_ref(new).cast_mut();
    let mut last = &FIRST;
    while last.next.compare_exchange(ptr::null_mut(), link, ok, failed).is_err() {
        last = last.next().unwrap_or(last);
    }
    &new.slots[0]
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Where no memory is, so that no other test's is either.
    const BASE: usize = 1 << 60;

    #[test]
    fn what_is_noted_is_found_until_it_is_dropped() {
        let all = BASE..BASE + 0x10_000;
        assert_eq!(first_in(&all), None);
        let notes: Vec<Own> = (0..3 * SLOTS)
            .rev()
            .map(|nth| Own::note(BASE + nth * 0x20..BASE + nth * 0x20 + 0x10))
            .collect();
        assert_eq!(first_in(&all), Some(BASE));
        assert_eq!(first_in(&(BASE + 8..BASE + 9)), Some(BASE + 8));
        assert_eq!(first_in(&(BASE + 0x10..BASE + 0x20)), None);
        assert_eq!(first_in(&(BASE + 0x10..BASE + 0x21)), Some(BASE + 0x20));
        let used = chunks().count();
        drop(notes);
        assert_eq!(first_in(&all), None);
        let again: Vec<Own> =
            (0..2 * SLOTS).map(|nth| Own::note(BASE + nth..BASE + nth + 1)).collect();
        assert_eq!(chunks().count(), used);
        drop(again);
    }

    #[test]
    fn a_child_does_not_find_what_fork_did_not_pass_on() {
        let place = BASE + 0x20_0000;
        let (kept, lost) = (Own::note(place..place + 1), Own::note(place + 1..place + 2));
        lost.is_lost_by_fork(&ForkGuard::new());
        assert_eq!(first_in(&(place + 1..place + 2)), Some(place + 1));
        let check = || {
            first_in(&(place..place + 2)) == Some(place)
                && first_in(&(place + 1..place + 2)).is_none()
        };
        // SAFETY: the child looks at atomics.
        assert!(unsafe { crate::sys::child::in_child(check) });
        drop((kept, lost));
    }
}
