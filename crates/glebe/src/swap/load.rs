//! How objects come to memory, and how their memory goes.
//!
//! Cost of a load: room, a system call to populate, checksum and codec; of 4 KiB some microseconds.
//!
//! # Safety
//! Bytes are written of an object that this call makes or loads, which it has to itself.
#![allow(unsafe_code)]

use std::time::Instant;

use super::copies::Source;
use super::error::Error;
use super::key::Key;
use super::shelf::Shelf;
use super::slots::{Place, Slot};
use super::stats::Counter;
use super::store::Store;
use super::word::{change, must, Word};

/// What an object is loaded for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Access {
    /// To be pinned with others.
    Read,
    /// To be pinned alone; its copy is out of date from then on.
    Write,
}

impl Store {
    /// Charges an object's memory and populates it.
    ///
    /// # Safety
    /// The caller has the object, which has no pages, to itself.
    pub(super) unsafe fn bring(&self, place: Place, is_new: bool) -> Result<(), Error> {
        self.make_room(place.pages(), is_new)?;
        self.memory.populate(place).map_err(|error| {
            // Pages that came are zeros, and may be taken by the next that is brought there.
            // SAFETY: as the caller promises.
            if unsafe { self.memory.give_back(place) }.is_err() {
                self.counts.add(Counter::Stuck, place.pages());
            }
            self.room.release(place.pages());
            error.into()
        })
    }

    /// Gives up the memory of an object, and takes it off the budget.
    ///
    /// # Safety
    /// The caller has the object, whose pages are there, to itself; its bytes are wanted no more.
    pub(super) unsafe fn give_up(&self, place: Place) {
        // SAFETY: passed on.
        if !unsafe { self.memory.give_up(place) } {
            self.counts.add(Counter::Stuck, place.pages());
        }
        self.room.release(place.pages());
    }

    /// Loads an object and pins it; false if another thread was first.
    pub(super) fn load(&self, key: Key, slot: Slot<'_>, access: Access) -> Result<bool, Error> {
        let begun = Instant::now();
        if change(slot.word(), |word| word.loading(key.generation)).is_err() {
            return Ok(false);
        }
        let source = self.fill(key, slot).inspect_err(|error| {
            let is_damaged = matches!(error, Error::Damaged { .. });
            let next = if is_damaged { Word::failed } else { Word::not_loaded };
            must(slot.word(), next);
            self.settle(slot);
        })?;
        match source {
            Source::Pool => {}
            Source::Idle => self.counts.add(Counter::LoadedIdle, 1),
            Source::File => self.counts.add(Counter::ReadBack, 1),
        }
        let keeps = self.keeps_copies && access == Access::Read;
        if !keeps {
            self.copies.drop_copy(slot.copy());
        }
        must(slot.word(), |word| match access {
            Access::Read => word.loaded(keeps),
            Access::Write => word.loaded_alone(),
        });
        self.counts.add(Counter::Loaded, 1);
        self.loads.record(begun.elapsed().as_nanos() as u64);
        Ok(true)
    }

    /// Brings an object to memory that this call is loading; where its copy was read.
    fn fill(&self, key: Key, slot: Slot<'_>) -> Result<Source, Error> {
        let place = slot.place();
        // SAFETY: without pages, and being loaded by this call.
        unsafe { self.bring(place, false) }?;
        // SAFETY: populated just now, and being loaded by this call.
        let bytes = unsafe { self.memory.alone(place) };
        self.copies.load(key, slot.copy(), bytes).map_err(|why| {
            // SAFETY: being loaded by this call, which writes no more.
            unsafe { self.give_up(place) };
            self.unreadable(key, why)
        })
    }
}
