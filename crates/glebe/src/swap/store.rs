//! [`Store`] makes, pins and frees objects by key.
//!
//! A call changes the object's [word](super::word) in atomic steps. The call waits while another
//! thread evicts, loads or frees the object, and does not block that thread.
//!
//! # Safety
//! A call touches only bytes of objects that it has pinned or owns.
#![allow(unsafe_code)]

use super::copies::{Copies, Unreadable};
use super::error::SwapError;
use super::file::SpillFile;
use super::guard::{Pin, PinMut};
use super::key::Key;
use super::load::Access;
use super::memory::StoreMemory;
use super::options::SwapOptions;
use super::places::Places;
use super::room::Room;
use super::shelf::{Hands, Shelf};
use super::slots::SwapSlot;
use super::stats::{Counter, Counts};
use super::word::{change, look, must, Refusal, Word, WordState, PINS_MAX};
use glebe_os::internal::stats::Histogram;
use glebe_os::internal::sync::{Backoff, MappedWord, Ordering};
use glebe_os::internal::sys::processes::fork::ForkGuard;
use glebe_os::units::Bytes;

pub(super) const LEN_MAX: usize = 2 << 20;
static STORES: MappedWord = MappedWord::new(0);

pub(super) fn next_number() -> u32 {
    STORES.fetch_add(1, Ordering::Relaxed) as u32
}

/// `Store` owns objects, with at most a budget of their bytes in memory. See [the module](super).
#[derive(Debug)]
pub struct Store {
    pub(super) number: u32,
    pub(super) places: Places,
    pub(super) memory: StoreMemory,
    pub(super) copies: Copies,
    pub(super) room: Room,
    pub(super) counts: Counts,
    pub(super) loads: Histogram,
    pub(super) keeps_copies: bool,
    guard: ForkGuard,
}

impl Store {
    /// Returns the default options.
    pub fn options() -> SwapOptions {
        SwapOptions::default()
    }

    /// Makes a store with at most `budget` bytes in memory.
    ///
    /// # Errors
    /// As [`SwapOptions::build`].
    pub fn with_budget(budget: Bytes) -> Result<Self, SwapError> {
        Self::options().build(budget)
    }

    pub(super) fn new(options: &SwapOptions, budget: Bytes) -> Result<Self, SwapError> {
        let room = Room::new(budget)?;
        let capacity = options.capacity_pages(budget)?;
        let file = options.new_file(capacity.get())?;
        Ok(Self {
            number: next_number(),
            places: Places::new(capacity)?,
            memory: StoreMemory::new(capacity)?,
            copies: Copies::new(&options.codec, options.pool_limit_for(budget), file)?,
            room,
            counts: Counts::new(),
            loads: Histogram::new(),
            keeps_copies: options.keeps_copies,
            guard: ForkGuard::new(),
        })
    }

    /// Returns true if the file bypasses the page cache; `None` without a file.
    #[must_use]
    pub fn is_file_direct(&self) -> Option<bool> {
        self.copies.file.as_ref().map(SpillFile::is_direct)
    }

    #[inline]
    pub(super) fn alive(&self) -> Result<(), SwapError> {
        if self.guard.is_child() {
            return Err(SwapError::Forked);
        }
        Ok(())
    }

    #[inline]
    fn slot(&self, key: Key) -> Result<SwapSlot<'_>, SwapError> {
        self.alive()?;
        if key.store != self.number {
            return Err(SwapError::Foreign);
        }
        self.places.slot(key.index).ok_or(SwapError::Foreign)
    }

    /// Makes an object of `len` zero bytes, pinned for writing.
    ///
    /// # Errors
    /// `Len`, `Addresses`, `Forked`; `Budget`, `Full` or `FileFull` without room; `Os`, `Pool`.
    pub fn create(&self, len: usize) -> Result<PinMut<'_>, SwapError> {
        self.alive()?;
        if len == 0 || len > LEN_MAX {
            return Err(SwapError::Len { len, max: LEN_MAX });
        }
        let (index, slot) = self.places.take(len)?;
        let place = slot.place();
        // SAFETY: `take` gave this call the place.
        if let Err(error) = unsafe { self.bring(place, true) } {
            self.places.put_back(index, slot, false);
            return Err(error);
        }
        let hole = must(slot.word(), Word::created);
        self.counts.add(Counter::Created, place.pages());
        let key = Key { store: self.number, index, generation: hole.generation() };
        // SAFETY: `created` took the exclusive pin.
        Ok(unsafe { PinMut::new(self, slot, key) })
    }

    /// Stores a copy of `bytes` as an object.
    ///
    /// # Errors
    /// As [`Store::create`].
    pub fn insert(&self, bytes: &[u8]) -> Result<Key, SwapError> {
        let mut object = self.create(bytes.len())?;
        object.copy_from_slice(bytes);
        Ok(object.key())
    }

    /// Pins an object for reading, and loads it if necessary.
    ///
    /// # Errors
    /// `Stale`, `Foreign`, `Dead`, `Forked`; `Pinned` while a [`PinMut`] exists, `TooManyPins`;
    /// `Budget`, `Full`, `FileFull`, `Os`, `Pool` or `Damaged` from a load.
    #[inline]
    pub fn pin(&self, key: Key) -> Result<Pin<'_>, SwapError> {
        let slot = self.slot(key)?;
        if let Err(refusal) = change(slot.word(), |word| word.pinned(key.generation)) {
            self.pin_absent(key, slot, refusal)?;
        }
        // SAFETY: this call has pinned the object.
        Ok(unsafe { Pin::new(self, slot) })
    }

    #[cold]
    fn pin_absent(&self, key: Key, slot: SwapSlot<'_>, refusal: Refusal) -> Result<(), SwapError> {
        self.bring_for(key, slot, refusal, Access::Read, |word| word.pinned(key.generation))?;
        Ok(())
    }

    /// Pins an object for writing, and loads it if necessary.
    ///
    /// # Errors
    /// As [`Store::pin`]; `Pinned` also while a [`Pin`] exists.
    #[inline]
    pub fn pin_mut(&self, key: Key) -> Result<PinMut<'_>, SwapError> {
        let slot = self.slot(key)?;
        let step = |word: Word| word.pinned_alone(key.generation);
        let was = match change(slot.word(), step) {
            Ok(was) => Some(was),
            Err(refusal) => self.bring_for(key, slot, refusal, Access::Write, step)?,
        };
        if was.is_some_and(Word::has_copy) {
            self.copies.drop_copy(slot.copy());
            must(slot.word(), Word::uncopied);
        }
        // SAFETY: this call has pinned the object exclusively.
        Ok(unsafe { PinMut::new(self, slot, key) })
    }

    /// Returns the word before `step`; `None` after a load.
    #[cold]
    fn bring_for(
        &self,
        key: Key,
        slot: SwapSlot<'_>,
        mut refusal: Refusal,
        access: Access,
        step: impl Fn(Word) -> Result<Word, Refusal>,
    ) -> Result<Option<Word>, SwapError> {
        let mut backoff = Backoff::default();
        loop {
            match refusal {
                Refusal::Stored if self.load(key, slot, access)? => return Ok(None),
                Refusal::Stored => {}
                Refusal::Wait => backoff.wait(),
                refusal => return Err(self.refused(key, refusal)),
            }
            match change(slot.word(), &step) {
                Ok(was) => return Ok(Some(was)),
                Err(again) => refusal = again,
            }
        }
    }

    #[cold]
    fn refused(&self, key: Key, refusal: Refusal) -> SwapError {
        match refusal {
            Refusal::Dead => SwapError::Dead,
            Refusal::Pinned => SwapError::Pinned,
            Refusal::TooMany => SwapError::TooManyPins { max: PINS_MAX },
            Refusal::Failed => SwapError::Damaged { key, what: "it could not be read before" },
            Refusal::Stale | Refusal::Stored | Refusal::Wait | Refusal::Unfit => SwapError::Stale,
        }
    }

    fn step(
        &self,
        key: Key,
        slot: SwapSlot<'_>,
        step: impl Fn(Word) -> Result<Word, Refusal>,
    ) -> Result<Word, SwapError> {
        let mut backoff = Backoff::default();
        loop {
            match change(slot.word(), &step) {
                Err(Refusal::Wait) => backoff.wait(),
                done => return done.map_err(|refusal| self.refused(key, refusal)),
            }
        }
    }

    /// Frees an object, even if it is dead or damaged.
    ///
    /// # Errors
    /// `Stale`, `Foreign`, `Forked`, `Pinned`.
    pub fn free(&self, key: Key) -> Result<(), SwapError> {
        let slot = self.slot(key)?;
        let was = self.step(key, slot, |word| word.taken(key.generation))?;
        self.end(key, slot, was);
        Ok(())
    }

    /// Frees an object and returns its bytes, even without room in the budget.
    ///
    /// # Errors
    /// As [`Store::free`]; `Dead`, `Damaged`, `Os`, `Pool`. The object then remains.
    pub fn take(&self, key: Key) -> Result<Vec<u8>, SwapError> {
        let slot = self.slot(key)?;
        let was = self.step(key, slot, |word| word.taken(key.generation))?;
        match self.bytes_of(key, slot, was) {
            Ok(bytes) => {
                self.end(key, slot, was);
                Ok(bytes)
            }
            Err(error) => {
                let is_damaged = matches!(error, SwapError::Damaged { .. });
                let state = if is_damaged { WordState::Failed } else { was.state() };
                must(slot.word(), |word| word.spared(state, was.has_copy()));
                self.settle(slot);
                Err(error)
            }
        }
    }

    fn bytes_of(&self, key: Key, slot: SwapSlot<'_>, was: Word) -> Result<Vec<u8>, SwapError> {
        let place = slot.place();
        match was.state() {
            _ if was.is_dead() => Err(SwapError::Dead),
            // SAFETY: the object is resident, and this call has taken it.
            WordState::Resident => Ok(unsafe { self.memory.shared(place) }.to_vec()),
            WordState::Failed => Err(self.refused(key, Refusal::Failed)),
            _ => {
                let mut bytes = vec![0; place.len];
                let read = self.copies.load(key, slot.copy(), &mut bytes);
                read.map_err(|why| self.unreadable(key, why))?;
                Ok(bytes)
            }
        }
    }

    pub(super) fn unreadable(&self, key: Key, why: Unreadable) -> SwapError {
        match why {
            Unreadable::Damaged(what) => {
                self.counts.add(Counter::Damaged, 1);
                SwapError::Damaged { key, what }
            }
            Unreadable::Refused(error) => error,
        }
    }

    fn end(&self, key: Key, slot: SwapSlot<'_>, was: Word) {
        self.drop_all(slot, was);
        self.counts.add(Counter::Freed, slot.place().pages());
        must(slot.word(), Word::ended);
        self.places.put_back(key.index, slot, key.generation == u32::MAX);
    }

    fn drop_all(&self, slot: SwapSlot<'_>, was: Word) {
        if was.has_copy() {
            self.copies.drop_copy(slot.copy());
        }
        if was.state() == WordState::Resident {
            // SAFETY: the object is resident, and taken by this call; its bytes are unwanted.
            unsafe { self.give_up(slot.place()) };
        }
    }

    /// Marks an object as one of the next to leave memory.
    ///
    /// # Errors
    /// `Stale`, `Foreign`, `Forked`.
    pub fn cold(&self, key: Key) -> Result<(), SwapError> {
        let slot = self.slot(key)?;
        self.step(key, slot, |word| word.cooled(key.generation)).map(drop)
    }

    /// Loads an object that is needed soon. The object may leave before use.
    ///
    /// # Errors
    /// As [`Store::pin`] without `Pinned`.
    pub fn will_need(&self, key: Key) -> Result<(), SwapError> {
        match self.pin(key) {
            Ok(_) | Err(SwapError::Pinned) => Ok(()),
            Err(error) => Err(error),
        }
    }

    /// Declares an object's bytes unwanted. Its memory is freed when no guard and no other call
    /// uses it. The key remains until [`Store::free`].
    ///
    /// # Errors
    /// `Stale`, `Foreign`, `Forked`.
    pub fn dead(&self, key: Key) -> Result<(), SwapError> {
        let slot = self.slot(key)?;
        let was = self.step(key, slot, |word| word.doomed(key.generation))?;
        if !was.is_dead() {
            self.counts.add(Counter::Dead, slot.place().pages());
        }
        self.reap(slot);
        Ok(())
    }

    /// Drops a dead object's copy and memory, unless a guard or another thread will. Does nothing
    /// in a forked child, where an absent thread may hold a lock.
    #[cold]
    pub(super) fn reap(&self, slot: SwapSlot<'_>) {
        if self.alive().is_err() {
            return;
        }
        if let Ok(was) = change(slot.word(), Word::reaped) {
            self.drop_all(slot, was);
            must(slot.word(), Word::buried);
        }
    }
}

impl Shelf for Store {
    fn copies(&self) -> &Copies {
        &self.copies
    }

    fn counts(&self) -> &Counts {
        &self.counts
    }

    fn hands(&self) -> &Hands {
        &self.room.hands
    }

    fn used(&self) -> u32 {
        self.places.used()
    }

    fn slot(&self, index: u32) -> Option<SwapSlot<'_>> {
        self.places.slot(index)
    }

    fn settle(&self, slot: SwapSlot<'_>) {
        if look(slot.word()).is_dead() {
            self.reap(slot);
        }
    }
}
