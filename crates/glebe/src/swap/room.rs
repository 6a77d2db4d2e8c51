//! [`Room`]: the budget of a store, and the clock by which objects leave memory.
//!
//! *Charged* are the pages of objects that are resident, or on their way in or out; never more than
//! the budget. Who needs room makes it: the clock's *hand* goes round all slots, and an object that
//! was pinned since it came by last is passed once. Some objects leave in one go, so that one
//! system call takes the pages of all. The object stays readable until its copy is made; if it was
//! used meanwhile, it stays.
//!
//! Cost: 1 to 3 ns a slot that the hand passes; an object that leaves: the codec and a pool's
//! insert, nothing of these if it has a copy still; a system call for [`BATCH`] objects. Lock: one
//! for changes of the budget; to make room takes none.
//!
//! # Safety
//! Bytes are read of an object that this call has pinned, and given up of one that is leaving.
#![allow(unsafe_code)]

use super::error::Error;
use super::key::Key;
use super::patience::{Hope, Patience};
use super::shelf::{drop_kept, store_copy, Hands, Home, Shelf};
use super::slots::{Place, Slot};
use super::stats::Counter;
use super::store::Store;
use super::word::{change, look, must, State, Word};
use crate::error::OsError;
use crate::sync::{lock, MappedWord, Mutex, Ordering};
use crate::sys::page_size;
use crate::units::{Bytes, Pages};
use crate::zpool;

/// Objects that leave in one go, at most, and pages if not more are needed: so the call that has
/// them leave waits no longer for a codec than for an object of as many pages.
const BATCH: usize = 16;
/// The part of the budget that leaves in one go at most, if not more is needed.
const BATCH_SHARE: u64 = 16;
/// Times that the hand goes round: an object that is passed the first time may go the second.
const ROUNDS: u64 = 2;
/// Objects that do not fit into the pool, until it is taken to be full for all.
const REFUSALS: u32 = 8;
/// The part of the pool that new objects leave to loads. A load may have to store an object
/// before it can give up the copy of the one that it loads.
const HEADROOM_SHARE: u64 = 16;

const _: () = assert!(BATCH <= super::memory::DISCARD_MAX);

/// See the module.
#[derive(Debug)]
pub(super) struct Room {
    charged: MappedWord,
    budget: MappedWord,
    hand: MappedWord,
    /// Of the searches for copies.
    pub(super) hands: Hands,
    /// Held by a call that changes the budget.
    changes: Mutex<()>,
}

/// What one turn of the hand came to.
#[derive(Debug, Default)]
struct Turn {
    /// Pages that left.
    left: u64,
    hope: Hope,
    /// Why objects could not leave that nobody had pinned.
    refused: Option<Error>,
}

impl Turn {
    /// Whether nothing that others do would make room.
    fn is_hopeless(&self) -> bool {
        self.hope == Hope::None && self.refused.is_some()
    }
}

/// Objects that leave together.
#[derive(Default)]
struct Batch<'a> {
    chosen: [Option<Slot<'a>>; BATCH],
    len: usize,
    pages: u64,
}

impl<'a> Batch<'a> {
    fn slots(&self) -> impl Iterator<Item = Slot<'a>> + '_ {
        self.chosen.iter().copied().flatten()
    }

    fn push(&mut self, slot: Slot<'a>) {
        self.chosen[self.len] = Some(slot);
        self.len += 1;
        self.pages += slot.place().pages();
    }
}

impl Room {
    pub(super) fn new(budget: Bytes) -> Result<Self, Error> {
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

    fn pages_of(budget: Bytes) -> Result<u64, Error> {
        match budget.pages_down(page_size()).get() {
            0 => Err(Error::NoBudget { given: budget, page: page_size().bytes() }),
            pages => Ok(pages),
        }
    }

    /// Pages that are charged.
    pub(super) fn charged(&self) -> u64 {
        self.charged.load(Ordering::Relaxed)
    }

    /// Pages of the budget.
    pub(super) fn budget(&self) -> u64 {
        self.budget.load(Ordering::Relaxed)
    }

    fn charge(&self, pages: u64) -> bool {
        let add = |charged: u64| Some(charged + pages).filter(|sum| *sum <= self.budget());
        self.charged.fetch_update(Ordering::Relaxed, Ordering::Relaxed, add).is_ok()
    }

    /// Takes pages off that were given up.
    pub(super) fn release(&self, pages: u64) {
        self.charged.fetch_sub(pages, Ordering::Relaxed);
    }
}

fn bytes(pages: u64) -> Bytes {
    Pages::new(pages).bytes(page_size())
}

impl Store {
    /// Charges pages, for which others leave memory if they must.
    pub(super) fn make_room(&self, pages: u64, is_new: bool) -> Result<(), Error> {
        let fits = self.room.charge(pages);
        if fits {
            return Ok(());
        }
        let may_fit = pages <= self.room.budget();
        let shed = may_fit.then(|| self.shed(pages, is_new, || self.room.charge(pages)));
        shed.unwrap_or(Err(None)).map_err(|refused| {
            self.counts.add(Counter::Refused, 1);
            refused.unwrap_or_else(|| Error::Budget {
                len: bytes(pages),
                pinned: bytes(self.pinned_pages()),
                budget: bytes(self.room.budget()),
            })
        })
    }

    /// Changes the budget. Where more is in memory, objects leave it.
    ///
    /// # Errors
    /// [`Error::NoBudget`] for less than a page; [`Error::BudgetBelowPinned`], [`Error::Full`]
    /// where not enough can leave, and then the budget is as it was; [`Error::Forked`].
    pub fn set_budget(&self, budget: Bytes) -> Result<(), Error> {
        self.alive()?;
        let pages = Room::pages_of(budget)?;
        let _changes = lock(&self.room.changes);
        // First of all, so that nobody brings in what has to leave again.
        let before = self.room.budget.swap(pages, Ordering::Relaxed);
        self.shed(1, false, || self.room.charged() <= pages).map_err(|refused| {
            self.room.budget.store(before, Ordering::Relaxed);
            let pinned = bytes(self.pinned_pages());
            refused.unwrap_or(Error::BudgetBelowPinned { given: budget, pinned })
        })
    }

    /// Changes the limit of the pool of compressed objects. Kept copies go if they must.
    ///
    /// # Errors
    /// [`Error::Pool`]: it holds more, and the limit is as it was; [`Error::Forked`].
    pub fn set_pool_limit(&self, limit: Bytes) -> Result<(), Error> {
        self.alive()?;
        loop {
            match self.copies.pool.set_limit(limit) {
                Err(zpool::Error::LimitBelowHeld { .. }) if drop_kept(self, Home::Pool) => {}
                done => return Ok(done?),
            }
        }
    }

    /// The budget.
    #[must_use]
    pub fn budget(&self) -> Bytes {
        bytes(self.room.budget())
    }

    /// Pages of objects that guards pin.
    fn pinned_pages(&self) -> u64 {
        let is_pinned = |slot: &Slot<'_>| {
            let word = look(slot.word());
            word.state() == State::Resident && word.guards() > 0
        };
        self.places.all().filter(is_pinned).map(|slot| slot.place().pages()).sum()
    }

    /// Has objects leave, `least` pages of them at a time, until it `is_done`; else why they could
    /// not, if not for pins alone.
    fn shed(
        &self,
        least: u64,
        is_new: bool,
        is_done: impl Fn() -> bool,
    ) -> Result<(), Option<Error>> {
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

    /// Turns the hand until it has chosen objects of `least` pages, or somewhat more; these leave.
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

    /// Chooses an object to leave, unless it is pinned or was since the hand came by; what it was.
    fn choose(slot: Slot<'_>, turn: &mut Turn) -> Option<Word> {
        let word = look(slot.word());
        if word.is_in_transit() {
            turn.hope.rise(Hope::Soon);
        }
        if word.state() != State::Resident || word.guards() > 0 {
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

    /// Keeps a chosen object in memory after all, with its copy or without.
    fn spare(&self, slot: Slot<'_>, has_copy: bool) {
        must(slot.word(), |word| word.idle(has_copy));
        self.settle(slot);
    }

    /// Makes a copy of a chosen object, if there is none.
    fn copy_out(&self, index: u32, slot: Slot<'_>, was: Word, is_new: bool) -> Result<(), Error> {
        if was.has_copy() {
            self.counts.add(Counter::Reused, 1);
            return Ok(());
        }
        let key = Key { store: self.number, index, generation: was.generation() };
        // SAFETY: resident, and pinned by this call, beside which nobody writes.
        let object = unsafe { self.memory.shared(slot.place()) };
        let room = if is_new { HEADROOM_SHARE } else { u64::MAX };
        let copy = store_copy(self, key, object, room)?;
        slot.set_copy(copy);
        Ok(())
    }

    /// Has chosen objects leave that nobody used since.
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
        // SAFETY: leaving by this call, each with a copy.
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

    /// Ends the leaving of an object whose pages went, or did not.
    fn part(&self, slot: Slot<'_>, gone: Result<(), OsError>, turn: &mut Turn) {
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
