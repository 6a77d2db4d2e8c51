//! [`Unit`]: what the keeper asks of 32 slices without a look at each.
//!
//! ```text
//! word   frees so far, 24 bits, which come round | slices in use, 8 bits
//! ```
//!
//! Who frees slices changes them first and the word last, so who sees the word sees the slices as
//! they are since. Cost: one addition a change.

use crate::sync::{AtomicU32, Ordering};

/// See the module.
#[cfg_attr(loom, allow(dead_code))] // Models look at the word alone.
#[derive(Debug)]
pub struct Unit {
    word: AtomicU32,
    /// The frees at the keeper's last look at the slices; the keeper's own.
    pub(super) seen: AtomicU32,
    /// A bit a slice: it was marked, and not dropped since. Changed by the holder of the right.
    pub(super) listed: AtomicU32,
    /// 1: it was told to have base pages. Changed by the thread that begins to use it.
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

    /// Whether none was in use before.
    #[inline]
    pub(super) fn take(&self, slices: u8) -> bool {
        self.word.fetch_add(slices.into(), Ordering::Relaxed) % Self::FREE == 0
    }

    /// Whether it has base pages, and no huge page.
    #[cfg(not(loom))]
    pub(super) fn has_base_pages(&self) -> bool {
        self.base.load(Ordering::Relaxed) != 0
    }

    #[cfg(not(loom))]
    pub(super) fn set_base_pages(&self, has: bool) {
        self.base.store(has.into(), Ordering::Relaxed);
    }

    /// Whether none is in use any more.
    #[inline]
    pub(super) fn free(&self, slices: u8) -> bool {
        let was = self.word.fetch_add(Self::FREE - u32::from(slices), Ordering::Release);
        was % Self::FREE == u32::from(slices)
    }

    /// Slices in use, and frees so far: who sees the frees sees what they did to the slices.
    pub(super) fn get(&self) -> (u32, u32) {
        let word = self.word.load(Ordering::Acquire);
        (word % Self::FREE, word / Self::FREE)
    }
}
