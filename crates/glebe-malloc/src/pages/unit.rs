//! [`Unit`] summarizes 32 slices (of 64 KiB) for the keeper, the thread that marks free slices.
//!
//! ```text
//! word   frees so far, 24 bits, wrapping | slices in use, 8 bits
//! ```
//!
//! A thread that frees slices changes the word last, so a reader of the word sees these slices
//! free. Cost: an addition per change.

use crate::sync::{AtomicU32, Ordering};

/// A summary of a unit's slices.
#[cfg_attr(loom, allow(dead_code))] // The models use only the word.
#[derive(Debug)]
pub struct Unit {
    word: AtomicU32,
    /// Number of frees when the keeper last found every free slice old enough to mark. Only the
    /// keeper uses `seen`.
    pub(super) seen: AtomicU32,
    /// A bit per slice: marked, and not dropped since. Only the thread that holds the
    /// [right](super::right) to claim slices changes `listed`.
    pub(super) listed: AtomicU32,
    /// 1 after advice for base pages.
    base: AtomicU32,
}

impl Default for Unit {
    fn default() -> Self {
        let [word, seen, listed, base] = [(); 4].map(|()| AtomicU32::new(0));
        Self { word, seen, listed, base }
    }
}

impl Unit {
    const FREE: u32 = 1 << 8;

    /// Returns true if no slice was in use before.
    #[inline]
    pub(super) fn take(&self, slices: u8) -> bool {
        self.word.fetch_add(slices.into(), Ordering::Relaxed) % Self::FREE == 0
    }

    #[cfg(not(loom))]
    pub(super) fn has_base_pages(&self) -> bool {
        self.base.load(Ordering::Relaxed) != 0
    }

    #[cfg(not(loom))]
    pub(super) fn set_base_pages(&self, has: bool) {
        self.base.store(has.into(), Ordering::Relaxed);
    }

    /// Returns true if no slice is in use any more.
    #[inline]
    pub(super) fn free(&self, slices: u8) -> bool {
        let was = self.word.fetch_add(Self::FREE - u32::from(slices), Ordering::Release);
        was % Self::FREE == u32::from(slices)
    }

    /// Returns the number of slices in use, and the number of frees so far.
    pub(super) fn get(&self) -> (u32, u32) {
        let word = self.word.load(Ordering::Acquire);
        (word % Self::FREE, word / Self::FREE)
    }
}
