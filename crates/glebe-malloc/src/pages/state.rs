//! [`State`] is a byte with a slice's state. Its methods make all changes.
//!
//! ```text
//!              take (one exchange)
//!        +-------------+--------+----------+
//!        v             |        |          |        claim and settle: by the holder of `Right`
//!      Live --free--> Hot    Volatile    Gone
//!                      |        |          |
//!                      +--claim-+----------+--> Marking --settle--> Hot, Volatile or Gone
//!
//! byte   0 Gone   1 Live   2 Marking   3 Volatile   128 + turn: Hot
//! ```
//!
//! Gone: untouched or dropped, reads as zeros. Hot: freed in that turn of the keeper thread,
//! contents kept. Volatile: the kernel may take the memory. Marking: a system call on the slice
//! runs, so a thread that wants the slice waits. Only the thread that took a live slice touches its
//! bytes, and sees what was there: `take` acquires what `free` and `settle` release. Cost: an
//! exchange or a store per change.

use super::right::Right;
use crate::sync::{AtomicU8, Ordering};

/// The state of a slice.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Slice {
    /// Without memory: reads as zeros.
    Gone,
    /// In use.
    Live,
    /// Claimed: a system call on it runs.
    Marking,
    /// Free and marked: the kernel may have taken it.
    Volatile,
    /// Free since a turn, contents kept.
    Hot(Turn),
}

/// A turn of the keeper, modulo `COUNT`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Turn(u8);

const GONE: u8 = 0;
const LIVE: u8 = 1;
const MARKING: u8 = 2;
const VOLATILE: u8 = 3;
const HOT: u8 = 128;

impl Turn {
    /// Number of turns.
    pub const COUNT: u8 = 128;

    /// Returns a number's turn.
    #[must_use]
    pub fn of(number: u8) -> Self {
        Self(number % Self::COUNT)
    }

    /// Returns the turns from `self` to `now`, below `COUNT`.
    #[must_use]
    pub fn age(self, now: Turn) -> u8 {
        now.0.wrapping_sub(self.0) % Self::COUNT
    }
}

impl Slice {
    fn from_byte(byte: u8) -> Self {
        match byte {
            GONE => Self::Gone,
            LIVE => Self::Live,
            MARKING => Self::Marking,
            VOLATILE => Self::Volatile,
            hot => Self::Hot(Turn::of(hot)),
        }
    }

    fn byte(self) -> u8 {
        match self {
            Self::Gone => GONE,
            Self::Live => LIVE,
            Self::Marking => MARKING,
            Self::Volatile => VOLATILE,
            Self::Hot(Turn(turn)) => HOT | turn,
        }
    }

    /// Returns true if the slice is free and may have memory.
    #[must_use]
    pub fn is_held(self) -> bool {
        matches!(self, Self::Hot(_) | Self::Volatile)
    }
}

/// A slice's state.
#[derive(Debug)]
pub struct State(AtomicU8);

impl Default for State {
    fn default() -> Self {
        Self(AtomicU8::new(GONE))
    }
}

impl State {
    /// Returns the state, which other threads may change unless the caller owns or claimed the
    /// slice.
    #[inline]
    pub fn get(&self) -> Slice {
        Slice::from_byte(self.0.load(Ordering::Relaxed))
    }

    /// Changes Live to Hot, by the owner. Returns false in any other state.
    #[inline]
    pub fn free(&self, turn: Turn) -> bool {
        let was_live = self.0.load(Ordering::Relaxed) == LIVE;
        if was_live {
            // Nobody else changes a live slice. The owner's writes come before the next use.
            self.0.store(HOT | turn.0, Ordering::Release);
        }
        was_live
    }

    /// Changes any state but Marking to Live, for a new owner. Returns the old state; `None` during
    /// a system call on the slice, whose end the caller must await.
    #[inline]
    pub fn take(&self) -> Option<Slice> {
        let mut seen = self.0.load(Ordering::Relaxed);
        while seen != MARKING {
            // Acquires the last call's effects.
            match self.0.compare_exchange(seen, LIVE, Ordering::Acquire, Ordering::Relaxed) {
                Ok(was) => return Some(Slice::from_byte(was)),
                Err(now) => seen = now,
            }
        }
        None
    }

    /// Takes the slice once no system call on it runs. In a child of clone(2), `repair` ends the
    /// claims of a thread that only the parent has.
    #[cold]
    pub fn take_after_call(&self, right: &Right, repair: impl Fn()) -> Slice {
        loop {
            right.wait_until(|| self.get() != Slice::Marking || right.is_orphaned());
            if right.is_orphaned() {
                repair();
            }
            if let Some(was) = self.take() {
                return was;
            }
        }
    }

    /// Changes Hot, Volatile or Gone to Marking, if the state `fits`. Returns the old state.
    #[inline]
    pub fn claim(&self, fits: impl Fn(Slice) -> bool) -> Option<Slice> {
        let seen = self.0.load(Ordering::Relaxed);
        let was = Slice::from_byte(seen);
        if matches!(was, Slice::Live | Slice::Marking) || !fits(was) {
            return None;
        }
        // Acquires the last owner's writes: the call comes after them.
        let claimed = self.0.compare_exchange(seen, MARKING, Ordering::Acquire, Ordering::Relaxed);
        claimed.ok().map(|_| was)
    }

    /// Changes Marking to Hot, Volatile or Gone, by the thread that claimed the slice. The caller
    /// then wakes waiters by [`Right::ring`].
    #[inline]
    pub fn settle(&self, now: Slice) {
        debug_assert!(!matches!(now, Slice::Live | Slice::Marking));
        // Releases the call's effects.
        self.0.store(now.byte(), Ordering::Release);
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn a_byte_is_what_it_was_made_of_and_ages_come_round() {
        let turns = (0..Turn::COUNT).map(|turn| Slice::Hot(Turn::of(turn)));
        let others = [Slice::Gone, Slice::Live, Slice::Marking, Slice::Volatile];
        for slice in turns.chain(others) {
            assert_eq!(Slice::from_byte(slice.byte()), slice);
        }
        assert_eq!(Turn::of(3).age(Turn::of(5)), 2);
        assert_eq!(Turn::of(127).age(Turn::of(128 + 1)), 2);
    }

    #[test]
    fn only_free_slices_are_claimed_and_only_live_ones_freed() {
        let state = State::default();
        assert_eq!(state.take(), Some(Slice::Gone));
        assert_eq!(state.claim(|_| true), None);
        assert!(state.free(Turn::of(7)));
        assert!(!state.free(Turn::of(8)));
        assert_eq!(state.claim(|slice| slice == Slice::Volatile), None);
        assert_eq!(state.claim(Slice::is_held), Some(Slice::Hot(Turn::of(7))));
        assert_eq!((state.claim(|_| true), state.take()), (None, None));
        state.settle(Slice::Volatile);
        assert_eq!((state.take(), state.take()), (Some(Slice::Volatile), Some(Slice::Live)));
    }
}
