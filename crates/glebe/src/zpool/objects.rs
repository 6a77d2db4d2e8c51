//! [`Objects`]: what may be done with objects, by entry; no handles, no limits' policy, no codec.
//!
//! Objects never change in place. An insert takes an entry and a slot, writes the bytes while
//! nobody can know of them, and publishes the entry. A remove changes the entry, then gives the
//! slot up. A replace writes a new slot, changes the entry, then gives the old slot up. A reader
//! holds no lock and waits for nobody: see [`pins`](crate::zpool::memory::pins).
//!
//! The entry of an object in a slot changes only under the lock of the class that its zspage
//! belongs to. That class is read without a lock and checked again under it. The entry changes by
//! compare and exchange, since it may have been read before the lock was taken.
//!
//! # Safety
//! Bytes are written to a slot that was allocated and not published, and lent while they are
//! pinned and the entry was seen unchanged after the pin.
#![allow(unsafe_code)]

use crate::sync::{AtomicU64, MutexGuard, Ordering};
use crate::zpool::class::classes::Classes;
use crate::zpool::class::{Class, Empty, State, Stop, Work};
use crate::zpool::entry::word::{Entry, Kind};
use crate::zpool::memory::account::NoRoom;
use crate::zpool::shared::Memory;

/// Objects of a retired class that are moved at a time.
const DRAIN: usize = 8;

/// See the module.
#[derive(Debug)]
pub(crate) struct Objects {
    pub(crate) memory: Memory,
    pub(crate) classes: Classes,
    pub(crate) filled: Filled,
}

/// An object as it is to be stored.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Stored<'a> {
    /// In a slot: 1 byte to a page, of `kind` already. `len` is the object's own length.
    Bytes { kind: Kind, bytes: &'a [u8], len: usize },
    /// In the entry alone.
    Filled { fill: u32, len: usize },
}

impl<'a> Stored<'a> {
    /// As it is.
    pub(crate) fn raw(bytes: &'a [u8]) -> Self {
        Self::Bytes { kind: Kind::Raw, bytes, len: bytes.len() }
    }
}

/// Objects that stand in their entries alone: no class has them. Relaxed counters.
#[derive(Debug, Default)]
pub(crate) struct Filled {
    came: AtomicU64,
    went: AtomicU64,
    given: AtomicU64,
}

impl Filled {
    fn came(&self, len: usize) {
        self.came.fetch_add(1, Ordering::Relaxed);
        self.given.fetch_add(len as u64, Ordering::Relaxed);
    }

    fn went(&self) {
        self.went.fetch_add(1, Ordering::Relaxed);
    }

    /// How many came and went, and the bytes of those that came.
    pub(crate) fn counts(&self) -> (u64, u64, u64) {
        let load = |word: &AtomicU64| word.load(Ordering::Relaxed);
        (load(&self.came), load(&self.went), load(&self.given))
    }
}

/// An object whose bytes stay where they are until [`Objects::unpin`].
#[derive(Clone, Copy, Debug)]
pub(crate) struct Pinned {
    pub(crate) entry: Entry,
    /// Where they begin; of a sealed zspage's, counted from its first byte.
    at: usize,
    pub(crate) is_referenced: bool,
    pub(crate) is_sealed: bool,
}

impl Pinned {
    /// Where the bytes begin, for models.
    #[cfg(loom)]
    pub(crate) fn start(&self) -> usize {
        self.at
    }

    /// Where the bytes begin, counted from the first of its sealed zspage.
    pub(crate) fn offset(&self) -> usize {
        debug_assert!(self.is_sealed);
        self.at
    }
}

impl Objects {
    /// Stores an object: the entry's index and the use of it that a handle is to name.
    #[inline]
    pub(crate) fn insert(&self, stored: Stored<'_>) -> Result<(u32, u32), NoRoom> {
        let memory = &self.memory;
        let (index, named) = memory.entries.alloc(&memory.account)?;
        match self.write(stored, index, named) {
            Ok(entry) => {
                memory.entries.publish(index, entry);
                Ok((index, named))
            }
            Err(error) => {
                memory.entries.put_back(&memory.account, index);
                Err(error)
            }
        }
    }

    /// Writes an object to a new slot that belongs to an entry, if it needs one; what the entry is
    /// to be.
    #[inline]
    fn write(&self, stored: Stored<'_>, index: u32, named: u32) -> Result<Entry, NoRoom> {
        let (kind, bytes, len) = match stored {
            Stored::Bytes { kind, bytes, len } => (kind, bytes, len),
            Stored::Filled { fill, len } => {
                self.filled.came(len);
                return Ok(Entry::filled(fill, len, named));
            }
        };
        let memory = &self.memory;
        let spot = loop {
            let Some(class) = self.classes.get(self.classes.of(bytes.len())) else {
                return Err(NoRoom::Space);
            };
            let mut state = class.lock();
            if !Classes::fits(&state, bytes.len()) {
                continue;
            }
            let spot = state.alloc(memory, index)?;
            state.count_in(bytes.len(), len);
            break spot;
        };
        // SAFETY: the slot is this call's alone until its entry is published.
        unsafe { memory.pages.frames().write(spot.at, bytes) };
        Ok(Entry::live(kind, spot.place, bytes.len(), named))
    }

    /// The entry of an object, if it is there.
    #[inline]
    pub(crate) fn entry(&self, index: u32, named: u32) -> Option<Entry> {
        let entry = self.memory.entries.load(index);
        self.memory.entries.is(index, entry, named).then_some(entry)
    }

    /// Pins an object, if it is there.
    #[inline]
    pub(crate) fn pin(&self, index: u32, named: u32) -> Option<Pinned> {
        let memory = &self.memory;
        loop {
            let entry = self.entry(index, named)?;
            if !entry.has_place() {
                return Some(Pinned { entry, at: 0, is_referenced: true, is_sealed: false });
            }
            let place = entry.place();
            memory.pins.pin(place.zspage);
            if self.entry(index, named) == Some(entry) {
                // The zspage cannot go while the pin is seen, so what is said of it holds.
                let about = memory.zspages.about(place.zspage);
                let size = self.classes.get(about.class).map_or(0, |class| class.size());
                let first = if about.is_sealed { 0 } else { memory.pages.start_of(about.page) };
                let at = first + place.slot as usize * size;
                let (is_referenced, is_sealed) = (about.is_referenced, about.is_sealed);
                return Some(Pinned { entry, at, is_referenced, is_sealed });
            }
            memory.pins.unpin(place.zspage);
        }
    }

    /// The stored bytes of a pinned object that is not sealed.
    ///
    /// # Safety
    /// They are not used after the [`Objects::unpin`].
    #[inline]
    pub(crate) unsafe fn bytes(&self, pinned: &Pinned) -> &[u8] {
        assert!(!pinned.is_sealed, "{:?} is sealed", pinned.entry);
        // SAFETY: while the pin stands, the slot is neither written nor given back.
        unsafe { self.memory.pages.frames().bytes(pinned.at, pinned.entry.len()) }
    }

    /// Lends the stored bytes of a pinned object that is not sealed for the time of a call; the
    /// pin is still there.
    #[inline]
    pub(crate) fn with_bytes<R>(&self, pinned: &Pinned, then: impl FnOnce(&[u8]) -> R) -> R {
        // SAFETY: the caller has the pin, and no bytes leave `then`.
        then(unsafe { self.bytes(pinned) })
    }

    /// Ends a pin.
    #[inline]
    pub(crate) fn unpin(&self, pinned: &Pinned) {
        if pinned.entry.has_place() {
            self.memory.pins.unpin(pinned.entry.place().zspage);
        }
    }

    /// Removes an object; whether it was there.
    #[inline]
    pub(crate) fn remove(&self, index: u32, named: u32) -> bool {
        let Some(was) = self.change(index, named, |_| true, Entry::freed, || ()) else {
            return false;
        };
        self.memory.entries.free(&self.memory.account, index, was);
        true
    }

    /// Stores another object under the same entry; false if there is none any more.
    pub(crate) fn replace(
        &self,
        index: u32,
        named: u32,
        stored: Stored<'_>,
    ) -> Result<bool, NoRoom> {
        let new = self.write(stored, index, named)?;
        if self.change(index, named, |_| true, |_| new, || ()).is_some() {
            return Ok(true);
        }
        self.take_back(new);
        Ok(false)
    }

    /// Stores a pinned object in another way, unless it is not the same any more or lies
    /// elsewhere. Ends the pin.
    pub(crate) fn recode(
        &self,
        index: u32,
        named: u32,
        pinned: &Pinned,
        stored: Stored<'_>,
    ) -> Result<bool, NoRoom> {
        let new = match self.write(stored, index, named) {
            Ok(new) => new,
            Err(error) => {
                self.unpin(pinned);
                return Err(error);
            }
        };
        // While pinned, the slot is nobody else's: the same word means the same bytes.
        let same = |entry: Entry| entry == pinned.entry;
        let done = self.change(index, named, same, |_| new, || self.unpin(pinned));
        if done.is_none() {
            self.unpin(pinned);
            self.take_back(new);
        }
        Ok(done.is_some())
    }

    /// Changes an entry to `to` of it, if it is one that `is` wants, and gives the slot up that it
    /// named; what it was. `then` is done in between.
    #[inline]
    fn change(
        &self,
        index: u32,
        named: u32,
        is: impl Fn(Entry) -> bool,
        to: impl Fn(Entry) -> Entry,
        then: impl Fn(),
    ) -> Option<Entry> {
        let memory = &self.memory;
        loop {
            let entry = self.entry(index, named).filter(|entry| is(*entry))?;
            if !entry.has_place() {
                if memory.entries.exchange_if(index, named, entry, to(entry)) {
                    self.filled.went();
                    return Some(entry);
                }
                continue;
            }
            let place = entry.place();
            let about = memory.zspages.about(place.zspage);
            let Some(class) = self.classes.get(about.class) else { continue };
            let mut state = class.lock();
            // What names a slot here nobody else changes now. The same word may be another use.
            if !state.has(memory, place.zspage)
                || !memory.entries.is_of_epoch(index, named)
                || !memory.entries.exchange(index, entry, to(entry))
            {
                continue;
            }
            state.counts.went += 1;
            state.count_off(entry);
            then();
            state.give_up(memory, place, Empty::Stays);
            return Some(entry);
        }
    }

    /// Gives back what was written and never published.
    fn take_back(&self, entry: Entry) {
        if !entry.has_place() {
            return self.filled.went();
        }
        let memory = &self.memory;
        let about = memory.zspages.about(entry.place().zspage);
        if let Some(class) = self.classes.get(about.class) {
            let mut state = class.lock();
            state.counts.went += 1;
            state.count_off(entry);
            state.give_up(memory, entry.place(), Empty::Goes);
        }
    }

    /// Removes the objects of a zspage; how many.
    pub(crate) fn evict(&self, zspage: u32) -> usize {
        self.evict_by(zspage, |state| state.evict(&self.memory, zspage))
    }

    /// Removes the objects of a zspage that `evict` removes; how many.
    pub(crate) fn evict_by(
        &self,
        zspage: u32,
        evict: impl FnOnce(&mut State) -> Vec<(u32, Entry)>,
    ) -> usize {
        let memory = &self.memory;
        let Some(class) = self.classes.get(memory.zspages.about(zspage).class) else { return 0 };
        let mut state = class.lock();
        let gone = evict(&mut state);
        drop(state);
        for (index, was) in &gone {
            memory.entries.free(&memory.account, *index, *was);
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
            state.is_waiting() && state.settle(&self.memory)
        };
        self.memory.waiting() > 0 && self.classes.all().filter(|class| settle(class)).count() > 0
    }

    /// Two classes, locked, in the order of numbers.
    pub(crate) fn both(
        &self,
        one: u32,
        other: u32,
    ) -> Option<(MutexGuard<'_, State>, MutexGuard<'_, State>)> {
        if one == other {
            return None;
        }
        let lower = self.classes.get(one.min(other))?.lock();
        let higher = self.classes.get(one.max(other))?.lock();
        Some(if one < other { (lower, higher) } else { (higher, lower) })
    }

    /// Moves a few objects out of a retired class; whether any was moved.
    pub(crate) fn drain(&self, work: &mut Work) -> Result<bool, NoRoom> {
        let (number, found) = loop {
            let Some(number) = self.classes.retired() else { return Ok(false) };
            let Some(class) = self.classes.get(number) else { return Ok(false) };
            let mut state = class.lock();
            if state.free_empty(&self.memory) == 0 {
                break (number, state.some_objects(&self.memory, DRAIN));
            }
        };
        let before = work.moved;
        for (place, len) in found {
            let target = self.classes.of(len);
            let Some((mut from, mut to)) = self.both(number, target) else { continue };
            let still = from.has(&self.memory, place.zspage)
                && place.slot < from.shape().objects
                && from.is_retired;
            if !still || !Classes::fits(&to, len) {
                continue;
            }
            // Another object may have come to the slot.
            from.move_to(&self.memory, &mut to, place, work)?;
        }
        Ok(work.moved > before)
    }

    /// Turns a stored byte of an object over, as a fault of the memory would.
    #[cfg(test)]
    pub(crate) fn damage(&self, (index, named): (u32, u32), at: usize) {
        let pinned = self.pin(index, named).expect("an object");
        // SAFETY: within the object, which the test alone uses.
        unsafe {
            let byte = !self.bytes(&pinned)[at];
            self.memory.pages.frames().write(pinned.at + at, &[byte]);
        }
        self.unpin(&pinned);
    }
}
