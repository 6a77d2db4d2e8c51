//! [`Leaving`] drops pages from memory with one system call.
//!
//! All pages are at *home*, or all in the *window*. Each page's state word gives the page to the
//! call until the page is dropped or stays. The call retries singly the pages that the kernel kept.
//! No lock.
//!
//! # Safety
//! A call reads and drops only pages that it owns.
#![allow(unsafe_code)]

use super::evict::Turn;
use super::inner::RegionCore;
use crate::swap::stats::Counter;
use crate::swap::word::{look, must, WordState};
use glebe_os::internal::mapping::{Mapping, DISCARD_MAX};
use glebe_os::internal::sync::Ordering;
use glebe_os::internal::sys::page_size;
use glebe_os::units::{Bytes, Pages};

pub(super) struct Leaving<'a> {
    inner: &'a RegionCore,
    of: &'a Mapping,
    stays: WordState,
    is_dead: bool,
    pages: [u64; DISCARD_MAX],
    len: usize,
}

impl RegionCore {
    pub(super) fn forget(&self, page: u64) {
        let slot = self.slot_of(page);
        self.remember(page, false);
        must(slot.word(), |word| {
            word.has_copy().then(|| self.copies.drop_copy(slot.copy()));
            word.put(WordState::Hole, false)
        });
    }
}

impl<'a> Leaving<'a> {
    pub(super) fn new(inner: &'a RegionCore, of: &'a Mapping, stays: WordState) -> Self {
        Self { inner, of, stays, is_dead: false, pages: [0; DISCARD_MAX], len: 0 }
    }

    pub(super) fn dead(inner: &'a RegionCore, of: &'a Mapping, stays: WordState) -> Self {
        Self { is_dead: true, ..Self::new(inner, of, stays) }
    }

    pub(super) fn add(&mut self, page: u64, turn: &mut Turn) {
        let word = self.inner.slot_of(page).word();
        // SAFETY: the page is present, and this call owns the page: nobody writes to the page,
        // because it is write-protected or was moved out of the region.
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

    pub(super) fn push(&mut self, page: u64) {
        self.pages[self.len] = page;
        self.len += 1;
    }

    fn end(&self, page: u64) {
        // `release` comes first: a thread that sees the new word must find room in the budget.
        self.inner.release(1);
        if self.is_dead {
            self.inner.forget(page);
        } else {
            must(self.inner.slot_of(page).word(), |word| word.put(WordState::Stored, true));
        }
    }

    fn spare(&self, page: u64, has_copy: bool) {
        // If this fails, the page stays protected until a touch or pin.
        if self.stays == WordState::Resident && self.inner.unprotect(page).is_err() {
            self.inner.protected.fetch_add(1, Ordering::Release);
        }
        must(self.inner.slot_of(page).word(), |word| word.put(self.stays, has_copy));
    }

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
        // SAFETY: this call owns the pages, and each has a copy or is dead.
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
        if self.stays == WordState::Window {
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
