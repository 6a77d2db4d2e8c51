//! A few free pages in front of the positions, for blocks of one page: taking one is an exchange
//! of one word, with no lock and no tree.
//!
//! ```text
//!  63                    32 31                     0
//! +------------------------+------------------------+
//! |         chunk          |          free          |
//! |           32           |           32           |
//! +------------------------+------------------------+
//! ```
//!
//! `free` has a bit for each page of the chunk of 32 that the stock holds. These pages are taken
//! in the free trees, and tenants go on using them. The word says all that the stock is, so an
//! exchange that succeeds is right whatever happened in between. Who misses positions in the
//! trees drains the stock first, so it never makes a request fail or a run look shorter.

use crate::extent::Extent;
use crate::sync::{AtomicU64, Ordering};

const PAGES: u64 = u32::BITS as u64;

/// See the module.
#[derive(Debug)]
#[repr(C)]
pub(crate) struct Stock {
    word: AtomicU64,
    /// Pages of it that tenants had when first class took them.
    recalled: AtomicU64,
}

fn chunk_of(word: u64) -> u64 {
    word >> 32
}

fn free_of(word: u64) -> u32 {
    word as u32
}

fn word_of(chunk: u64, free: u32) -> u64 {
    chunk << 32 | u64::from(free)
}

impl Stock {
    pub(crate) fn new() -> Self {
        Self { word: AtomicU64::new(0), recalled: AtomicU64::new(0) }
    }

    /// The end of the pages that can be in stock together with `page`.
    pub(crate) fn chunk_end(page: u64) -> u64 {
        (page / PAGES + 1) * PAGES
    }

    /// The page that [`Stock::take`] would take.
    #[inline]
    pub(crate) fn next(&self) -> Option<u64> {
        let word = self.word.load(Ordering::Relaxed);
        let lowest = u64::from(free_of(word).trailing_zeros());
        (free_of(word) != 0).then(|| chunk_of(word) * PAGES + lowest)
    }

    /// Takes the lowest page.
    #[inline]
    pub(crate) fn take(&self) -> Option<u64> {
        let mut old = self.word.load(Ordering::Relaxed);
        loop {
            let free = free_of(old);
            if free == 0 {
                return None;
            }
            let new = word_of(chunk_of(old), free & (free - 1));
            match self.word.compare_exchange_weak(old, new, Ordering::Acquire, Ordering::Relaxed) {
                Ok(_) => return Some(chunk_of(old) * PAGES + u64::from(free.trailing_zeros())),
                Err(other) => old = other,
            }
        }
    }

    /// Whether [`Stock::put_back`] would take `page`.
    #[inline]
    pub(crate) fn is_of_chunk(&self, page: u64) -> bool {
        let word = self.word.load(Ordering::Relaxed);
        word != 0 && chunk_of(word) == page / PAGES
    }

    /// Puts a page back that lies in the stock's chunk; whether it does.
    #[inline]
    pub(crate) fn put_back(&self, page: u64) -> bool {
        let (chunk, bit) = (page / PAGES, 1 << (page % PAGES));
        let mut old = self.word.load(Ordering::Relaxed);
        loop {
            if old == 0 || chunk_of(old) != chunk {
                return false;
            }
            let new = word_of(chunk, free_of(old) | bit);
            match self.word.compare_exchange_weak(old, new, Ordering::Release, Ordering::Relaxed) {
                Ok(_) => return true,
                Err(other) => old = other,
            }
        }
    }

    /// Stocks `pages` of one chunk, if the stock is empty; whether it was.
    pub(crate) fn fill(&self, pages: Extent) -> bool {
        let old = self.word.load(Ordering::Relaxed);
        if free_of(old) != 0 {
            return false;
        }
        let bits = u32::MAX >> (PAGES - pages.len());
        let new = word_of(pages.start() / PAGES, bits << (pages.start() % PAGES));
        self.word.compare_exchange(old, new, Ordering::AcqRel, Ordering::Relaxed).is_ok()
    }

    /// Empties the stock, and stocks nothing of this chunk from now on; its pages.
    pub(crate) fn drain(&self) -> impl Iterator<Item = Extent> {
        let old = self.word.swap(0, Ordering::AcqRel);
        let mut free = free_of(old);
        std::iter::from_fn(move || {
            let start = free.trailing_zeros();
            let len = free.checked_shr(start)?.trailing_ones();
            let run = u32::MAX.checked_shl(start + len).unwrap_or(0);
            free &= run;
            Extent::new(chunk_of(old) * PAGES + u64::from(start), u64::from(len))
        })
    }

    /// Counts a page that was taken.
    #[inline]
    pub(crate) fn count_recalled(&self, live: bool) {
        if live {
            self.recalled.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Pages of it that tenants had when first class took them, ever.
    pub(crate) fn recalled(&self) -> u64 {
        self.recalled.load(Ordering::Relaxed)
    }

    /// Whether it holds nothing.
    #[inline]
    pub(crate) fn is_empty(&self) -> bool {
        free_of(self.word.load(Ordering::Relaxed)) == 0
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    fn extent(start: u64, len: u64) -> Extent {
        Extent::new(start, len).unwrap()
    }

    #[test]
    fn lowest_first_and_back_into_the_same_chunk_only() {
        let stock = Stock::new();
        assert_eq!((stock.take(), stock.put_back(65)), (None, false));
        assert!(stock.fill(extent(66, 30)) && !stock.fill(extent(0, 1)));
        assert_eq!((stock.take(), stock.take()), (Some(66), Some(67)));
        assert!(stock.put_back(66) && !stock.put_back(63) && !stock.put_back(96));
        assert_eq!(stock.take(), Some(66));
        (68..96).for_each(|page| assert_eq!(stock.take(), Some(page)));
        assert!(stock.take().is_none() && stock.put_back(95));
        assert_eq!(stock.take(), Some(95));
    }

    #[test]
    fn draining_gives_every_page_once_as_runs() {
        for bits in [0, 1, u32::MAX, 1 << 31, 0x8000_0001, 0xf0f0_0ff0, 0x5555_5555] {
            let stock =
                Stock { word: AtomicU64::new(word_of(3, bits)), recalled: AtomicU64::new(0) };
            let mut pages: Vec<_> =
                (0..32).filter(|n| bits >> n & 1 == 1).map(|n| 96 + n).collect();
            let runs: Vec<_> = stock.drain().collect();
            assert!(runs.windows(2).all(|two| two[0].end() < two[1].start()), "{runs:?}");
            let drained = runs.iter().flat_map(|run| run.start()..run.end());
            pages.sort_unstable();
            assert!(drained.eq(pages) && stock.is_empty());
        }
    }

    #[test]
    fn a_whole_chunk_fits() {
        let stock = Stock::new();
        assert_eq!((Stock::chunk_end(64), Stock::chunk_end(95)), (96, 96));
        assert!(stock.fill(extent(64, 32)));
        assert_eq!(stock.drain().collect::<Vec<_>>(), [extent(64, 32)]);
    }
}
