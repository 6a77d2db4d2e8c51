//! [`Objects`] inserts, reads, replaces and removes objects. An *entry* says where an object is.
//!
//! An object never changes in place. A writer fills a slot that no entry names, changes the entry,
//! then frees the old slot. A reader takes no lock: see [`pins`](crate::memory::pins).
//!
//! The entry of an object in a slot changes only under its class's lock. Callers look up the class
//! without the lock, so they check class and entry again under the lock.
//!
//! # Safety
//! A call writes only to a slot that it allocated and has not published. Bytes are lent only while
//! pinned, after a second look that found the entry unchanged.
#![allow(unsafe_code)]

use crate::class::classes::Classes;
use crate::class::{Class, ClassState, Empty, Stop, Work};
use crate::entry::word::{Entry, Kind};
use crate::memory::account::NoRoom;
use crate::shared::Memory;
use glebe_os::internal::sync::{AtomicU64, MutexGuard, Ordering};

const DRAIN: usize = 8;

#[derive(Debug)]
pub(crate) struct Objects {
    pub(crate) memory: Memory,
    pub(crate) classes: Classes,
    pub(crate) filled: Filled,
}

#[derive(Clone, Copy, Debug)]
pub(crate) enum Stored<'a> {
    /// `len` is the object's own length.
    Bytes {
        kind: Kind,
        bytes: &'a [u8],
        len: usize,
    },
    Filled {
        fill: u32,
        len: usize,
    },
}

impl<'a> Stored<'a> {
    pub(crate) fn raw(bytes: &'a [u8]) -> Self {
        Self::Bytes { kind: Kind::Raw, bytes, len: bytes.len() }
    }
}

/// Counts objects without a slot, which belong to no class.
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

    pub(crate) fn counts(&self) -> (u64, u64, u64) {
        let load = |word: &AtomicU64| word.load(Ordering::Relaxed);
        (load(&self.came), load(&self.went), load(&self.given))
    }
}

/// Keeps the bytes of an object in place until `Objects::unpin`.
#[derive(Clone, Copy, Debug)]
pub struct Pinned {
    /// The entry.
    pub entry: Entry,
    /// Offset in bytes: in the zspage if sealed, else in the pool's memory.
    at: usize,
    pub(crate) is_referenced: bool,
    /// True if the zspage is sealed: its bytes have left the pool's memory.
    pub is_sealed: bool,
}

impl Pinned {
    #[cfg(loom)]
    pub(crate) fn start(&self) -> usize {
        self.at
    }

    /// Returns the offset of the bytes in the sealed zspage.
    pub fn offset(&self) -> usize {
        debug_assert!(self.is_sealed);
        self.at
    }
}

impl Objects {
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
        // SAFETY: only this call uses the slot until its entry is published.
        unsafe { memory.pages.frames().write(spot.at, bytes) };
        Ok(Entry::live(kind, spot.place, bytes.len(), named))
    }

    #[inline]
    pub(crate) fn entry(&self, index: u32, named: u32) -> Option<Entry> {
        let entry = self.memory.entries.load(index);
        self.memory.entries.is(index, entry, named).then_some(entry)
    }

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
                // The pin keeps the zspage's pages, even if the zspage is sealed meanwhile.
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

    /// # Safety
    /// The caller does not use the bytes after [`Objects::unpin`].
    #[inline]
    pub(crate) unsafe fn bytes(&self, pinned: &Pinned) -> &[u8] {
        assert!(!pinned.is_sealed, "{:?} is sealed", pinned.entry);
        // SAFETY: the pin keeps the slot from being reused or given back.
        unsafe { self.memory.pages.frames().bytes(pinned.at, pinned.entry.len()) }
    }

    #[inline]
    pub(crate) fn with_bytes<R>(&self, pinned: &Pinned, then: impl FnOnce(&[u8]) -> R) -> R {
        // SAFETY: the caller holds the pin, and no bytes leave `then`.
        then(unsafe { self.bytes(pinned) })
    }

    #[inline]
    pub(crate) fn unpin(&self, pinned: &Pinned) {
        if pinned.entry.has_place() {
            self.memory.pins.unpin(pinned.entry.place().zspage);
        }
    }

    #[inline]
    pub(crate) fn remove(&self, index: u32, named: u32) -> bool {
        let Some(was) = self.change(index, named, |_| true, Entry::freed, || ()) else {
            return false;
        };
        self.memory.entries.free(&self.memory.account, index, was);
        true
    }

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

    /// Writes a pinned object to a new slot and ends the pin. Returns false if the object changed.
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
        // The pin keeps the slot from being reused, so an equal word means equal bytes.
        let same = |entry: Entry| entry == pinned.entry;
        let done = self.change(index, named, same, |_| new, || self.unpin(pinned));
        if done.is_none() {
            self.unpin(pinned);
            self.take_back(new);
        }
        Ok(done.is_some())
    }

    /// Changes an entry that satisfies `is`, and returns the old entry. If the object has a slot,
    /// calls `then` and frees the slot.
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
            // After a wrap of the generation, an equal word may name another object, so the epoch
            // is compared too.
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

    pub(crate) fn evict(&self, zspage: u32) -> usize {
        self.evict_by(zspage, |state| state.evict(&self.memory, zspage))
    }

    pub(crate) fn evict_by(
        &self,
        zspage: u32,
        evict: impl FnOnce(&mut ClassState) -> Vec<(u32, Entry)>,
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

    /// Returns `None` if the class is missing or, unless `wait`, locked.
    pub(crate) fn compact(&self, number: u32, work: &mut Work, wait: bool) -> Option<Stop> {
        let class = self.classes.get(number)?;
        let mut state = if wait { class.lock() } else { class.try_lock()? };
        Some(state.compact(&self.memory, work))
    }

    pub(crate) fn settle(&self) -> bool {
        let settle = |class: &Class| {
            let mut state = class.lock();
            state.is_waiting() && state.settle(&self.memory)
        };
        self.memory.waiting() > 0 && self.classes.all().filter(|class| settle(class)).count() > 0
    }

    pub(crate) fn both(
        &self,
        one: u32,
        other: u32,
    ) -> Option<(MutexGuard<'_, ClassState>, MutexGuard<'_, ClassState>)> {
        if one == other {
            return None;
        }
        let lower = self.classes.get(one.min(other))?.lock();
        let higher = self.classes.get(one.max(other))?.lock();
        Some(if one < other { (lower, higher) } else { (higher, lower) })
    }

    /// Moves objects out of a retired class.
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
            // If the slot holds another object by now, that object moves instead.
            from.move_to(&self.memory, &mut to, place, work)?;
        }
        Ok(work.moved > before)
    }

    #[cfg(test)]
    pub(crate) fn damage(&self, (index, named): (u32, u32), at: usize) {
        let pinned = self.pin(index, named).expect("an object");
        // SAFETY: the byte is within the object, which only the test uses.
        unsafe {
            let byte = !self.bytes(&pinned)[at];
            self.memory.pages.frames().write(pinned.at + at, &[byte]);
        }
        self.unpin(&pinned);
    }
}
