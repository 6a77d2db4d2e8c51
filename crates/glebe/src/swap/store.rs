//! [`Store`]: what a store consists of, and what is done with objects by their keys.
//!
//! A call finds the object's slot, makes one step of its [word](super::word), and acts on what the
//! object was. Another thread that is at the object is waited for: it evicts, loads or ends it, and
//! waits for no lock of this module meanwhile, nor for the waiter.
//!
//! # Safety
//! Bytes are touched of objects that this call has pinned, or has to itself by their word.
#![allow(unsafe_code)]

use super::copies::{Copies, Unreadable};
use super::error::Error;
use super::file::SpillFile;
use super::guard::{Pin, PinMut};
use super::key::Key;
use super::load::Access;
use super::memory::Memory;
use super::options::Options;
use super::places::Places;
use super::room::Room;
use super::shelf::{Hands, Shelf};
use super::slots::Slot;
use super::stats::{Counter, Counts};
use super::word::{change, look, must, Refusal, State, Word, PINS_MAX};
use crate::stats::Histogram;
use crate::sync::{Backoff, MappedWord, Ordering};
use crate::sys::fork::ForkGuard;
use crate::units::Bytes;

/// Bytes of the longest object.
pub(super) const LEN_MAX: usize = 2 << 20;
static STORES: MappedWord = MappedWord::new(0);

/// A number that no other store or region of the process has.
pub(super) fn next_number() -> u32 {
    STORES.fetch_add(1, Ordering::Relaxed) as u32
}

/// Objects of 1 byte to 2 MiB, of which no more than a budget is in memory. See [the
/// module](super).
#[derive(Debug)]
pub struct Store {
    pub(super) number: u32,
    pub(super) places: Places,
    pub(super) memory: Memory,
    pub(super) copies: Copies,
    pub(super) room: Room,
    pub(super) counts: Counts,
    pub(super) loads: Histogram,
    pub(super) keeps_copies: bool,
    guard: ForkGuard,
}

impl Store {
    /// What a store can be like.
    pub fn options() -> Options {
        Options::default()
    }

    /// Makes a store of which `budget` is in memory at most.
    ///
    /// # Errors
    /// As [`Options::build`].
    pub fn with_budget(budget: Bytes) -> Result<Self, Error> {
        Self::options().build(budget)
    }

    pub(super) fn new(options: &Options, budget: Bytes) -> Result<Self, Error> {
        let room = Room::new(budget)?;
        let capacity = options.capacity_pages(budget)?;
        let file = options.new_file(capacity.get())?;
        Ok(Self {
            number: next_number(),
            places: Places::new(capacity)?,
            memory: Memory::new(capacity)?,
            copies: Copies::new(&options.codec, options.pool_limit_for(budget), file)?,
            room,
            counts: Counts::new(),
            loads: Histogram::new(),
            keeps_copies: options.keeps_copies,
            guard: ForkGuard::new(),
        })
    }

    /// Whether the store's file, if it has one, is written past the page cache (O_DIRECT).
    #[must_use]
    pub fn is_file_direct(&self) -> Option<bool> {
        self.copies.file.as_ref().map(SpillFile::is_direct)
    }

    #[inline]
    pub(super) fn alive(&self) -> Result<(), Error> {
        if self.guard.is_child() {
            return Err(Error::Forked);
        }
        Ok(())
    }

    /// The slot that a key names.
    #[inline]
    fn slot(&self, key: Key) -> Result<Slot<'_>, Error> {
        self.alive()?;
        if key.store != self.number {
            return Err(Error::Foreign);
        }
        self.places.slot(key.index).ok_or(Error::Foreign)
    }

    /// Makes an object of `len` zeros, pinned to be filled.
    ///
    /// # Errors
    /// [`Error::Len`]; [`Error::Budget`] and [`Error::Full`] where no room can be made for it;
    /// [`Error::Addresses`]; [`Error::Forked`]; [`Error::Os`] for memory that the kernel refuses.
    pub fn create(&self, len: usize) -> Result<PinMut<'_>, Error> {
        self.alive()?;
        if len == 0 || len > LEN_MAX {
            return Err(Error::Len { len, max: LEN_MAX });
        }
        let (index, slot) = self.places.take(len)?;
        let place = slot.place();
        // SAFETY: nobody else knows of the place.
        if let Err(error) = unsafe { self.bring(place, true) } {
            self.places.put_back(index, slot, false);
            return Err(error);
        }
        let hole = must(slot.word(), Word::created);
        self.counts.add(Counter::Created, place.pages());
        let key = Key { store: self.number, index, generation: hole.generation() };
        // SAFETY: created pinned alone, just now.
        Ok(unsafe { PinMut::new(self, slot, key) })
    }

    /// Stores a copy of `bytes` as an object.
    ///
    /// # Errors
    /// As [`Store::create`].
    pub fn insert(&self, bytes: &[u8]) -> Result<Key, Error> {
        let mut object = self.create(bytes.len())?;
        object.copy_from_slice(bytes);
        Ok(object.key())
    }

    /// Pins an object to read it, and brings it to memory if it is not there. One atomic operation
    /// if it is.
    ///
    /// # Errors
    /// [`Error::Stale`], [`Error::Foreign`], [`Error::Dead`]; [`Error::Pinned`] if it is pinned to
    /// be written, [`Error::TooManyPins`]; [`Error::Budget`], [`Error::Full`] and [`Error::Os`]
    /// where it cannot be brought to memory now; [`Error::Damaged`]; [`Error::Forked`].
    #[inline]
    pub fn pin(&self, key: Key) -> Result<Pin<'_>, Error> {
        let slot = self.slot(key)?;
        if let Err(refusal) = change(slot.word(), |word| word.pinned(key.generation)) {
            self.pin_absent(key, slot, refusal)?;
        }
        // SAFETY: pinned just now, here or in the call above.
        Ok(unsafe { Pin::new(self, slot) })
    }

    #[cold]
    fn pin_absent(&self, key: Key, slot: Slot<'_>, refusal: Refusal) -> Result<(), Error> {
        self.bring_for(key, slot, refusal, Access::Read, |word| word.pinned(key.generation))?;
        Ok(())
    }

    /// Pins an object to write it, alone, and brings it to memory if it is not there.
    ///
    /// # Errors
    /// As [`Store::pin`]; [`Error::Pinned`] also if it is pinned to be read.
    #[inline]
    pub fn pin_mut(&self, key: Key) -> Result<PinMut<'_>, Error> {
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
        // SAFETY: pinned alone just now.
        Ok(unsafe { PinMut::new(self, slot, key) })
    }

    /// Does what a refused `step` needs, and that again, until it is made or cannot be; what the
    /// object was, or nothing if this call loaded it.
    #[cold]
    fn bring_for(
        &self,
        key: Key,
        slot: Slot<'_>,
        mut refusal: Refusal,
        access: Access,
        step: impl Fn(Word) -> Result<Word, Refusal>,
    ) -> Result<Option<Word>, Error> {
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
    fn refused(&self, key: Key, refusal: Refusal) -> Error {
        match refusal {
            Refusal::Dead => Error::Dead,
            Refusal::Pinned => Error::Pinned,
            Refusal::TooMany => Error::TooManyPins { max: PINS_MAX },
            Refusal::Failed => Error::Damaged { key, what: "it could not be read before" },
            Refusal::Stale | Refusal::Stored | Refusal::Wait | Refusal::Unfit => Error::Stale,
        }
    }

    /// Makes a step, once another thread that is at the object is done; what the object was.
    fn step(
        &self,
        key: Key,
        slot: Slot<'_>,
        step: impl Fn(Word) -> Result<Word, Refusal>,
    ) -> Result<Word, Error> {
        let mut backoff = Backoff::default();
        loop {
            match change(slot.word(), &step) {
                Err(Refusal::Wait) => backoff.wait(),
                done => return done.map_err(|refusal| self.refused(key, refusal)),
            }
        }
    }

    /// Frees an object, dead and damaged ones too.
    ///
    /// # Errors
    /// [`Error::Stale`], [`Error::Foreign`], [`Error::Forked`]; [`Error::Pinned`], and then the
    /// object is as it was.
    pub fn free(&self, key: Key) -> Result<(), Error> {
        let slot = self.slot(key)?;
        let was = self.step(key, slot, |word| word.taken(key.generation))?;
        self.end(key, slot, was);
        Ok(())
    }

    /// Frees an object and returns its bytes. An object that is not in memory is not brought there,
    /// and needs no room in the budget.
    ///
    /// # Errors
    /// As [`Store::free`]; [`Error::Dead`], [`Error::Damaged`]. After an error the object is as it
    /// was.
    pub fn take(&self, key: Key) -> Result<Vec<u8>, Error> {
        let slot = self.slot(key)?;
        let was = self.step(key, slot, |word| word.taken(key.generation))?;
        match self.bytes_of(key, slot, was) {
            Ok(bytes) => {
                self.end(key, slot, was);
                Ok(bytes)
            }
            Err(error) => {
                let is_damaged = matches!(error, Error::Damaged { .. });
                let state = if is_damaged { State::Failed } else { was.state() };
                must(slot.word(), |word| word.spared(state, was.has_copy()));
                self.settle(slot);
                Err(error)
            }
        }
    }

    /// The bytes of an object that this call has taken.
    fn bytes_of(&self, key: Key, slot: Slot<'_>, was: Word) -> Result<Vec<u8>, Error> {
        let place = slot.place();
        match was.state() {
            _ if was.is_dead() => Err(Error::Dead),
            // SAFETY: resident, and taken by this call.
            State::Resident => Ok(unsafe { self.memory.shared(place) }.to_vec()),
            State::Failed => Err(self.refused(key, Refusal::Failed)),
            _ => {
                let mut bytes = vec![0; place.len];
                let read = self.copies.load(key, slot.copy(), &mut bytes);
                read.map_err(|why| self.unreadable(key, why))?;
                Ok(bytes)
            }
        }
    }

    pub(super) fn unreadable(&self, key: Key, why: Unreadable) -> Error {
        match why {
            Unreadable::Damaged(what) => {
                self.counts.add(Counter::Damaged, 1);
                Error::Damaged { key, what }
            }
            Unreadable::Refused(error) => error,
        }
    }

    /// Ends an object that this call has taken.
    fn end(&self, key: Key, slot: Slot<'_>, was: Word) {
        self.drop_all(slot, was);
        self.counts.add(Counter::Freed, slot.place().pages());
        must(slot.word(), Word::ended);
        self.places.put_back(key.index, slot, key.generation == u32::MAX);
    }

    /// Drops copy and memory of an object that this call has taken, as it was.
    fn drop_all(&self, slot: Slot<'_>, was: Word) {
        if was.has_copy() {
            self.copies.drop_copy(slot.copy());
        }
        if was.state() == State::Resident {
            // SAFETY: resident, and taken by this call, whose caller wants the bytes no more.
            unsafe { self.give_up(slot.place()) };
        }
    }

    /// Says that an object is not needed for a while: it is among the next to leave memory.
    ///
    /// # Errors
    /// [`Error::Stale`], [`Error::Foreign`], [`Error::Forked`].
    pub fn cold(&self, key: Key) -> Result<(), Error> {
        let slot = self.slot(key)?;
        self.step(key, slot, |word| word.cooled(key.generation)).map(drop)
    }

    /// Brings an object to memory that will be needed soon. It may leave again before it is.
    ///
    /// # Errors
    /// As [`Store::pin`], but for [`Error::Pinned`]: what is pinned is in memory.
    pub fn will_need(&self, key: Key) -> Result<(), Error> {
        match self.pin(key) {
            Ok(_) | Err(Error::Pinned) => Ok(()),
            Err(error) => Err(error),
        }
    }

    /// Says that an object's bytes are wanted no more: they are never compressed or written again,
    /// and their memory is given up, at once or with the last guard of the object. The key stays
    /// until it is freed, and every pin is [`Error::Dead`].
    ///
    /// # Errors
    /// [`Error::Stale`], [`Error::Foreign`], [`Error::Forked`].
    pub fn dead(&self, key: Key) -> Result<(), Error> {
        let slot = self.slot(key)?;
        let was = self.step(key, slot, |word| word.doomed(key.generation))?;
        if !was.is_dead() {
            self.counts.add(Counter::Dead, slot.place().pages());
        }
        self.reap(slot);
        Ok(())
    }

    /// Drops what a dead object still has, unless a guard or another thread has it: whoever that
    /// is does so after. A child that ends a guard leaves all as it is: a thread that it does not
    /// have may have held a lock when it was forked.
    #[cold]
    pub(super) fn reap(&self, slot: Slot<'_>) {
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

    fn slot(&self, index: u32) -> Option<Slot<'_>> {
        self.places.slot(index)
    }

    /// Looks, after a step that others could not make a dead object's end in, whether to do so.
    fn settle(&self, slot: Slot<'_>) {
        if look(slot.word()).is_dead() {
            self.reap(slot);
        }
    }
}
