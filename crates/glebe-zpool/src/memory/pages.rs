//! [`Pages`] supplies the pages of zspages in reserved address space.
//!
//! A page below `fresh` is *used* by a zspage, *kept* (present and free) or *absent*. A kept page
//! saves a system call.
//!
//! Unit: pages from the start. Invariant: `kept` and `absent` share no page, and pages under a
//! system call are in neither. Lock: `supply`, taken after a class's and released for system calls.
//!
//! # Safety
//! Pages to discard are in neither set, so no thread uses them.
#![allow(unsafe_code)]

use crate::memory::account::{Account, NoRoom};
use crate::memory::bits::{Bits, RUN_MAX};
use crate::memory::frames::{Frames, DISCARD_MAX};
use glebe_os::internal::sync::{lock, AtomicU64, Mutex, Ordering};

const USED_PER_KEPT: u64 = 2048;
/// Least limit of kept pages. A trim leaves half, enough for a zspage of four pages.
const KEPT_MIN: u64 = 8;
const KEPT_MAX: u64 = 64;
const TRIM_PAGES_MAX: u32 = 64;
const TRIM_RUNS_MAX: usize = DISCARD_MAX;

#[derive(Debug)]
pub(crate) struct Pages {
    frames: Frames,
    page_bytes: u64,
    end: u32,
    keep: u64,
    supply: Mutex<Supply>,
    /// Stored under the lock, loaded without it.
    used: AtomicU64,
    kept: AtomicU64,
}

#[derive(Debug, Default)]
struct Supply {
    kept: Bits,
    absent: Bits,
    fresh: u32,
}

impl Supply {
    fn shorten(&mut self) {
        while self.fresh > 0 && self.absent.contains(self.fresh - 1) {
            let Some((first, _)) = self.absent.take_highest(self.fresh) else { return };
            self.fresh = first;
        }
    }
}

impl Pages {
    pub(crate) fn new(frames: Frames, page_bytes: u64, end: u32) -> Self {
        let (used, kept) = (AtomicU64::new(0), AtomicU64::new(0));
        let supply = Mutex::new(Supply::default());
        Self { frames, page_bytes, end, keep: KEPT_MIN, supply, used, kept }
    }

    pub(crate) fn keeping(self, pages: u64) -> Self {
        Self { keep: self.keep.max(pages), ..self }
    }

    #[inline]
    pub(crate) fn frames(&self) -> &Frames {
        &self.frames
    }

    #[inline]
    pub(crate) fn page_bytes(&self) -> u64 {
        self.page_bytes
    }

    #[inline]
    pub(crate) fn start_of(&self, page: u32) -> usize {
        page as usize * self.page_bytes as usize
    }

    #[inline]
    pub(crate) fn used(&self) -> u64 {
        self.used.load(Ordering::Relaxed)
    }

    #[inline]
    pub(crate) fn kept(&self) -> u64 {
        self.kept.load(Ordering::Relaxed)
    }

    #[inline]
    fn kept_bound(&self) -> u64 {
        (self.used() / USED_PER_KEPT).clamp(self.keep, self.keep.max(KEPT_MAX))
    }

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
        // Populates up to `room` following pages too. More would be trimmed once this run is freed.
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

    /// Populates `count` pages, and `ahead` more if possible. Returns `ahead` or 0.
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
                        // Some pages may be present.
                        // SAFETY: these pages are not yet in the set of used or of kept
                        // pages, so no thread uses them.
                        let _ = unsafe { self.frames.discard(first, count) };
                        return Err(NoRoom::Os(error));
                    }
                }
            }
        }
        Err(NoRoom::Limit)
    }

    pub(crate) fn free(&self, first: u32, count: u32) {
        let mut supply = lock(&self.supply);
        supply.kept.put(first, count);
        self.kept.store(supply.kept.len() as u64, Ordering::Relaxed);
        self.used.store(self.used() - u64::from(count), Ordering::Relaxed);
    }

    #[inline]
    pub(crate) fn trim(&self, account: &Account) {
        self.trim_above(account, 0);
    }

    #[inline]
    pub(crate) fn trim_above(&self, account: &Account, more: u64) {
        let bound = self.kept_bound();
        if self.kept() > bound + more {
            self.trim_to(account, bound / 2);
        }
    }

    /// Gives kept pages back until `left` remain or the kernel refuses. Returns the number given
    /// back.
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
            // SAFETY: these pages were taken out of `kept`, so no thread uses them.
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

    pub(crate) fn held_bytes(&self) -> u64 {
        let supply = lock(&self.supply);
        supply.kept.held_bytes() + supply.absent.held_bytes()
    }
}
