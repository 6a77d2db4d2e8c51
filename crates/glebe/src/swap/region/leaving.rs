//! [`Leaving`]: pages that leave memory in one go.
//!
//! They are all at home or all in the window, and the call has each to itself by its word from
//! before it is added until it is dropped or stays. The kernel takes them in one call; what it
//! refuses is tried alone, and stays if that is refused too. Cost: that of the copies, and 0.1 to
//! 1 µs a page. No lock.
//!
//! # Safety
//! Pages are read and dropped that this call has taken by their word.
#![allow(unsafe_code)]

use super::evict::Turn;
use super::inner::Inner;
use crate::mapping::{Mapping, DISCARD_MAX};
use crate::swap::stats::Counter;
use crate::swap::word::{look, must, State};
use crate::sync::Ordering;
use crate::sys::page_size;
use crate::units::{Bytes, Pages};

/// See the module.
pub(super) struct Leaving<'a> {
    inner: &'a Inner,
    /// Where they are, and in which state they stay if they are not dropped.
    of: &'a Mapping,
    stays: State,
    /// Whether their bytes are wanted no more; else each has a copy.
    is_dead: bool,
    pages: [u64; DISCARD_MAX],
    len: usize,
}

impl Inner {
    /// Makes a hole of a page that is this call's and in no memory.
    pub(super) fn forget(&self, page: u64) {
        let slot = self.slot_of(page);
        self.remember(page, false);
        must(slot.word(), |word| {
            word.has_copy().then(|| self.copies.drop_copy(slot.copy()));
            word.put(State::Hole, false)
        });
    }
}

impl<'a> Leaving<'a> {
    /// Of pages that each get a copy.
    pub(super) fn new(inner: &'a Inner, of: &'a Mapping, stays: State) -> Self {
        Self { inner, of, stays, is_dead: false, pages: [0; DISCARD_MAX], len: 0 }
    }

    /// Of pages whose bytes are wanted no more.
    pub(super) fn dead(inner: &'a Inner, of: &'a Mapping, stays: State) -> Self {
        Self { is_dead: true, ..Self::new(inner, of, stays) }
    }

    /// Makes a copy of a page that is this call's; it stays where none can be made.
    pub(super) fn add(&mut self, page: u64, turn: &mut Turn) {
        let word = self.inner.slot_of(page).word();
        // SAFETY: there, and this call's: written by nobody, being protected or out of reach.
        let bytes = unsafe { self.inner.bytes(self.of, page) };
        let kept = self.inner.keep(page, bytes, look(word).has_copy());
        if let Err(error) = kept {
            self.spare(page, false);
            turn.refused = Some(error);
            turn.refusals += 1;
            return;
        }
        self.push(page);
    }

    /// Adds a page that is this call's, as it is.
    pub(super) fn push(&mut self, page: u64) {
        self.pages[self.len] = page;
        self.len += 1;
    }

    /// Ends a page that is gone from memory.
    fn end(&self, page: u64) {
        // First, so that who finds nobody at the page finds its room.
        self.inner.release(1);
        if self.is_dead {
            self.inner.forget(page);
        } else {
            must(self.inner.slot_of(page).word(), |word| word.put(State::Stored, true));
        }
    }

    /// Keeps a page where it is.
    fn spare(&self, page: u64, has_copy: bool) {
        // What stays protected is so until it is touched or pinned.
        if self.stays == State::Resident && self.inner.unprotect(page).is_err() {
            self.inner.protected.fetch_add(1, Ordering::Release);
        }
        must(self.inner.slot_of(page).word(), |word| word.put(self.stays, has_copy));
    }

    /// Drops them.
    pub(super) fn drop_all(self, turn: &mut Turn) {
        let mut ranges = [(0, Bytes::ZERO); DISCARD_MAX];
        let mut count = 0;
        for (nth, page) in self.pages[..self.len].iter().enumerate() {
            if nth == 0 || self.pages[nth - 1] + 1 != *page {
                ranges[count] = (self.inner.offset_of(*page).as_usize(), Bytes::ZERO);
                count += 1;
            }
            let (_, len) = &mut ranges[count - 1];
            *len = *len + Pages::new(1).bytes(page_size());
        }
        // SAFETY: this call's, and each has a copy or is dead.
        let told = unsafe { self.of.give_back_all(&mut ranges[..count]) };
        let told: u64 =
            ranges[..told].iter().map(|(_, len)| len.pages_down(page_size()).get()).sum();
        let mut gone = 0;
        for (nth, page) in (0_u64..).zip(&self.pages[..self.len]) {
            let (at, len) = (self.inner.offset_of(*page), Pages::new(1).bytes(page_size()));
            let one = match nth < told {
                true => Ok(()),
                // SAFETY: as above; the kernel kept this page.
                false => unsafe { self.of.give_back(at, len) },
            };
            if let Err(error) = one {
                turn.refused = Some(error.into());
                let word = self.inner.slot_of(*page).word();
                self.spare(*page, !self.is_dead || look(word).has_copy());
                continue;
            }
            self.end(*page);
            gone += 1;
        }
        if self.stays == State::Window {
            self.inner.window.fetch_sub(gone, Ordering::Relaxed);
        }
        if self.is_dead {
            self.inner.counts.add(Counter::Freed, gone);
        } else {
            self.inner.counts.add(Counter::Evicted, gone);
            self.inner.counts.add(Counter::Stayed, self.len as u64 - gone);
        }
        turn.left += gone;
    }
}
