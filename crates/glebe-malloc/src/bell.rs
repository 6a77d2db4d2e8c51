//! [`Bell`] lets mimalloc's hooks wake or request the keeper (the thread that marks free memory).
//!
//! ```text
//! mode   bit 0  FREES: frees wake the keeper            bit 2  PRESSED: memory is short
//!        bit 1  GROWTH: new memory wakes the keeper     bit 3  THREAD: a keeper runs
//! ```
//! The keeper stores the mode, then adds zero to the counters and reads the counters. A hook adds
//! to a counter, then reads the mode. If the hook's addition is the later one, the hook sees the
//! stored mode; else the keeper sees the hook's change. So the keeper never sleeps through a
//! change. No lock. Cost for a hook: some loads. Amounts are in slices.

use std::time::Duration;

use crate::pages::counters::{Counted, Counters};
use crate::pages::SLICE;
use crate::sync::{wait, wake_all, AtomicU64, FutexWord, Ordering};

#[cfg(loom)]
mod models;

const FREES: u32 = 1;
const GROWTH: u32 = 1 << 1;
const PRESSED: u32 = 1 << 2;
const THREAD: u32 = 1 << 3;

/// Smallest heap with a keeper, in slices.
const HELD_MIN: u64 = (32 << 20) / SLICE as u64;
/// New free slices that wake the keeper.
const FREE_MIN: u64 = (1 << 20) / SLICE as u64;
/// Slices of new memory that wake the keeper.
const GROWTH_STEP: u64 = (4 << 20) / SLICE as u64;

#[derive(Debug)]
pub(crate) struct Bell {
    mode: FutexWord,
    /// Unmarked free slices at which a free wakes the keeper.
    free_at: AtomicU64,
    /// Value of the counter `cold` at which growth wakes the keeper or asks for one.
    grown_at: AtomicU64,
}

impl Bell {
    #[cfg(not(loom))]
    pub(crate) const fn new() -> Self {
        let (free_at, grown_at) = (AtomicU64::new(FREE_MIN), AtomicU64::new(0));
        Self { mode: FutexWord::new(0), free_at, grown_at }
    }

    pub(crate) fn allow(&self) {
        self.mode.store(FREES, Ordering::Release);
    }

    /// Returns true if a free must call [`Bell::freed`] and [`Bell::is_pressed`].
    #[inline]
    pub(crate) fn is_called(&self, is_whole: bool) -> bool {
        let mode = self.mode.load(Ordering::Relaxed);
        mode & FREES != 0 || is_whole && mode & PRESSED != 0
    }

    pub(crate) fn is_pressed(&self) -> bool {
        self.mode.load(Ordering::Relaxed) & PRESSED != 0
    }

    /// If `free_at` slices are free, wakes the keeper thread, or returns true if no keeper runs and
    /// the heap is large enough for one.
    pub(crate) fn freed(&self, counters: &Counters) -> bool {
        let mode = self.mode.load(Ordering::Relaxed);
        if mode & FREES == 0 {
            return false;
        }
        let counted = counters.get();
        if counted.hot() < self.free_at.load(Ordering::Relaxed) {
            return false;
        }
        if mode & THREAD != 0 {
            self.wake();
        }
        mode & THREAD == 0 && self.would_pay(&counted)
    }

    /// Wakes the keeper thread after enough growth, if slices are free or `is_asked`. Returns true
    /// if no keeper runs and the heap is large enough for one.
    pub(crate) fn grown(&self, counters: &Counters, is_asked: bool) -> bool {
        let mode = self.mode.load(Ordering::Relaxed);
        if mode & (FREES | GROWTH) == 0 {
            return false;
        }
        let counted = counters.get();
        if mode & THREAD == 0 {
            return self.would_pay(&counted);
        }
        let is_due = counted.cold >= self.grown_at.load(Ordering::Relaxed);
        if is_due && (is_asked || counted.hot() + counted.volatile() > 0) {
            self.wake();
        }
        false
    }

    fn would_pay(&self, counted: &Counted) -> bool {
        counted.held() >= HELD_MIN && counted.cold >= self.grown_at.load(Ordering::Relaxed)
    }

    fn wake(&self) {
        let was = self.mode.fetch_and(!(FREES | GROWTH), Ordering::AcqRel);
        if was & (FREES | GROWTH) != 0 {
            wake_all(&self.mode);
        }
    }

    /// Forgets the parent's keeper in a forked child, so that a new one may start.
    pub(crate) fn is_gone(&self) {
        if self.mode.load(Ordering::Relaxed) != 0 {
            self.free_at.store(FREE_MIN, Ordering::Relaxed);
            self.grown_at.store(0, Ordering::Relaxed);
            self.mode.store(FREES, Ordering::Release);
        }
    }

    pub(crate) fn claim(&self) -> bool {
        let (ok, failed) = (Ordering::AcqRel, Ordering::Relaxed);
        self.mode.compare_exchange(FREES, THREAD, ok, failed).is_ok()
    }

    /// Withdraws a claim, because no thread could be started. The next claim waits until the heap
    /// has grown by `HELD_MIN`.
    pub(crate) fn has_failed(&self, counters: &Counters) {
        self.grown_at.store(counters.get().cold + HELD_MIN, Ordering::Relaxed);
        self.mode.store(FREES, Ordering::Release);
    }

    pub(crate) fn has_thread(&self) -> bool {
        self.mode.load(Ordering::Relaxed) & THREAD != 0
    }

    pub(crate) fn has_grown(&self, counters: &Counters) -> bool {
        counters.get().cold >= self.grown_at.load(Ordering::Relaxed)
    }

    pub(crate) fn look_done(&self, counters: &Counters) {
        self.grown_at.store(counters.get().cold + GROWTH_STEP, Ordering::Relaxed);
    }

    /// Sets whether frees give whole units back at once.
    pub(crate) fn press(&self, is_pressed: bool) {
        if is_pressed {
            self.mode.fetch_or(PRESSED, Ordering::AcqRel);
        } else {
            self.mode.fetch_and(!PRESSED, Ordering::AcqRel);
        }
    }

    /// Sleeps at most `rest`. Wakes early on growth or, if `hears_frees`, when `hot + FREE_MIN`
    /// slices are free.
    pub(crate) fn sleep(
        &self,
        counters: &Counters,
        hot: u64,
        rest: Option<Duration>,
        hears_frees: bool,
        is_pressed: bool,
    ) {
        let frees = if hears_frees { FREES } else { 0 };
        let mode = THREAD | GROWTH | frees | if is_pressed { PRESSED } else { 0 };
        self.free_at.store(hot + FREE_MIN, Ordering::Relaxed);
        self.mode.store(mode, Ordering::Release);
        let counted = counters.settle();
        let is_told = hears_frees && counted.hot() >= hot + FREE_MIN
            || counted.cold >= self.grown_at.load(Ordering::Relaxed);
        if !is_told {
            wait(&self.mode, mode, rest);
        }
        self.mode.fetch_and(!(FREES | GROWTH), Ordering::AcqRel);
    }
}
