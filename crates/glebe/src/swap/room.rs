//! [`Room`] has a store's budget and the clock that evicts objects.
//!
//! *Charged* pages belong to objects that are resident, loading or leaving. A call that needs room
//! moves the clock *hand* over the slots. The hand spares an object once if it was pinned since the
//! last visit. Objects leave in batches, one system call a batch. An object pinned during its copy
//! stays. Cost: 1 to 3 ns per slot. Lock: `changes`.
//!
//! # Safety
//! A call reads objects that it has pinned, and frees pages of objects that it made leaving.
#![allow(unsafe_code)]

use super::error::SwapError;
use super::key::Key;
use super::patience::{Hope, Patience};
use super::shelf::{drop_kept, store_copy, Hands, Home, Shelf};
use super::slots::{Place, SwapSlot};
use super::stats::Counter;
use super::store::Store;
use super::word::{change, look, must, Word, WordState};
use crate::zpool;
use glebe_os::error::OsError;
use glebe_os::internal::sync::{lock, MappedWord, Mutex, Ordering};
use glebe_os::internal::sys::page_size;
use glebe_os::units::{Bytes, Pages};

/// A pin for writing may wait while the codec compresses a batch of this many objects.
const BATCH: usize = 16;
const BATCH_SHARE: u64 = 16;
/// The first round clears used marks, so that used objects can leave in the second.
const ROUNDS: u64 = 2;
/// Failed copies that end a search for objects.
const REFUSALS: u32 = 8;
/// Evictions for new objects leave a 16th of the pool free for loads. A load may evict objects into
/// the pool before the loaded copy leaves.
const HEADROOM_SHARE: u64 = 16;

const _: () = assert!(BATCH <= super::memory::DISCARD_MAX);

#[derive(Debug)]
pub(super) struct Room {
    charged: MappedWord,
    budget: MappedWord,
    hand: MappedWord,
    pub(super) hands: Hands,
    changes: Mutex<()>,
}

#[derive(Debug, Default)]
struct Turn {
    left: u64,
    hope: Hope,
    refused: Option<SwapError>,
}

impl Turn {
    fn is_hopeless(&self) -> bool {
        self.hope == Hope::None && self.refused.is_some()
    }
}

#[derive(Default)]
struct Batch<'a> {
    chosen: [Option<SwapSlot<'a>>; BATCH],
    len: usize,
    pages: u64,
}

impl<'a> Batch<'a> {
    fn slots(&self) -> impl Iterator<Item = SwapSlot<'a>> + '_ {
        self.chosen.iter().copied().flatten()
    }

    fn push(&mut self, slot: SwapSlot<'a>) {
        self.chosen[self.len] = Some(slot);
        self.len += 1;
        self.pages += slot.place().pages();
    }
}

impl Room {
    pub(super) fn new(budget: Bytes) -> Result<Self, SwapError> {
        let word = MappedWord::new;
        let budget = word(Self::pages_of(budget)?);
        Ok(Self {
            charged: word(0),
            budget,
            hand: word(0),
            hands: Hands::new(),
            changes: Mutex::new(()),
        })
    }

    fn pages_of(budget: Bytes) -> Result<u64, SwapError> {
        match budget.pages_down(page_size()).get() {
            0 => Err(SwapError::NoBudget { given: budget, least: page_size().bytes() }),
            pages => Ok(pages),
        }
    }

    pub(super) fn charged(&self) -> u64 {
        self.charged.load(Ordering::Relaxed)
    }

    pub(super) fn budget(&self) -> u64 {
        self.budget.load(Ordering::Relaxed)
    }

    fn charge(&self, pages: u64) -> bool {
        let add = |charged: u64| Some(charged + pages).filter(|sum| *sum <= self.budget());
        self.charged.fetch_update(Ordering::Relaxed, Ordering::Relaxed, add).is_ok()
    }

    pub(super) fn release(&self, pages: u64) {
        self.charged.fetch_sub(pages, Ordering::Relaxed);
    }
}

fn bytes(pages: u64) -> Bytes {
    Pages::new(pages).bytes(page_size())
}

impl Store {
    pub(super) fn make_room(&self, pages: u64, is_new: bool) -> Result<(), SwapError> {
        let fits = self.room.charge(pages);
        if fits {
            return Ok(());
        }
        let may_fit = pages <= self.room.budget();
        let shed = may_fit.then(|| self.shed(pages, is_new, || self.room.charge(pages)));
        shed.unwrap_or(Err(None)).map_err(|refused| {
            self.counts.add(Counter::Refused, 1);
            refused.unwrap_or_else(|| SwapError::Budget {
                len: bytes(pages),
                pinned: bytes(self.pinned_pages()),
                budget: bytes(self.room.budget()),
            })
        })
    }

    /// Changes the budget, and evicts objects if necessary.
    ///
    /// # Errors
    /// `NoBudget`; `BudgetBelowPinned`, `Full`, `FileFull`, `Os` or `Pool` if too little can leave;
    /// `Forked`. The budget is then unchanged.
    pub fn set_budget(&self, budget: Bytes) -> Result<(), SwapError> {
        self.alive()?;
        let pages = Room::pages_of(budget)?;
        let _changes = lock(&self.room.changes);
        // The budget changes first, so that no call loads objects that must leave again.
        let before = self.room.budget.swap(pages, Ordering::Relaxed);
        self.shed(1, false, || self.room.charged() <= pages).map_err(|refused| {
            self.room.budget.store(before, Ordering::Relaxed);
            let pinned = bytes(self.pinned_pages());
            refused.unwrap_or(SwapError::BudgetBelowPinned { given: budget, pinned })
        })
    }

    /// Changes the pool's limit, and drops copies of resident objects if necessary.
    ///
    /// # Errors
    /// `Pool` if the pool still holds more than `limit`; `Forked`.
    pub fn set_pool_limit(&self, limit: Bytes) -> Result<(), SwapError> {
        self.alive()?;
        loop {
            match self.copies.pool.set_limit(limit) {
                Err(zpool::Error::LimitBelowHeld { .. }) if drop_kept(self, Home::Pool) => {}
                done => return Ok(done?),
            }
        }
    }

    /// Returns the budget.
    #[must_use]
    pub fn budget(&self) -> Bytes {
        bytes(self.room.budget())
    }

    fn pinned_pages(&self) -> u64 {
        let is_pinned = |slot: &SwapSlot<'_>| {
            let word = look(slot.word());
            word.state() == WordState::Resident && word.guards() > 0
        };
        self.places.all().filter(is_pinned).map(|slot| slot.place().pages()).sum()
    }

    /// Fails with the last error, or with `None` if pins or other threads prevent eviction.
    fn shed(
        &self,
        least: u64,
        is_new: bool,
        is_done: impl Fn() -> bool,
    ) -> Result<(), Option<SwapError>> {
        let mut patience = Patience::default();
        while !is_done() {
            let turn = self.turn(least, is_new);
            if turn.left > 0 {
                patience.renew();
            } else if turn.is_hopeless() || !patience.wait(turn.hope) {
                return if is_done() { Ok(()) } else { Err(turn.refused) };
            }
        }
        Ok(())
    }

    fn turn(&self, least: u64, is_new: bool) -> Turn {
        let most = least.max((self.room.budget() / BATCH_SHARE).min(BATCH as u64));
        let slots = u64::from(self.places.used());
        let (mut turn, mut batch, mut refusals) = (Turn::default(), Batch::default(), 0);
        for _ in 0..slots * ROUNDS {
            if batch.pages >= most || batch.len == BATCH || refusals == REFUSALS {
                break;
            }
            let at = (self.room.hand.fetch_add(1, Ordering::Relaxed) % slots) as u32;
            let Some(slot) = self.places.slot(at) else { continue };
            let Some(was) = Self::choose(slot, &mut turn) else { continue };
            match self.copy_out(at, slot, was, is_new) {
                Ok(()) => batch.push(slot),
                Err(error) => {
                    self.spare(slot, false);
                    turn.refused = Some(error);
                    refusals += 1;
                }
            }
        }
        self.leave(&batch, &mut turn);
        turn
    }

    fn choose(slot: SwapSlot<'_>, turn: &mut Turn) -> Option<Word> {
        let word = look(slot.word());
        if word.is_in_transit() {
            turn.hope.rise(Hope::Soon);
        }
        if word.state() != WordState::Resident || word.guards() > 0 {
            return None;
        }
        if word.is_used() {
            let _ = change(slot.word(), Word::passed);
            return None;
        }
        let chosen = change(slot.word(), Word::chosen);
        if chosen.is_err() {
            turn.hope.rise(Hope::Soon);
        }
        chosen.ok()
    }

    fn spare(&self, slot: SwapSlot<'_>, has_copy: bool) {
        must(slot.word(), |word| word.idle(has_copy));
        self.settle(slot);
    }

    fn copy_out(
        &self,
        index: u32,
        slot: SwapSlot<'_>,
        was: Word,
        is_new: bool,
    ) -> Result<(), SwapError> {
        if was.has_copy() {
            self.counts.add(Counter::Reused, 1);
            return Ok(());
        }
        let key = Key { store: self.number, index, generation: was.generation() };
        // SAFETY: this call's pin excludes writers.
        let object = unsafe { self.memory.shared(slot.place()) };
        let room = if is_new { HEADROOM_SHARE } else { u64::MAX };
        let copy = store_copy(self, key, object, room)?;
        slot.set_copy(copy);
        Ok(())
    }

    fn leave(&self, batch: &Batch<'_>, turn: &mut Turn) {
        let mut leaving = Batch::default();
        for slot in batch.slots() {
            if change(slot.word(), Word::leaving).is_ok() {
                leaving.push(slot);
            } else {
                self.counts.add(Counter::Rescued, 1);
                turn.hope.rise(Hope::Soon);
                self.spare(slot, true);
            }
        }
        let mut places = [Place { first: 0, len: 0 }; BATCH];
        places.iter_mut().zip(leaving.slots()).for_each(|(place, slot)| *place = slot.place());
        // SAFETY: this call made the objects leaving.
        let gone = unsafe { self.memory.give_back_all(&places[..leaving.len]) };
        for (nth, slot) in leaving.slots().enumerate() {
            let one = match nth < gone {
                true => Ok(()),
                // SAFETY: as above; the kernel kept these pages.
                false => unsafe { self.memory.give_back(places[nth]) },
            };
            self.part(slot, one, turn);
        }
    }

    fn part(&self, slot: SwapSlot<'_>, gone: Result<(), OsError>, turn: &mut Turn) {
        let pages = slot.place().pages();
        match gone {
            Ok(()) => {
                self.room.release(pages);
                must(slot.word(), Word::left);
                self.counts.add(Counter::Evicted, 1);
                turn.left += pages;
            }
            Err(error) => {
                must(slot.word(), Word::stayed);
                self.counts.add(Counter::Stayed, 1);
                turn.refused = Some(error.into());
            }
        }
        self.settle(slot);
    }
}
