//! `RegionCore` evicts pages in two steps, each in address order.
//!
//! The *hand* moves runs of pages to shadow addresses, out of the program's reach (the *window*). A
//! touch moves a page back with one system call, so used pages stay. The *tail* drops the pages
//! still in the window, and first compresses each page that has no equal copy.
//!
//! Pages that the kernel pins, or that are locked or read-only, stay. The region remembers locked
//! and read-only pages: an eviction retries one such page, and all once one moves. The region
//! exceeds its budget where such pages leave less than a quarter for other pages.
//!
//! Without UFFDIO_MOVE, the hand compresses and drops pages in place. The hand first write-protects
//! each page, because a write between copy and drop would be lost.
//!
//! Cost: 0.1 to 1 µs per page moved. No lock. Source: the segmented FIFO of VAX/VMS (Turner and
//! Levy 1981).
//!
//! # Safety
//! A call moves and protects only pages that it owns.
#![allow(unsafe_code)]

use std::ops::Range;

use super::fetch::{refusal, unmovable, ZEROS};
use super::inner::RegionCore;
use super::leaving::Leaving;
use crate::swap::copies::Copy;
use crate::swap::error::SwapError;
use crate::swap::patience::{Hope, Patience};
use crate::swap::shelf::store_copy;
use crate::swap::slots::SwapSlot;
use crate::swap::stats::Counter;
use crate::swap::word::{change, look, must, Word, WordState};
use crate::zpool::internal::{same_filled, with_buffer};
use glebe_os::internal::sync::Ordering;
use glebe_os::internal::sys::memory::uffd::{MISSING, UNMOVABLE};
use glebe_os::internal::sys::page_size;
use glebe_os::units::Bytes;

const RUN: u64 = 64;
const STEP: u64 = 8;
const STEP_SHARE: u64 = 16;
const REFUSALS: u32 = 2;
const ROUNDS: u64 = 2;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Asker {
    /// A touch may exceed the budget if nothing can leave.
    Touch,
    Call,
    /// Read-ahead may not exceed the budget.
    Ahead,
}

#[derive(Debug, Default)]
pub(super) struct Turn {
    /// The caller's pages, for which the turn does not wait.
    own: Range<u64>,
    pub(super) left: u64,
    hope: Hope,
    pub(super) refused: Option<SwapError>,
    pub(super) refusals: u32,
    stuck: Option<i32>,
    tries_all: bool,
    tried_one: bool,
    passed_by: bool,
}

impl RegionCore {
    pub(super) fn make_room(&self, own: Range<u64>, asker: Asker) -> Result<(), SwapError> {
        let pages = own.end - own.start;
        let shed = self.shed(own, asker, || self.charge(pages));
        if shed.is_err() && asker == Asker::Touch {
            self.counts.add(Counter::Over, pages);
            self.charge_over(pages);
            return Ok(());
        }
        shed.map_err(|refused| {
            self.counts.add(Counter::Refused, 1);
            refused.unwrap_or_else(|| SwapError::Budget {
                len: self.offset_of(pages),
                pinned: self.offset_of(self.pinned()),
                budget: self.offset_of(self.budget()),
            })
        })
    }

    /// Fails with the reason, or with `None` if pins or other threads prevent eviction.
    pub(super) fn shed(
        &self,
        own: Range<u64>,
        asker: Asker,
        is_done: impl Fn() -> bool,
    ) -> Result<(), Option<SwapError>> {
        let (mut patience, mut tries_all) = (Patience::default(), false);
        while !is_done() {
            let turn = self.turn(own.clone(), tries_all);
            if turn.left > 0 {
                patience.renew();
            } else if turn.passed_by && asker == Asker::Call {
                // Only a call retries all unmovable pages.
                tries_all = true;
            } else if turn.refused.is_some() || !patience.wait(turn.hope) {
                return if is_done() { Ok(()) } else { Err(self.why(turn)) };
            }
        }
        Ok(())
    }

    fn why(&self, turn: Turn) -> Option<SwapError> {
        let is_for_guards = self.pinned() + (turn.own.end - turn.own.start) > self.budget();
        let stuck = turn.stuck.filter(|_| !is_for_guards);
        turn.refused.or(stuck.map(|errno| match errno {
            UNMOVABLE => unmovable(),
            errno => refusal("UFFDIO_MOVE", errno),
        }))
    }

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

    fn is_level(&self) -> bool {
        self.tail.load(Ordering::Relaxed) >= self.hand.load(Ordering::Relaxed)
    }

    fn pages_at(&self, from: u64, count: u64) -> impl Iterator<Item = u64> + '_ {
        (from..from + count.min(self.pages())).map(|at| at % self.pages())
    }

    fn let_leave(&self, pages: Range<u64>, turn: &mut Turn) {
        if self.pager.moves() {
            self.move_all(pages.clone(), turn);
            self.drain_all(pages, turn);
        } else {
            self.take_all_protected(pages, turn);
        }
    }

    fn move_out(&self, count: u64, turn: &mut Turn) {
        let from = self.hand.fetch_add(count, Ordering::Relaxed);
        self.move_all(self.pages_at(from, count), turn);
    }

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

    fn is_passed_by(&self, slot: SwapSlot<'_>, turn: &mut Turn) -> bool {
        if !slot.is_unmovable() || turn.tries_all {
            return false;
        }
        if look(slot.word()).state() == WordState::Resident {
            turn.stuck = Some(UNMOVABLE);
            turn.passed_by |= turn.tried_one;
        }
        std::mem::replace(&mut turn.tried_one, true)
    }

    fn move_run(&self, mut first: u64, mut len: u64, turn: &mut Turn) {
        let mut most = len;
        while len > 0 {
            let bytes = self.offset_of(most.min(len)).as_usize();
            // SAFETY: this call owns the pages at the program's addresses; the shadow addresses are
            // empty.
            let (moved, refused) =
                unsafe { self.pager.shift(self.at_shadow(first), self.at_home(first), bytes) };
            let moved = Bytes::new(moved as u64).pages_down(page_size()).get();
            self.window.fetch_add(moved, Ordering::Relaxed);
            self.counts.add(Counter::MovedOut, moved);
            for page in first..first + moved {
                turn.tries_all |= self.remember(page, false);
                self.put(page, WordState::Window);
            }
            if moved > 0 {
                turn.hope.rise(Hope::Soon);
                most = len;
            }
            (first, len) = (first + moved, len - moved);
            if let Some(errno) = refused {
                // Moves the next page singly, because unmovable pages are often neighbours.
                most = 1;
                self.remember(first, errno == UNMOVABLE);
                turn.stuck = self.stay(first, errno).then_some(errno).or(turn.stuck);
                (first, len) = (first + 1, len - 1);
            }
        }
    }

    fn put(&self, page: u64, state: WordState) {
        must(self.slot_of(page).word(), |word| word.put(state, word.has_copy()));
    }

    /// Returns false if the program had discarded the page.
    fn stay(&self, page: u64, errno: i32) -> bool {
        if errno != MISSING {
            self.counts.add(Counter::Stuck, 1);
            self.put(page, WordState::Resident);
            return true;
        }
        self.forget(page);
        self.counts.add(Counter::Freed, 1);
        self.release(1);
        false
    }

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

    /// `pages` has at most [`STEP`].
    fn drain_all(&self, pages: impl Iterator<Item = u64>, turn: &mut Turn) {
        let mut leaving = Leaving::new(self, &self.shadow, WordState::Window);
        for page in pages {
            if change(self.slot_of(page).word(), Word::draining).is_ok() {
                leaving.add(page, turn);
            }
        }
        leaving.drop_all(turn);
    }

    fn take_protected(&self, turn: &mut Turn) {
        let from = self.hand.fetch_add(STEP, Ordering::Relaxed);
        self.take_all_protected(self.pages_at(from, STEP), turn);
    }

    fn take_all_protected(&self, pages: impl Iterator<Item = u64>, turn: &mut Turn) {
        let mut leaving = Leaving::new(self, &self.home, WordState::Resident);
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

    /// Fills a discarded page with zeros first.
    fn protect(&self, page: u64) -> bool {
        let (at, len) = (self.at_home(page), self.page());
        // SAFETY: this call owns the page at the program's address; a touch waits.
        unsafe {
            self.pager.fill(at, &ZEROS[..len], len).is_ok()
                && self.pager.protect(at, len, true).is_ok()
        }
    }

    /// Ensures that a page has a copy of `bytes`, or none after an error.
    pub(super) fn keep(&self, page: u64, bytes: &[u8], has_copy: bool) -> Result<(), SwapError> {
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
