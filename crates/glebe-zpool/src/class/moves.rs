//! [`ClassState`] moves objects within the class or to another class, and evicts them.
//!
//! Under the class's lock, a move copies the bytes, exchanges the entry and frees the old slot.
#![allow(unsafe_code)]

use std::ops::Range;
use std::time::Instant;

use super::{ClassState, Empty, Spot};
use crate::class::blocks::{NEXT, NONE};
use crate::entry::word::{Entry, Place};
use crate::memory::account::NoRoom;
use crate::shared::Memory;

const CANDIDATES: usize = 8;

#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Work {
    pub(crate) bytes_left: usize,
    pub(crate) until: Option<Instant>,
    pub(crate) moved: u64,
    pub(crate) pages: u64,
}

impl Work {
    #[inline]
    pub(crate) fn is_spent(&self) -> bool {
        self.bytes_left == 0 || self.is_late()
    }

    #[inline]
    pub(crate) fn is_late(&self) -> bool {
        self.until.is_some_and(|until| Instant::now() >= until)
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Stop {
    Done,
    Spent,
    Stuck,
}

impl ClassState {
    pub(crate) fn compact(&mut self, memory: &Memory, work: &mut Work) -> Stop {
        if !self.limbo.is_empty() {
            self.settle(memory);
        }
        let went = u64::from(self.free_empty(memory) * self.shape.pages);
        work.pages += went;
        self.counts.compacted += went;
        let stop = loop {
            if self.freeable() == 0 {
                break Stop::Done;
            }
            if work.is_spent() {
                break Stop::Spent;
            }
            let Some((from, to)) = self.pair(memory) else { break Stop::Stuck };
            if !self.pour(memory, from, to, work) {
                break if work.is_spent() { Stop::Spent } else { Stop::Stuck };
            }
        };
        self.tell(memory);
        stop
    }

    /// Returns the zspage to empty, with a high number, and the zspage to fill. Freed high numbers
    /// shorten the table of zspages.
    fn pair(&self, memory: &Memory) -> Option<(u32, u32)> {
        let number = |ordinal: &u32| self.blocks.number(*ordinal);
        let to = self.some_of(self.groups.fullest()?).min_by_key(number)?;
        let unpinned = |ordinal: &u32| !memory.pins.is_pinned(self.blocks.number(*ordinal));
        for head in self.groups.emptiest_first() {
            let candidates = self.some_of(head).filter(|ordinal| *ordinal != to);
            let emptiest = candidates.filter(unpinned).max_by_key(number);
            if let Some(from) = emptiest {
                return Some((from, to));
            }
        }
        None
    }

    fn some_of(&self, head: u32) -> impl Iterator<Item = u32> + '_ {
        let next = |ordinal: &u32| Some(self.blocks.link(*ordinal, NEXT)).filter(|at| *at != NONE);
        std::iter::successors(Some(head), next).take(CANDIDATES)
    }

    fn pour(&mut self, memory: &Memory, from: u32, to: u32, work: &mut Work) -> bool {
        let before = work.moved;
        let (zspage, target) = (self.blocks.number(from), self.blocks.number(to));
        let is_referenced = memory.zspages.about(zspage).is_referenced;
        for slot in 0..self.blocks.fresh(from) {
            if self.blocks.used(to) == self.shape.objects || work.is_spent() {
                break;
            }
            let Some(object) = self.object(memory, from, slot) else { continue };
            let spot = self.take(memory, to, object.0);
            if self.relocate(memory, Place { zspage, slot }, object, &spot, work) {
                break;
            }
        }
        if is_referenced && work.moved > before {
            memory.zspages.refer(target);
        }
        work.moved > before
    }

    /// Moves the objects of a zspage to a new zspage with the lowest free number.
    pub(crate) fn lower(&mut self, memory: &Memory, zspage: u32) -> bool {
        if !self.has(memory, zspage) || memory.pins.is_pinned(zspage) {
            return false;
        }
        if self.blocks.is_sealed(memory.zspages.ordinal(zspage)) {
            return false;
        }
        let Ok(to) = self.grow(memory) else { return false };
        let (number, compacted) = (self.blocks.number(to), self.counts.compacted);
        let mut work = Work { bytes_left: usize::MAX, ..Work::default() };
        let moved = self.pour(memory, memory.zspages.ordinal(zspage), to, &mut work);
        // These pages do not count as compacted, because `grow` took as many.
        self.counts.compacted = compacted;
        let to = memory.zspages.ordinal(number);
        if self.blocks.used(to) == 0 {
            self.shrink(memory, to);
        }
        moved
    }

    fn relocate(
        &mut self,
        memory: &Memory,
        place: Place,
        (index, entry): (u32, Entry),
        spot: &Spot,
        work: &mut Work,
    ) -> bool {
        let ordinal = memory.zspages.ordinal(place.zspage);
        let at = self.at(memory, self.blocks.page(ordinal), place.slot);
        // SAFETY: under this lock the old slot holds the object's bytes. No entry names the new
        // slot, and only this call uses it.
        unsafe { memory.pages.frames().copy(at, spot.at, entry.len()) };
        let is_moved = memory.entries.exchange(index, entry, entry.moved(spot.place));
        assert!(is_moved, "{entry:?} of entry {index} changed under its class's lock");
        work.moved += 1;
        work.bytes_left = work.bytes_left.saturating_sub(entry.len());
        self.counts.moved += 1;
        let went = self.give_up(memory, place, Empty::Goes);
        if went {
            work.pages += u64::from(self.shape.pages);
            self.counts.compacted += u64::from(self.shape.pages);
        }
        went
    }

    /// Does nothing if the object does not fit or its zspage is sealed. The caller holds both
    /// locks.
    pub(crate) fn move_to(
        &mut self,
        memory: &Memory,
        other: &mut ClassState,
        place: Place,
        work: &mut Work,
    ) -> Result<(), NoRoom> {
        let ordinal = memory.zspages.ordinal(place.zspage);
        let Some((index, entry)) = self.object(memory, ordinal, place.slot) else { return Ok(()) };
        if self.blocks.is_sealed(ordinal) || entry.len() > other.shape.size as usize {
            return Ok(());
        }
        let spot = other.alloc(memory, index)?;
        self.count_off(entry);
        other.count_on(entry.len());
        self.relocate(memory, place, (index, entry), &spot, work);
        Ok(())
    }

    pub(crate) fn some_objects(&mut self, memory: &Memory, most: usize) -> Vec<(Place, usize)> {
        self.settle(memory);
        let mut found = Vec::new();
        let full = self.groups.full();
        for ordinal in self.groups.emptiest_first().chain(full) {
            let zspage = self.blocks.number(ordinal);
            for slot in 0..self.blocks.fresh(ordinal) {
                if let Some((_, entry)) = self.object(memory, ordinal, slot) {
                    found.push((Place { zspage, slot }, entry.len()));
                }
                if found.len() == most {
                    return found;
                }
            }
        }
        found
    }

    pub(crate) fn evict(&mut self, memory: &Memory, zspage: u32) -> Vec<(u32, Entry)> {
        self.evict_where(memory, zspage, |_| true)
    }

    pub(super) fn evict_where(
        &mut self,
        memory: &Memory,
        zspage: u32,
        is: impl Fn(Range<usize>) -> bool,
    ) -> Vec<(u32, Entry)> {
        let mut gone = Vec::new();
        if !self.has(memory, zspage) {
            return gone;
        }
        let ordinal = memory.zspages.ordinal(zspage);
        for slot in 0..self.blocks.fresh(ordinal) {
            let Some((index, entry)) = self.object(memory, ordinal, slot) else { continue };
            let start = slot as usize * self.shape.size as usize;
            let is = is(start..start + entry.len());
            if !is || !memory.entries.exchange(index, entry, entry.freed()) {
                continue;
            }
            self.count_off(entry);
            self.counts.evicted += 1;
            gone.push((index, entry));
            if self.give_up(memory, Place { zspage, slot }, Empty::Goes) {
                break;
            }
        }
        gone
    }
}
