//! [`Store`] loads objects. Cost: some microseconds for 4 KiB.
//!
//! # Safety
//! A call writes only to an object that it creates or loads, and so owns.
#![allow(unsafe_code)]

use std::time::Instant;

use super::copies::Source;
use super::error::SwapError;
use super::key::Key;
use super::shelf::Shelf;
use super::slots::{Place, SwapSlot};
use super::stats::Counter;
use super::store::Store;
use super::word::{change, must, Word};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Access {
    Read,
    Write,
}

impl Store {
    /// # Safety
    /// The caller owns the object, which has no pages.
    pub(super) unsafe fn bring(&self, place: Place, is_new: bool) -> Result<(), SwapError> {
        self.make_room(place.pages(), is_new)?;
        self.memory.populate(place).map_err(|error| {
            // Pages that the kernel keeps still hold zeros, so the next object here may use them.
            // SAFETY: as the caller promises.
            if unsafe { self.memory.give_back(place) }.is_err() {
                self.counts.add(Counter::Stuck, place.pages());
            }
            self.room.release(place.pages());
            error.into()
        })
    }

    /// # Safety
    /// The caller owns the object and its pages; the bytes are unwanted.
    pub(super) unsafe fn give_up(&self, place: Place) {
        // SAFETY: as the caller promises.
        if !unsafe { self.memory.give_up(place) } {
            self.counts.add(Counter::Stuck, place.pages());
        }
        self.room.release(place.pages());
    }

    /// Returns false if another thread changed the object's state first.
    pub(super) fn load(
        &self,
        key: Key,
        slot: SwapSlot<'_>,
        access: Access,
    ) -> Result<bool, SwapError> {
        let begun = Instant::now();
        if change(slot.word(), |word| word.loading(key.generation)).is_err() {
            return Ok(false);
        }
        let source = self.fill(key, slot).inspect_err(|error| {
            let is_damaged = matches!(error, SwapError::Damaged { .. });
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

    fn fill(&self, key: Key, slot: SwapSlot<'_>) -> Result<Source, SwapError> {
        let place = slot.place();
        // SAFETY: this call is loading the object, which has no pages.
        unsafe { self.bring(place, false) }?;
        // SAFETY: as above; the pages are now present.
        let bytes = unsafe { self.memory.alone(place) };
        self.copies.load(key, slot.copy(), bytes).map_err(|why| {
            // SAFETY: as above; this call writes no more.
            unsafe { self.give_up(place) };
            self.unreadable(key, why)
        })
    }
}
