//! [`Pages`]: where the pages of zspages come from and go.
//!
//! Runs of pages, lowest first, in address space that was reserved without memory. A page is
//! *used* (some zspage's), *kept* (present, nobody's, so that the next zspage costs no call),
//! *absent*, or beyond the highest that was ever used. Kept pages are few, a share of those used;
//! what is more leaves by [`Pages::trim`], highest first, and with it the memory. Pages come in
//! chunks: a call for many costs hardly more than one fault.
//!
//! Unit: pages from the start. Invariant: `kept` and `absent` share no page. Lock: its own, taken
//! inside a class's, held for a search of bits and never over a call. Pages of which the kernel
//! is being asked are in neither set meanwhile.
//!
//! # Safety
//! Pages are discarded while they are in neither set: nobody's.
#![allow(unsafe_code)]

use crate::sync::{lock, AtomicU64, Mutex, Ordering};
use crate::zpool::memory::account::{Account, NoRoom};
use crate::zpool::memory::bits::{Bits, RUN_MAX};
use crate::zpool::memory::frames::{Frames, DISCARD_MAX};

/// For each page kept there are so many in use.
const USED_PER_KEPT: u64 = 2048;
/// Half of it is what a trim leaves: a zspage of four pages that comes and goes costs no call.
const KEPT_MIN: u64 = 8;
const KEPT_MAX: u64 = 64;
/// Pages of one call at most that gives pages back, and runs of them.
const TRIM_PAGES_MAX: u32 = 64;
const TRIM_RUNS_MAX: usize = DISCARD_MAX;

/// See the module.
#[derive(Debug)]
pub(crate) struct Pages {
    frames: Frames,
    page_bytes: u64,
    end: u32,
    /// The least that may be kept.
    keep: u64,
    supply: Mutex<Supply>,
    /// Both are stored with the lock, and loaded without.
    used: AtomicU64,
    kept: AtomicU64,
}

#[derive(Debug, Default)]
struct Supply {
    kept: Bits,
    absent: Bits,
    /// From here on no page was ever used.
    fresh: u32,
}

impl Supply {
    /// Makes absent pages at the end ones that were never used.
    fn shorten(&mut self) {
        while self.fresh > 0 && self.absent.contains(self.fresh - 1) {
            let Some((first, _)) = self.absent.take_highest(self.fresh) else { return };
            self.fresh = first;
        }
    }
}

impl Pages {
    /// A supply of `end` pages.
    pub(crate) fn new(frames: Frames, page_bytes: u64, end: u32) -> Self {
        let (used, kept) = (AtomicU64::new(0), AtomicU64::new(0));
        let supply = Mutex::new(Supply::default());
        Self { frames, page_bytes, end, keep: KEPT_MIN, supply, used, kept }
    }

    /// Keeps so many pages at least, if it has them.
    pub(crate) fn keeping(self, pages: u64) -> Self {
        Self { keep: self.keep.max(pages), ..self }
    }

    #[inline]
    pub(crate) fn frames(&self) -> &Frames {
        &self.frames
    }

    /// Bytes of a page.
    #[inline]
    pub(crate) fn page_bytes(&self) -> u64 {
        self.page_bytes
    }

    /// Where a page's bytes begin.
    #[inline]
    pub(crate) fn start_of(&self, page: u32) -> usize {
        page as usize * self.page_bytes as usize
    }

    /// Pages of zspages.
    #[inline]
    pub(crate) fn used(&self) -> u64 {
        self.used.load(Ordering::Relaxed)
    }

    /// Pages that are present and nobody's.
    #[inline]
    pub(crate) fn kept(&self) -> u64 {
        self.kept.load(Ordering::Relaxed)
    }

    /// How many pages may be kept.
    #[inline]
    fn kept_bound(&self) -> u64 {
        (self.used() / USED_PER_KEPT).clamp(self.keep, self.keep.max(KEPT_MAX))
    }

    /// A run of present pages.
    pub(crate) fn alloc(&self, account: &Account, count: u32) -> Result<u32, NoRoom> {
        debug_assert!((1..=RUN_MAX).contains(&count));
        let mut supply = lock(&self.supply);
        if supply.kept.len() >= count as usize {
            if let Some(first) = supply.kept.take(count) {
                self.kept.store(supply.kept.len() as u64, Ordering::Relaxed);
                self.used.store(self.used() + u64::from(count), Ordering::Relaxed);
                return Ok(first);
            }
        }
        let first = match supply.absent.take(count) {
            Some(first) => first,
            None => self.beyond(&mut supply, count)?,
        };
        // What follows comes along, as far as it may be kept even when this run is given back: no
        // zspage that comes and goes has pages trimmed each time.
        let kept = supply.kept.len() as u64 + u64::from(count);
        let room = self.kept_bound().saturating_sub(kept) as u32;
        let mut ahead = supply.absent.take_at(first + count, room);
        if first + count + ahead == supply.fresh {
            let more = (room - ahead).min(self.end - supply.fresh);
            supply.fresh += more;
            ahead += more;
        }
        drop(supply);
        let made = self.populate(account, first, count, ahead);
        let mut supply = lock(&self.supply);
        let kept = match made {
            Ok(kept) => kept,
            Err(error) => {
                supply.absent.put(first, count + ahead);
                return Err(error);
            }
        };
        let behind = first + count;
        if kept > 0 {
            supply.kept.put(behind, kept);
            self.kept.store(supply.kept.len() as u64, Ordering::Relaxed);
        }
        if ahead > kept {
            supply.absent.put(behind + kept, ahead - kept);
        }
        self.used.store(self.used() + u64::from(count), Ordering::Relaxed);
        Ok(first)
    }

    fn beyond(&self, supply: &mut Supply, count: u32) -> Result<u32, NoRoom> {
        if count > self.end - supply.fresh {
            return Err(NoRoom::Space);
        }
        supply.fresh += count;
        Ok(supply.fresh - count)
    }

    /// Makes `count` pages present, and `ahead` behind them if that can be had; how many of those.
    fn populate(
        &self,
        account: &Account,
        first: u32,
        count: u32,
        ahead: u32,
    ) -> Result<u32, NoRoom> {
        let attempts = [ahead, 0];
        for ahead in &attempts[usize::from(ahead == 0)..] {
            let bytes = u64::from(count + ahead) * self.page_bytes;
            if !account.charge(bytes) {
                continue;
            }
            match self.frames.populate(first, count + ahead) {
                Ok(()) => return Ok(*ahead),
                Err(error) => {
                    account.release(bytes);
                    if *ahead == 0 {
                        // Some may be there.
                        // SAFETY: nobody's pages.
                        let _ = unsafe { self.frames.discard(first, count) };
                        return Err(NoRoom::Os(error));
                    }
                }
            }
        }
        Err(NoRoom::Limit)
    }

    /// Takes a run back.
    pub(crate) fn free(&self, first: u32, count: u32) {
        let mut supply = lock(&self.supply);
        supply.kept.put(first, count);
        self.kept.store(supply.kept.len() as u64, Ordering::Relaxed);
        self.used.store(self.used() - u64::from(count), Ordering::Relaxed);
    }

    /// Gives pages back to the kernel if more are kept than may be. A load where not.
    #[inline]
    pub(crate) fn trim(&self, account: &Account) {
        self.trim_above(account, 0);
    }

    /// As [`Pages::trim`], if they are `more` than may be.
    #[inline]
    pub(crate) fn trim_above(&self, account: &Account, more: u64) {
        let bound = self.kept_bound();
        if self.kept() > bound + more {
            self.trim_to(account, bound / 2);
        }
    }

    /// Gives pages back until only `left` are kept; how many went.
    #[cold]
    pub(crate) fn trim_to(&self, account: &Account, left: u64) -> u64 {
        let mut gone = 0;
        loop {
            let (mut runs, mut count) = ([(0, 0); TRIM_RUNS_MAX], 0);
            let mut supply = lock(&self.supply);
            let most = (supply.kept.len() as u64).saturating_sub(left);
            let mut most = most.min(TRIM_PAGES_MAX.into()) as u32;
            while let Some(run) = (most > 0 && count < TRIM_RUNS_MAX)
                .then(|| supply.kept.take_highest(most))
                .flatten()
            {
                runs[count] = run;
                (most, count) = (most - run.1, count + 1);
            }
            if count == 0 {
                return gone;
            }
            self.kept.store(supply.kept.len() as u64, Ordering::Relaxed);
            drop(supply);
            // SAFETY: taken out of the kept ones just now, and not yet anybody's.
            let went = unsafe { self.frames.discard_all(&runs[..count]) };
            let mut supply = lock(&self.supply);
            let mut pages = 0;
            for (first, count) in &runs[..went] {
                supply.absent.put(*first, *count);
                pages += u64::from(*count);
            }
            runs[went..count].iter().for_each(|(first, count)| supply.kept.put(*first, *count));
            self.kept.store(supply.kept.len() as u64, Ordering::Relaxed);
            supply.shorten();
            supply.kept.shrink();
            drop(supply);
            account.release(pages * self.page_bytes);
            gone += pages;
            if went < count {
                return gone;
            }
        }
    }

    /// Bytes of its own tables.
    pub(crate) fn held_bytes(&self) -> u64 {
        let supply = lock(&self.supply);
        supply.kept.held_bytes() + supply.absent.held_bytes()
    }
}
