//! The tenants' half: claim a page, fill it, read it, drop it.
//!
//! A tenant is refused, never made to wait: whoever is refused takes another page or gives up.

use super::{Lent, Meta};
use crate::reserve::critical::{Fill, Guard, Outcome};
use crate::reserve::granule::{GranuleWord, OPEN_MASK};
use crate::reserve::page_word::{PageWord, State};
use crate::sync::{fence, Ordering};

/// How often a fill that the kernel aborted is tried again: each abort is a preemption or a
/// signal, so this many in one copy mean that it cannot finish here and now.
const ABORTS_MAX: u32 = 64;

/// A page that the holder may fill. It must be filled or given up.
#[derive(Debug)]
#[must_use]
pub(crate) struct Claim {
    pub(crate) page: usize,
    word: PageWord,
    seen: GranuleWord,
    /// The page held a tenant's page before, which the claim evicted.
    pub(crate) evicted: bool,
}

/// Why a page could not be claimed.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum NoClaim {
    /// Somebody else has it, or first class keeps tenants out.
    Taken,
    /// First class took the granule, and the live page that stood for the claim with it.
    Recalled,
}

/// Why a claimed page could not be filled. The claim is gone either way.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum NotFilled {
    /// First class took the page, and counted it as recalled.
    Recalled,
    /// Interrupted too often.
    Interrupted,
}

impl Lent {
    fn guard(&self, granule: usize, seen: GranuleWord) -> Guard<'_> {
        Guard { word: &self.granules[granule], mask: OPEN_MASK, expect: seen.open_expect() }
    }

    /// Exchanges a page word in a guarded sequence.
    #[inline]
    fn exchange(&self, page: usize, seen: GranuleWord, old: PageWord, new: PageWord) -> Outcome {
        let guard = self.guard(self.granule_of(page), seen);
        // So short a sequence cannot be interrupted each time.
        loop {
            let end = self.critical.exchange(guard, &self.words[page], old.0, new.0);
            if end != Outcome::Aborted {
                return end;
            }
        }
    }

    /// In the epoch of `seen` and while the granule is open: stands for a live page if `adds`,
    /// and for a writer where those are counted.
    #[inline]
    fn enter(&self, granule: usize, seen: GranuleWord, adds: bool) -> bool {
        let counted = self.critical.counts_writers();
        if !adds && !counted {
            return true;
        }
        let change = |now: GranuleWord| {
            if !now.is_open() || now.epoch() != seen.epoch() {
                return None;
            }
            let now = if adds { now.with_live_added()? } else { now };
            if counted {
                now.pinned()
            } else {
                Some(now)
            }
        };
        self.update(granule, change).is_ok()
    }

    /// The end of a copy, where writers are counted.
    #[inline]
    fn leave(&self, granule: usize) {
        if self.critical.counts_writers() {
            let _ = self.update(granule, |now| Some(now.unpinned()));
        }
    }

    /// Takes a live page back out of the count; false if a recall of the whole granule did.
    #[inline]
    fn uncount(&self, granule: usize, seen: GranuleWord) -> bool {
        let same = |now: GranuleWord| now.epoch() == seen.epoch();
        self.update(granule, |now| same(now).then(|| now.with_live_removed(1))).is_ok()
    }

    /// Claims `page` if nobody is at it, evicting a tenant's page that may be there.
    #[inline]
    pub(crate) fn claim(&self, page: usize) -> Result<Claim, NoClaim> {
        let granule = self.granule_of(page);
        let seen = self.granule(granule);
        let old = self.word(page);
        let state = old.state(seen.epoch());
        let adds = match state {
            State::Writing | State::First => return Err(NoClaim::Taken),
            State::Free | State::Zero => true,
            State::Valid => false,
        };
        if !seen.is_open() || !self.enter(granule, seen, adds) {
            return Err(NoClaim::Taken);
        }
        let word = old.next(State::Writing, seen.epoch());
        if self.exchange(page, seen, old, word) == Outcome::Done {
            return Ok(Claim { page, word, seen, evicted: !adds });
        }
        self.leave(granule);
        if adds && !self.uncount(granule, seen) {
            return Err(NoClaim::Recalled);
        }
        Err(NoClaim::Taken)
    }

    /// Copies one page of `bytes` into the claimed page, with its key words.
    #[inline]
    #[allow(unsafe_code)]
    pub(crate) fn fill(&self, claim: Claim, meta: Meta, bytes: &[u8]) -> Result<(), NotFilled> {
        debug_assert_eq!(bytes.len() as u64, self.frames.page().bytes().get());
        let granule = self.granule_of(claim.page);
        let guard = self.guard(granule, claim.seen);
        let fill = Fill {
            target: &self.words[claim.page],
            claim: claim.word.0,
            commit: claim.word.become_state(State::Valid).0,
            meta_at: &self.meta[claim.page],
            meta,
            to: self.frames.at(claim.page),
            from: bytes.as_ptr(),
            len: bytes.len(),
        };
        for _ in 0..ABORTS_MAX {
            // SAFETY: `bytes` is a slice of one page and the target is a page of the mapping,
            // which the reserve hands to nobody as a slice while the guard holds; readers copy it
            // out and check the page word afterwards.
            match unsafe { self.critical.fill(guard, &fill) } {
                Outcome::Done => {
                    self.leave(granule);
                    return Ok(());
                }
                Outcome::Aborted => {}
                Outcome::Refused | Outcome::Lost => {
                    self.leave(granule);
                    return Err(NotFilled::Recalled);
                }
            }
        }
        self.give_up(&claim)
    }

    fn give_up(&self, claim: &Claim) -> Result<(), NotFilled> {
        let granule = self.granule_of(claim.page);
        let free = claim.word.next(State::Free, claim.seen.epoch());
        let end = self.exchange(claim.page, claim.seen, claim.word, free);
        self.leave(granule);
        if end == Outcome::Done && self.uncount(granule, claim.seen) {
            return Err(NotFilled::Interrupted);
        }
        Err(NotFilled::Recalled)
    }

    /// The word of `page` if it holds a tenant's page for which `is_key` says yes.
    #[inline]
    pub(crate) fn holds(
        &self,
        page: usize,
        is_key: impl Fn(&Meta) -> bool,
    ) -> Option<(PageWord, GranuleWord, Meta)> {
        let seen = self.granule(self.granule_of(page));
        let word = self.word(page);
        if word.state(seen.epoch()) != State::Valid {
            return None;
        }
        let meta: Meta = self.meta[page].each_ref().map(|m| m.load(Ordering::Relaxed));
        if !is_key(&meta) {
            return None;
        }
        self.unchanged(page, word, seen).then_some((word, seen, meta))
    }

    /// Whether nothing that was read of `page` since `word` and `seen` can have changed.
    #[inline]
    fn unchanged(&self, page: usize, word: PageWord, seen: GranuleWord) -> bool {
        fence(Ordering::Acquire);
        self.words[page].load(Ordering::Relaxed) == word.0
            && self.granule(self.granule_of(page)).epoch() == seen.epoch()
    }

    /// Copies `page` out if it holds exactly `key`; else `buf` may hold anything.
    #[inline]
    pub(crate) fn read(&self, page: usize, key: &Meta, buf: &mut [u8]) -> bool {
        let Some((word, seen, _)) = self.holds(page, |meta| meta == key) else { return false };
        self.frames.read(page, buf);
        self.unchanged(page, word, seen)
    }

    /// Drops the tenant's page that was seen as `word`. False if somebody came first.
    pub(crate) fn discard(&self, page: usize, word: PageWord, seen: GranuleWord) -> bool {
        let granule = self.granule_of(page);
        if !seen.is_open() || !self.enter(granule, seen, false) {
            return false;
        }
        let free = word.next(State::Free, seen.epoch());
        let done = self.exchange(page, seen, word, free) == Outcome::Done;
        self.leave(granule);
        done && self.uncount(granule, seen)
    }
}
