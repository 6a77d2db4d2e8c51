//! [`Bell`]: what hooks and the keeper's thread tell each other.
//!
//! ```text
//! mode   bit 0  FREES: a free is told, when so much is free      bit 2  PRESSED: memory is short
//!        bit 1  GROWTH: so is new memory                         bit 3  THREAD: there is a keeper
//! ```
//! A sleeper says in the mode what it wants to be told, changes the counters by nothing, and looks
//! at them once more. A hook changes a counter and then reads the mode. Of the two changes one
//! comes first, so that one side sees the other: nobody sleeps through a change. Amounts are
//! slices. Cost for a hook: a load, where nothing is told. No lock.

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

/// A heap of so many slices has a keeper.
const HELD_MIN: u64 = (32 << 20) / SLICE as u64;
/// So many more that are free are told.
const FREE_MIN: u64 = (1 << 20) / SLICE as u64;
/// Growth is told in steps of so many slices.
const GROWTH_STEP: u64 = (4 << 20) / SLICE as u64;

/// See the module.
#[derive(Debug)]
pub(crate) struct Bell {
    mode: FutexWord,
    /// From so many free slices on a free wakes the keeper.
    free_at: AtomicU64,
    /// From so many slices on that came into use without memory, in all, growth wakes the keeper,
    /// or starts one.
    grown_at: AtomicU64,
}

impl Bell {
    /// One that nobody is told by.
    #[cfg(not(loom))]
    pub(crate) const fn new() -> Self {
        let (free_at, grown_at) = (AtomicU64::new(FREE_MIN), AtomicU64::new(0));
        Self { mode: FutexWord::new(0), free_at, grown_at }
    }

    /// Lets a keeper start when it pays.
    pub(crate) fn allow(&self) {
        self.mode.store(FREES, Ordering::Release);
    }

    /// Whether a free must ask [`Bell::freed`] and [`Bell::is_pressed`].
    #[inline]
    pub(crate) fn is_called(&self, is_whole: bool) -> bool {
        let mode = self.mode.load(Ordering::Relaxed);
        mode & FREES != 0 || is_whole && mode & PRESSED != 0
    }

    /// Whether frees give whole units back at once.
    pub(crate) fn is_pressed(&self) -> bool {
        self.mode.load(Ordering::Relaxed) & PRESSED != 0
    }

    /// After a free; whether a keeper would pay and there is none.
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

    /// After memory came into use that was not there before; as [`Bell::freed`]. Who has much frees
    /// some of it, and then may make no call for long: the keeper must be there before. It is told
    /// where something is free, or where it `is_asked` for more huge pages.
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

    /// In a forked child: there is no keeper, and one starts when it pays here.
    pub(crate) fn is_gone(&self) {
        if self.mode.load(Ordering::Relaxed) != 0 {
            self.free_at.store(FREE_MIN, Ordering::Relaxed);
            self.grown_at.store(0, Ordering::Relaxed);
            self.mode.store(FREES, Ordering::Release);
        }
    }

    /// Claims to be the thread; false if there is one, or may be none.
    pub(crate) fn claim(&self) -> bool {
        let (ok, failed) = (Ordering::AcqRel, Ordering::Relaxed);
        self.mode.compare_exchange(FREES, THREAD, ok, failed).is_ok()
    }

    /// The claim came to nothing, as a thread was not to be had: the next is made when the heap has
    /// grown by as much as has one pay.
    pub(crate) fn has_failed(&self, counters: &Counters) {
        self.grown_at.store(counters.get().cold + HELD_MIN, Ordering::Relaxed);
        self.mode.store(FREES, Ordering::Release);
    }

    pub(crate) fn has_thread(&self) -> bool {
        self.mode.load(Ordering::Relaxed) & THREAD != 0
    }

    /// Whether so much came into use since [`Bell::look_done`] that the next look is due.
    pub(crate) fn has_grown(&self, counters: &Counters) -> bool {
        counters.get().cold >= self.grown_at.load(Ordering::Relaxed)
    }

    /// A look is done: growth is told from here on.
    pub(crate) fn look_done(&self, counters: &Counters) {
        self.grown_at.store(counters.get().cold + GROWTH_STEP, Ordering::Relaxed);
    }

    /// Whether frees give whole units back at once.
    pub(crate) fn press(&self, is_pressed: bool) {
        if is_pressed {
            self.mode.fetch_or(PRESSED, Ordering::AcqRel);
        } else {
            self.mode.fetch_and(!PRESSED, Ordering::AcqRel);
        }
    }

    /// Sleeps so long, or until growth is told, or a free to one who hears them. So many slices
    /// were free when the sleeper looked last: what was freed since then is told.
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
