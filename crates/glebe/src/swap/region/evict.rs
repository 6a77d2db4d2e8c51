//! How pages leave a region: two hands go round it, in the order of addresses.
//!
//! The first, the *hand*, moves runs of pages into the shadow, where they wait in the *window*: a
//! touch brings one back for a call, so what is used stays. The second, the *tail*, goes where the
//! hand has been; what it still finds in the window is compressed there, or found equal to the copy
//! that was kept, and dropped, many pages in one call. Who brings pages in has as many leave.
//! A page that cannot be moved (pinned by the kernel, locked or read-only) stays. What the program
//! called cold leaves before the hand moves, and waits in no window.
//!
//! Pages that are locked or read-only are remembered: a turn of the hand tries one of them again,
//! and all once it could be moved. They may come to be more than the budget; then others still have
//! a quarter of it.
//!
//! Without UFFDIO_MOVE there is no window: the hand protects pages from being written, and
//! compresses and drops them where they are. Nothing is ever copied first and dropped then: a write
//! between the two would be lost.
//!
//! Cost: 0.1 to 1 µs a page moved, the codec and a pool's insert for one compressed, the codec and
//! a comparison for one that has a copy. No lock. Source: the segmented FIFO of VAX/VMS (Turner and
//! Levy 1981).
//!
//! # Safety
//! Pages are moved and protected that this call has taken by their word.
#![allow(unsafe_code)]

use std::ops::Range;

use super::fetch::{refusal, unmovable, ZEROS};
use super::inner::Inner;
use super::leaving::Leaving;
use crate::swap::copies::Copy;
use crate::swap::error::Error;
use crate::swap::patience::{Hope, Patience};
use crate::swap::shelf::store_copy;
use crate::swap::slots::Slot;
use crate::swap::stats::Counter;
use crate::swap::word::{change, look, must, State, Word};
use crate::sync::Ordering;
use crate::sys::page_size;
use crate::sys::uffd::{MISSING, UNMOVABLE};
use crate::units::Bytes;
use crate::zpool::{same_filled, with_buffer};

/// Pages that the hand passes at once.
const RUN: u64 = 64;
/// Pages that the tail passes at once.
const STEP: u64 = 8;
/// The part of the budget that leaves in one go, at most [`STEP`] pages if not more are needed.
const STEP_SHARE: u64 = 16;
/// Pages that do not fit into the pool, until it is taken to be full for all.
const REFUSALS: u32 = 2;
/// How often the hand goes round in vain.
const ROUNDS: u64 = 2;

/// For whom room is made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Asker {
    /// A touch, which cannot be refused: it goes over the budget where nothing can leave.
    Touch,
    /// A call, which can.
    Call,
    /// A touch, for pages beside that are not worth going over the budget.
    Ahead,
}

/// What one turn came to.
#[derive(Debug, Default)]
pub(super) struct Turn {
    /// Pages that room is made for: their owner does not wait for itself.
    own: Range<u64>,
    pub(super) left: u64,
    hope: Hope,
    pub(super) refused: Option<Error>,
    pub(super) refusals: u32,
    /// The error number of a page that the kernel did not move.
    stuck: Option<i32>,
    /// Whether all pages are tried that were locked or read-only; else whether one was, and
    /// whether others were passed by.
    tries_all: bool,
    tried_one: bool,
    passed_by: bool,
}

impl Inner {
    /// Charges pages that are this call's, for which others leave if they must.
    pub(super) fn make_room(&self, own: Range<u64>, asker: Asker) -> Result<(), Error> {
        let pages = own.end - own.start;
        let shed = self.shed(own, asker, || self.charge(pages));
        if shed.is_err() && asker == Asker::Touch {
            self.counts.add(Counter::Over, pages);
            self.charge_over(pages);
            return Ok(());
        }
        shed.map_err(|refused| {
            self.counts.add(Counter::Refused, 1);
            refused.unwrap_or_else(|| Error::Budget {
                len: self.offset_of(pages),
                pinned: self.offset_of(self.pinned()),
                budget: self.offset_of(self.budget()),
            })
        })
    }

    /// Has pages leave for some of this call's until it `is_done`; else why they could not, if not
    /// for pins alone.
    pub(super) fn shed(
        &self,
        own: Range<u64>,
        asker: Asker,
        is_done: impl Fn() -> bool,
    ) -> Result<(), Option<Error>> {
        let (mut patience, mut tries_all) = (Patience::default(), false);
        while !is_done() {
            let turn = self.turn(own.clone(), tries_all);
            if turn.left > 0 {
                patience.renew();
            } else if turn.passed_by && asker == Asker::Call {
                // A touch goes over the budget before it takes so long.
                tries_all = true;
            } else if turn.refused.is_some() || !patience.wait(turn.hope) {
                return if is_done() { Ok(()) } else { Err(self.why(turn)) };
            }
        }
        Ok(())
    }

    /// Why pages could not leave, if not for guards: they alone leave no room, or no page is stuck.
    fn why(&self, turn: Turn) -> Option<Error> {
        let is_for_guards = self.pinned() + (turn.own.end - turn.own.start) > self.budget();
        let stuck = turn.stuck.filter(|_| !is_for_guards);
        turn.refused.or(stuck.map(|errno| match errno {
            UNMOVABLE => unmovable(),
            errno => refusal("UFFDIO_MOVE", errno),
        }))
    }

    /// Turns both hands until some pages have left.
    fn turn(&self, own: Range<u64>, tries_all: bool) -> Turn {
        let want = (self.budget() / STEP_SHARE).clamp(1, STEP).max(own.end - own.start);
        let run = self.window_target().min(RUN);
        let (mut turn, mut passed) = (Turn { own, tries_all, ..Turn::default() }, 0);
        while turn.left < want && turn.refusals < REFUSALS && passed < ROUNDS * self.pages() + run {
            if let Some(pages) = self.cold.take(STEP) {
                self.let_leave(pages, &mut turn);
                passed += STEP;
                continue;
            }
            if !self.pager.moves() {
                self.take_protected(&mut turn);
                passed += STEP;
                continue;
            }
            let is_short = self.window.load(Ordering::Relaxed) < self.window_target();
            if is_short || self.is_level() {
                self.move_out(run, &mut turn);
                passed += run;
            }
            self.drain(&mut turn);
        }
        turn
    }

    /// Whether the tail is where the hand is.
    fn is_level(&self) -> bool {
        self.tail.load(Ordering::Relaxed) >= self.hand.load(Ordering::Relaxed)
    }

    /// The pages that so many places of a hand are, in runs.
    fn pages_at(&self, from: u64, count: u64) -> impl Iterator<Item = u64> + '_ {
        (from..from + count.min(self.pages())).map(|at| at % self.pages())
    }

    /// Has pages leave, up to [`STEP`], wherever the hands are.
    fn let_leave(&self, pages: Range<u64>, turn: &mut Turn) {
        if self.pager.moves() {
            self.move_all(pages.clone(), turn);
            self.drain_all(pages, turn);
        } else {
            self.take_all_protected(pages, turn);
        }
    }

    /// Moves the next pages of the hand into the window.
    fn move_out(&self, count: u64, turn: &mut Turn) {
        let from = self.hand.fetch_add(count, Ordering::Relaxed);
        self.move_all(self.pages_at(from, count), turn);
    }

    /// Moves those of some pages into the window that are home.
    fn move_all(&self, pages: impl Iterator<Item = u64>, turn: &mut Turn) {
        let (mut first, mut len) = (0, 0);
        for page in pages {
            if len > 0 && page != first + len {
                self.move_run(first, len, turn);
                len = 0;
            }
            if self.take(page, turn) {
                first = if len == 0 { page } else { first };
                len += 1;
            }
        }
        self.move_run(first, len, turn);
    }

    /// Takes a page that is home, unless somebody is at it.
    fn take(&self, page: u64, turn: &mut Turn) -> bool {
        let slot = self.slot_of(page);
        let word = slot.word();
        if self.is_passed_by(slot, turn) {
            return false;
        }
        let is_taken = change(word, Word::moving).is_ok();
        if !is_taken && !turn.own.contains(&page) {
            let now = look(word);
            if now.is_in_transit() {
                turn.hope.rise(Hope::Soon);
            } else if now.guards() > 0 {
                turn.hope.rise(Hope::Used);
            }
        }
        is_taken
    }

    /// Whether a page is not tried, since it was locked or read-only when it was tried last.
    fn is_passed_by(&self, slot: Slot<'_>, turn: &mut Turn) -> bool {
        if !slot.is_unmovable() || turn.tries_all {
            return false;
        }
        if look(slot.word()).state() == State::Resident {
            turn.stuck = Some(UNMOVABLE);
            turn.passed_by |= turn.tried_one;
        }
        std::mem::replace(&mut turn.tried_one, true)
    }

    /// Moves pages that follow one another and are this call's.
    fn move_run(&self, mut first: u64, mut len: u64, turn: &mut Turn) {
        let mut most = len;
        while len > 0 {
            let bytes = self.offset_of(most.min(len)).as_usize();
            // SAFETY: home, and this call's; the shadow is empty where a page is not in the window.
            let (moved, refused) =
                unsafe { self.pager.shift(self.at_shadow(first), self.at_home(first), bytes) };
            let moved = Bytes::new(moved as u64).pages_down(page_size()).get();
            self.window.fetch_add(moved, Ordering::Relaxed);
            self.counts.add(Counter::MovedOut, moved);
            for page in first..first + moved {
                turn.tries_all |= self.remember(page, false);
                self.put(page, State::Window);
            }
            if moved > 0 {
                turn.hope.rise(Hope::Soon);
                most = len;
            }
            (first, len) = (first + moved, len - moved);
            if let Some(errno) = refused {
                // What the program has locked or protected are mostly pages in a row.
                most = 1;
                self.remember(first, errno == UNMOVABLE);
                turn.stuck = self.stay(first, errno).then_some(errno).or(turn.stuck);
                (first, len) = (first + 1, len - 1);
            }
        }
    }

    /// Puts a page that is this call's where it is now, with the copy that it has.
    fn put(&self, page: u64, state: State) {
        must(self.slot_of(page).word(), |word| word.put(state, word.has_copy()));
    }

    /// A page that could not be moved; whether it is there. One that is missing was discarded by
    /// the program.
    fn stay(&self, page: u64, errno: i32) -> bool {
        if errno != MISSING {
            self.counts.add(Counter::Stuck, 1);
            self.put(page, State::Resident);
            return true;
        }
        self.forget(page);
        self.counts.add(Counter::Freed, 1);
        self.release(1);
        false
    }

    /// Compresses and drops the next pages of the tail that are in the window.
    fn drain(&self, turn: &mut Turn) {
        let hand = self.hand.load(Ordering::Relaxed);
        let oldest = hand.saturating_sub(self.pages());
        let step = |tail: u64| {
            Some(tail.max(oldest) + STEP).map(|next| next.min(hand)).filter(|next| *next > tail)
        };
        let Ok(tail) = self.tail.fetch_update(Ordering::Relaxed, Ordering::Relaxed, step) else {
            return;
        };
        let from = tail.max(oldest);
        self.drain_all(self.pages_at(from, STEP.min(hand - from)), turn);
    }

    /// Compresses and drops those of up to [`STEP`] pages that are in the window.
    fn drain_all(&self, pages: impl Iterator<Item = u64>, turn: &mut Turn) {
        let mut leaving = Leaving::new(self, &self.shadow, State::Window);
        for page in pages {
            if change(self.slot_of(page).word(), Word::draining).is_ok() {
                leaving.add(page, turn);
            }
        }
        leaving.drop_all(turn);
    }

    /// Compresses and drops the next pages of the hand where they are, protected meanwhile.
    fn take_protected(&self, turn: &mut Turn) {
        let from = self.hand.fetch_add(STEP, Ordering::Relaxed);
        self.take_all_protected(self.pages_at(from, STEP), turn);
    }

    /// Does so with those of up to [`STEP`] pages that are home.
    fn take_all_protected(&self, pages: impl Iterator<Item = u64>, turn: &mut Turn) {
        let mut leaving = Leaving::new(self, &self.home, State::Resident);
        for page in pages {
            if !self.take(page, turn) {
                continue;
            }
            if self.protect(page) {
                leaving.add(page, turn);
            } else {
                self.stay(page, 0);
            }
        }
        leaving.drop_all(turn);
    }

    /// Protects a page that is this call's, and makes sure that it is there to be read.
    fn protect(&self, page: u64) -> bool {
        let (at, len) = (self.at_home(page), self.page());
        // SAFETY: home, and this call's: a touch waits for it.
        unsafe {
            self.pager.fill(at, &ZEROS[..len], len).is_ok()
                && self.pager.protect(at, len, true).is_ok()
        }
    }

    /// Makes sure that there is a copy of a page as it is now; else why not, and then there is
    /// none.
    pub(super) fn keep(&self, page: u64, bytes: &[u8], has_copy: bool) -> Result<(), Error> {
        let slot = self.slot_of(page);
        if has_copy {
            if self.is_copy_of(page, slot.copy(), bytes) {
                self.counts.add(Counter::Reused, 1);
                return Ok(());
            }
            self.copies.drop_copy(slot.copy());
        }
        let copy = store_copy(self, self.key_of(page), bytes, u64::MAX)?;
        slot.set_copy(copy);
        Ok(())
    }

    fn is_copy_of(&self, page: u64, copy: Copy, bytes: &[u8]) -> bool {
        match copy {
            Copy::Filled(word) => same_filled(bytes) == Some(word),
            copy => with_buffer(bytes.len(), |buffer| {
                self.copies.load(self.key_of(page), copy, buffer).is_ok() && buffer == bytes
            }),
        }
    }
}
