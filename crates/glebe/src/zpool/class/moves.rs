//! What moves or ends the objects of a class: compaction, lower pages, another class, eviction.
//!
//! A moved object keeps its handle: its bytes are copied, then its entry is exchanged, and the old
//! slot is given up, which readers may hold back. All of it is done under the class's lock.

use super::super::account::NoRoom;
use super::super::entry::{Entry, Place};
use super::super::memory::Memory;
use super::super::zspage::{NEXT, NONE};
use super::{State, Stop, Work};

/// Zspages of one list that are looked at for one to empty.
const CANDIDATES: usize = 8;

impl State {
    /// Frees zspages by moving objects of the emptiest into the fullest, as far as `work` allows.
    pub(crate) fn compact(&mut self, memory: &Memory, work: &mut Work) -> Stop {
        if !self.limbo.is_empty() {
            self.settle(memory);
        }
        while self.freeable > 0 {
            if work.bytes_left == 0 {
                return Stop::Spent;
            }
            if self.pair(memory).is_none() {
                self.close_all(memory);
            }
            let Some((from, to)) = self.pair(memory) else { return Stop::Stuck };
            if !self.pour(memory, from, to, work) {
                return Stop::Stuck;
            }
        }
        Stop::Done
    }

    /// The zspage to empty and the one to fill: of those about as full, what leaves has a high
    /// number and what stays a low one, so that the table of zspages becomes shorter.
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

    /// The first zspages of a list.
    fn some_of(&self, head: u32) -> impl Iterator<Item = u32> + '_ {
        let next = |ordinal: &u32| Some(self.blocks.link(*ordinal, NEXT)).filter(|at| *at != NONE);
        std::iter::successors(Some(head), next).take(CANDIDATES)
    }

    /// Moves objects from one zspage to another until the first is gone, the second full or the
    /// budget spent; whether any was moved.
    fn pour(&mut self, memory: &Memory, from: u32, to: u32, work: &mut Work) -> bool {
        let before = work.moved;
        let zspage = self.blocks.number(from);
        for slot in 0..self.blocks.fresh(from) {
            if work.bytes_left == 0 || self.blocks.used(to) == self.shape.objects {
                break;
            }
            let Some((index, entry)) = self.object(memory, from, slot) else { continue };
            let spot = self.take(memory, to, index);
            let at = self.at(memory, self.blocks.page(from), slot);
            // SAFETY: as the module says.
            unsafe { memory.pages.frames().copy(at, spot.at, entry.len()) };
            memory.entries.exchange(index, entry.moved(spot.place));
            work.moved += 1;
            work.bytes_left = work.bytes_left.saturating_sub(entry.len());
            self.counts.moved_in += 1;
            self.counts.moved_out += 1;
            if self.give_up(memory, Place { zspage, slot }) {
                work.pages += u64::from(self.shape.pages);
                self.counts.compacted += 1;
                break;
            }
        }
        work.moved > before
    }

    /// Moves the objects of a zspage to a new one, which has the lowest number; whether any was.
    pub(crate) fn lower(&mut self, memory: &Memory, zspage: u32) -> bool {
        if !self.has(memory, zspage) || memory.pins.is_pinned(zspage) {
            return false;
        }
        self.close_all(memory);
        let Ok(to) = self.grow(memory, false) else { return false };
        let (number, compacted) = (self.blocks.number(to), self.counts.compacted);
        let mut work = Work { bytes_left: usize::MAX, ..Work::default() };
        let moved = self.pour(memory, memory.zspages.ordinal(zspage), to, &mut work);
        // What was freed here was taken here.
        self.counts.compacted = compacted;
        let to = memory.zspages.ordinal(number);
        if self.blocks.used(to) > 0 {
            self.close(to);
        } else {
            self.shrink(memory, to);
        }
        moved
    }

    /// Moves the object in a slot to another class, both locked; its length, if there was one that
    /// fits. Lengths of objects are counted by the caller.
    pub(crate) fn move_to(
        &mut self,
        memory: &Memory,
        other: &mut State,
        place: Place,
        work: &mut Work,
    ) -> Result<Option<usize>, NoRoom> {
        let ordinal = memory.zspages.ordinal(place.zspage);
        let object = self.object(memory, ordinal, place.slot);
        let fits = |entry: &Entry| entry.len() <= other.shape.size as usize;
        let Some((index, entry)) = object.filter(|(_, entry)| fits(entry)) else {
            return Ok(None);
        };
        let spot = other.alloc(memory, None, index)?;
        let at = self.at(memory, self.blocks.page(ordinal), place.slot);
        // SAFETY: as the module says.
        unsafe { memory.pages.frames().copy(at, spot.at, entry.len()) };
        let (len, given) = (entry.len() as u64, self.given(memory, entry));
        memory.entries.exchange(index, entry.moved(spot.place));
        work.moved += 1;
        work.bytes_left = work.bytes_left.saturating_sub(entry.len());
        self.counts.objects -= 1;
        self.counts.bytes -= len;
        self.counts.given = self.counts.given.wrapping_sub(given);
        self.counts.moved_out += 1;
        other.counts.objects += 1;
        other.counts.bytes += len;
        other.counts.given = other.counts.given.wrapping_add(given);
        other.counts.moved_in += 1;
        if self.give_up(memory, place) {
            work.pages += u64::from(self.shape.pages);
            self.counts.compacted += 1;
        }
        Ok(Some(entry.len()))
    }

    /// The first objects of the emptiest zspage, at most so many: where each is and its length.
    pub(crate) fn some_objects(&mut self, memory: &Memory, most: usize) -> Vec<(Place, usize)> {
        self.close_all(memory);
        self.settle(memory);
        let mut found = Vec::new();
        let full =
            (0..self.blocks.len()).find(|ordinal| self.blocks.used(*ordinal) == self.shape.objects);
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

    /// The objects of an idle zspage, each with its entry's index and the entry. None if it is not
    /// idle, or all were given out before and none came since.
    pub(crate) fn idle_objects(&mut self, memory: &Memory, zspage: u32) -> Vec<(u32, Entry)> {
        if !self.has(memory, zspage) || !memory.zspages.look(zspage) {
            return Vec::new();
        }
        let ordinal = memory.zspages.ordinal(zspage);
        if self.blocks.is_tried(ordinal) {
            return Vec::new();
        }
        self.blocks.set_tried(ordinal, true);
        let slots = 0..self.blocks.fresh(ordinal);
        slots.filter_map(|slot| self.object(memory, ordinal, slot)).collect()
    }

    /// Lets objects of a zspage be given out again.
    pub(crate) fn untry(&mut self, memory: &Memory, zspage: u32) {
        if self.has(memory, zspage) {
            self.blocks.set_tried(memory.zspages.ordinal(zspage), false);
        }
    }

    /// Removes every object of a zspage; the indexes of the entries, which are now free words.
    pub(crate) fn evict(&mut self, memory: &Memory, zspage: u32) -> Vec<(u32, usize)> {
        let mut gone = Vec::new();
        if !self.has(memory, zspage) {
            return gone;
        }
        let ordinal = memory.zspages.ordinal(zspage);
        for slot in 0..self.blocks.fresh(ordinal) {
            let Some((index, entry)) = self.object(memory, ordinal, slot) else { continue };
            self.count_off(memory, entry);
            memory.entries.exchange(index, entry.freed());
            self.counts.evicted += 1;
            gone.push((index, entry.len()));
            if self.give_up(memory, Place { zspage, slot }) {
                break;
            }
        }
        gone
    }
}
