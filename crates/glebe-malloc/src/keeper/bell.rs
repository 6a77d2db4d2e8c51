//! What hooks and the keeper's thread tell each other.
//!
//! ```text
//! MODE   bit 0  FREES: a free is told, when so much is free      bit 2  PRESSED: memory is short
//!        bit 1  GROWTH: so is new memory                         bit 3  THREAD: there is a keeper
//! ```
//! A sleeper says in `MODE` what it wants to be told, changes the counters by nothing, and looks at
//! them once more. A hook changes a counter and then reads `MODE`. Of the two changes one comes
//! first, so that one side sees the other: nobody sleeps through a change. Amounts are slices.
//! Cost for a hook: a load, where nothing is told. No lock.

use std::ops::Range;
use std::time::Duration;

use crate::pages::space::{Space, SLICE};
use crate::sync::{wait, wake_all, AtomicU64, FutexWord, Ordering};

const FREES: u32 = 1;
const GROWTH: u32 = 1 << 1;
const PRESSED: u32 = 1 << 2;
const THREAD: u32 = 1 << 3;

static MODE: FutexWord = FutexWord::new(0);
/// From so many free slices on a free wakes the keeper.
static FREE_AT: AtomicU64 = AtomicU64::new(FREE_MIN);
/// From so many slices on that came into use without memory, in all, growth wakes the keeper.
static GROWN_AT: AtomicU64 = AtomicU64::new(0);
/// A heap of so many slices has a keeper.
const HELD_MIN: u64 = (32 << 20) / SLICE as u64;
/// So many more that are free are told.
const FREE_MIN: u64 = (1 << 20) / SLICE as u64;
/// Growth is told in steps of so many slices.
const GROWTH_STEP: u64 = (4 << 20) / SLICE as u64;

/// Before all else here.
pub(super) fn set(wants_thread: bool) {
    MODE.store(if wants_thread { FREES } else { 0 }, Ordering::Release);
}

/// Whether to call [`freed`] after a free.
#[inline]
pub(crate) fn is_called(is_whole: bool) -> bool {
    let mode = MODE.load(Ordering::Relaxed);
    mode & FREES != 0 || is_whole && mode & PRESSED != 0
}

/// After a free; whether a keeper would pay and there is none.
pub(crate) fn freed(space: &Space, slices: &Range<usize>, is_whole: bool) -> bool {
    let mode = MODE.load(Ordering::Relaxed);
    if mode & PRESSED != 0 && is_whole {
        space.give_back_at(slices);
    }
    if mode & FREES == 0 {
        return false;
    }
    let counted = space.counters.get();
    if counted.hot() < FREE_AT.load(Ordering::Relaxed) {
        return false;
    }
    if mode & THREAD != 0 {
        wake();
    }
    mode & THREAD == 0 && counted.held() >= HELD_MIN
}

/// After memory came into use that was not there before; as [`freed`]. Who has much frees some of
/// it, and then may make no call for long: the keeper must be there before.
pub(crate) fn grown(space: &Space) -> bool {
    let mode = MODE.load(Ordering::Relaxed);
    if mode & (FREES | GROWTH) == 0 {
        return false;
    }
    let counted = space.counters.get();
    if mode & THREAD == 0 {
        return counted.held() >= HELD_MIN;
    }
    let is_due = counted.cold >= GROWN_AT.load(Ordering::Relaxed);
    if is_due && counted.hot() + counted.volatile() > 0 {
        wake();
    }
    false
}

fn wake() {
    if MODE.fetch_and(!(FREES | GROWTH), Ordering::AcqRel) & (FREES | GROWTH) != 0 {
        wake_all(&MODE);
    }
}

/// In a forked child: there is no keeper, and one starts when it pays here.
pub(crate) fn is_gone() {
    if MODE.load(Ordering::Relaxed) != 0 {
        FREE_AT.store(FREE_MIN, Ordering::Relaxed);
        MODE.store(FREES, Ordering::Release);
    }
}

/// Claims to be the thread; false if there is one.
pub(super) fn claim() -> bool {
    let mode = MODE.load(Ordering::Relaxed);
    let (ok, failed) = (Ordering::AcqRel, Ordering::Relaxed);
    let is_first = mode & THREAD == 0;
    is_first && MODE.compare_exchange(mode, mode & !FREES | THREAD, ok, failed).is_ok()
}

/// No more of it: threads are not to be had.
pub(super) fn give_up() {
    MODE.store(0, Ordering::Release);
}

pub(super) fn has_thread() -> bool {
    MODE.load(Ordering::Relaxed) & THREAD != 0
}

/// Whether so much came into use since [`look_done`] that the next look is due.
pub(super) fn has_grown(space: &Space) -> bool {
    space.counters.get().cold >= GROWN_AT.load(Ordering::Relaxed)
}

/// A look is done: growth is told from here on.
pub(super) fn look_done(space: &Space) {
    GROWN_AT.store(space.counters.get().cold + GROWTH_STEP, Ordering::Relaxed);
}

/// Whether frees give whole units back at once.
pub(super) fn press(is_pressed: bool) {
    if is_pressed {
        MODE.fetch_or(PRESSED, Ordering::AcqRel);
    } else {
        MODE.fetch_and(!PRESSED, Ordering::AcqRel);
    }
}

/// Sleeps so long, or until growth is told; without a time, until a free is told too.
pub(super) fn sleep(space: &Space, rest: Option<Duration>, is_pressed: bool) {
    let pressed = if is_pressed { PRESSED } else { 0 };
    let hot = space.counters.get().hot();
    FREE_AT.store(hot + FREE_MIN, Ordering::Relaxed);
    let mode = THREAD | GROWTH | pressed | if rest.is_none() { FREES } else { 0 };
    MODE.store(mode, Ordering::Release);
    let counted = space.counters.settle();
    let is_told = counted.hot() >= hot + FREE_MIN && rest.is_none()
        || counted.cold >= GROWN_AT.load(Ordering::Relaxed);
    if !is_told {
        wait(&MODE, mode, rest);
    }
    MODE.fetch_and(!(FREES | GROWTH), Ordering::AcqRel);
}
