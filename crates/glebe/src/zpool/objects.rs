//! [`Objects`]: what may be done with objects, by entry; no handles, no limits' policy, no codec.
//!
//! Objects never change in place. An insert takes an entry and a slot, writes the bytes while
//! nobody can know of them, and publishes the entry. A remove changes the entry, then gives the
//! slot up. A replace writes a new slot, changes the entry, then gives the old slot up. A reader
//! holds no lock and waits for nobody: see [`pins`](super::pins).
//!
//! The entry of a live object changes only under the lock of the class that its zspage belongs
//! to. That class is read without a lock and checked again under it.
//!
//! # Safety
//! Bytes are written to a slot that was allocated and not published, and lent while they are
//! pinned and the entry was seen unchanged after the pin.
#![allow(unsafe_code)]

use super::account::NoRoom;
use super::class::{Class, State, Stop, Work};
use super::classes::Classes;
use super::entry::{Entry, Kind};
use super::memory::Memory;

/// Objects of a retired class that are moved at a time.
const DRAIN: usize = 8;

/// See the module.
#[derive(Debug)]
pub(crate) struct Objects {
    pub(crate) memory: Memory,
    pub(crate) classes: Classes,
}

/// An object whose bytes stay where they are until [`Objects::unpin`].
#[derive(Clone, Copy, Debug)]
pub(crate) struct Pinned {
    pub(crate) entry: Entry,
    at: usize,
    pub(crate) is_referenced: bool,
}

impl Objects {
    /// Stores bytes, 1 to a page, that are of `kind` already: the entry's index and generation.
    #[inline]
    pub(crate) fn insert(
        &self,
        lane: usize,
        group: Option<u32>,
        kind: Kind,
        bytes: &[u8],
    ) -> Result<(u32, u32), NoRoom> {
        let memory = &self.memory;
        let (index, generation) = memory.entries.alloc(&memory.account, lane)?;
        match self.write(group, kind, bytes, index, generation) {
            Ok(entry) => {
                memory.entries.publish(index, entry);
                Ok((index, generation))
            }
            Err(error) => {
                memory.entries.free(&memory.account, lane, index);
                Err(error)
            }
        }
    }

    /// Writes bytes to a new slot that belongs to an entry; what the entry is to be.
    #[inline]
    fn write(
        &self,
        group: Option<u32>,
        kind: Kind,
        bytes: &[u8],
        index: u32,
        generation: u32,
    ) -> Result<Entry, NoRoom> {
        let memory = &self.memory;
        let spot = loop {
            let Some(class) = self.classes.get(self.classes.of(bytes.len())) else {
                return Err(NoRoom::Space);
            };
            let mut state = class.lock();
            if !Classes::fits(&state, bytes.len()) {
                continue;
            }
            let spot = state.alloc(memory, group, index)?;
            state.counts.came += 1;
            state.counts.objects += 1;
            state.counts.bytes += bytes.len() as u64;
            let parts = self.classes.parts_below(state.shape().size, bytes.len());
            state.came(parts);
            break spot;
        };
        // SAFETY: the slot is this call's alone until its entry is published.
        unsafe { memory.pages.frames().write(spot.at, bytes) };
        Ok(Entry::live(kind, spot.place, bytes.len(), generation))
    }

    /// Whether the entry is the one that the handle means.
    #[inline]
    fn is(entry: Entry, generation: u32) -> bool {
        entry.is_live() && entry.generation() == generation
    }

    /// The entry of an object, if it is there.
    #[inline]
    pub(crate) fn entry(&self, index: u32, generation: u32) -> Option<Entry> {
        Some(self.memory.entries.load(index)).filter(|entry| Self::is(*entry, generation))
    }

    /// Pins an object, if it is there.
    #[inline]
    pub(crate) fn pin(&self, index: u32, generation: u32) -> Option<Pinned> {
        let memory = &self.memory;
        let mut entry = memory.entries.load(index);
        loop {
            if !Self::is(entry, generation) {
                return None;
            }
            let place = entry.place();
            memory.pins.pin(place.zspage);
            let now = memory.entries.load(index);
            if now == entry {
                // The zspage cannot go while the pin is seen, so what is said of it holds.
                let about = memory.zspages.about(place.zspage);
                let size = self.classes.get(about.class).map_or(0, |class| class.size());
                let at = memory.pages.start_of(about.page) + place.slot as usize * size;
                return Some(Pinned { entry, at, is_referenced: about.is_referenced });
            }
            memory.pins.unpin(place.zspage);
            entry = now;
        }
    }

    /// The stored bytes of a pinned object.
    ///
    /// # Safety
    /// They are not used after the [`Objects::unpin`].
    #[inline]
    pub(crate) unsafe fn bytes(&self, pinned: &Pinned) -> &[u8] {
        // SAFETY: while the pin stands, the slot is neither written nor given back.
        unsafe { self.memory.pages.frames().bytes(pinned.at, pinned.entry.len()) }
    }

    /// Ends a pin.
    #[inline]
    pub(crate) fn unpin(&self, pinned: &Pinned) {
        self.memory.pins.unpin(pinned.entry.place().zspage);
    }

    /// Removes an object; its kind and stored length, if it was there.
    #[inline]
    pub(crate) fn remove(&self, lane: usize, index: u32, generation: u32) -> Option<usize> {
        let memory = &self.memory;
        let entry = self.change(index, generation, Entry::freed)?;
        memory.entries.free(&memory.account, lane, index);
        Some(entry.len())
    }

    /// Stores other bytes under the same entry; false if the object is gone.
    pub(crate) fn replace(
        &self,
        index: u32,
        generation: u32,
        kind: Kind,
        bytes: &[u8],
    ) -> Result<bool, NoRoom> {
        let new = self.write(None, kind, bytes, index, generation)?;
        if self.change(index, generation, |_| new).is_some() {
            return Ok(true);
        }
        self.take_back(new);
        Ok(false)
    }

    /// Changes an entry to `to` of it and gives the slot up that it named; what it was.
    #[inline]
    fn change(&self, index: u32, generation: u32, to: impl Fn(Entry) -> Entry) -> Option<Entry> {
        let memory = &self.memory;
        loop {
            let entry = self.entry(index, generation)?;
            let place = entry.place();
            let about = memory.zspages.about(place.zspage);
            let Some(class) = self.classes.get(about.class) else { continue };
            let mut state = class.lock();
            // Now neither can change.
            if memory.entries.load(index) != entry || !state.has(memory, place.zspage) {
                continue;
            }
            memory.entries.exchange(index, to(entry));
            self.count_gone(&mut state, entry.len());
            state.give_up(memory, place);
            return Some(entry);
        }
    }

    #[inline]
    fn count_gone(&self, state: &mut State, len: usize) {
        state.counts.went += 1;
        state.counts.objects -= 1;
        state.counts.bytes -= len as u64;
        let parts = self.classes.parts_below(state.shape().size, len);
        state.went(parts);
    }

    /// Gives back a slot that was written and never published.
    fn take_back(&self, entry: Entry) {
        let memory = &self.memory;
        let about = memory.zspages.about(entry.place().zspage);
        if let Some(class) = self.classes.get(about.class) {
            let mut state = class.lock();
            self.count_gone(&mut state, entry.len());
            state.free_unused(memory, entry.place());
        }
    }

    /// Removes the objects of a zspage; how many.
    pub(crate) fn evict(&self, lane: usize, zspage: u32) -> usize {
        let memory = &self.memory;
        let Some(class) = self.classes.get(memory.zspages.about(zspage).class) else { return 0 };
        let mut state = class.lock();
        let gone = state.evict(memory, zspage);
        let size = state.shape().size;
        for (_, len) in &gone {
            let parts = self.classes.parts_below(size, *len);
            state.went(parts);
        }
        drop(state);
        for (index, _) in &gone {
            memory.entries.free(&memory.account, lane, *index);
        }
        gone.len()
    }

    /// Compacts the class of a number, as far as `work` allows. `None` where another thread has it
    /// and `wait` does not say otherwise.
    pub(crate) fn compact(&self, number: u32, work: &mut Work, wait: bool) -> Option<Stop> {
        let class = self.classes.get(number)?;
        let mut state = if wait { class.lock() } else { class.try_lock()? };
        Some(state.compact(&self.memory, work))
    }

    /// Frees the slots of all classes that waited for readers who have left; whether a zspage went.
    pub(crate) fn settle(&self) -> bool {
        let settle = |class: &Class| {
            let mut state = class.lock();
            state.limbo() > 0 && state.settle(&self.memory)
        };
        self.memory.waiting() > 0 && self.classes.all().filter(|class| settle(class)).count() > 0
    }

    /// Moves a few objects out of a retired class; whether any was moved.
    pub(crate) fn drain(&self, work: &mut Work) -> Result<bool, NoRoom> {
        let Some(number) = self.classes.retired() else { return Ok(false) };
        let Some(class) = self.classes.get(number) else { return Ok(false) };
        let found = class.lock().some_objects(&self.memory, DRAIN);
        let before = work.moved;
        for (place, len) in found {
            let target = self.classes.of(len);
            let Some(other) = self.classes.get(target).filter(|_| target != number) else {
                continue;
            };
            let (mut from, mut to);
            if number < target {
                from = class.lock();
                to = other.lock();
            } else {
                to = other.lock();
                from = class.lock();
            }
            let still = from.has(&self.memory, place.zspage) && from.is_retired;
            if !still || !Classes::fits(&to, len) {
                continue;
            }
            let (size, to_size) = (from.shape().size, to.shape().size);
            // Another object may have come to the slot.
            if let Some(len) = from.move_to(&self.memory, &mut to, place, work)? {
                from.went(self.classes.parts_below(size, len));
                to.came(self.classes.parts_below(to_size, len));
            }
        }
        Ok(work.moved > before)
    }
}
