//! [`Stock`] has free pages for blocks of one page, taken by one exchange of a word and no lock.
//!
//! ```text
//!  63                    32 31                     0
//! +------------------------+------------------------+
//! |         chunk          |          free          |     eight of these, side by side
//! |           32           |           32           |
//! +------------------------+------------------------+
//! ```
//!
//! `free` has a bit for each stocked page of a chunk of 32. `Positions` counts a stocked page as
//! taken, but tenants use the page until a block takes it. A request that finds no place drains the
//! stock and searches again.

use glebe_os::extent::Extent;
use glebe_os::internal::sync::{AtomicU64, Ordering};

const PAGES: u64 = u32::BITS as u64;
/// One cache line; two words suffice for the model checker.
pub(crate) const WORDS: usize = if cfg!(loom) { 2 } else { 8 };

#[derive(Debug)]
#[repr(C)]
pub(crate) struct Stock {
    words: [AtomicU64; WORDS],
    at: AtomicU64,
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

fn lowest_of(word: u64) -> Option<u64> {
    let lowest = u64::from(free_of(word).trailing_zeros());
    (free_of(word) != 0).then(|| chunk_of(word) * PAGES + lowest)
}

/// Takes the lowest page. Also returns true if it was the word's last.
#[inline]
fn take_of(word: &AtomicU64) -> Option<(u64, bool)> {
    let mut old = word.load(Ordering::Relaxed);
    while let Some(page) = lowest_of(old) {
        let left = free_of(old) & (free_of(old) - 1);
        let new = word_of(chunk_of(old), left);
        match word.compare_exchange_weak(old, new, Ordering::Acquire, Ordering::Relaxed) {
            Ok(_) => return Some((page, left == 0)),
            Err(other) => old = other,
        }
    }
    None
}

#[inline]
fn put_back_to(word: &AtomicU64, page: u64) -> bool {
    let (chunk, bit) = (page / PAGES, 1 << (page % PAGES));
    let mut old = word.load(Ordering::Relaxed);
    while old != 0 && chunk_of(old) == chunk {
        let new = word_of(chunk, free_of(old) | bit);
        match word.compare_exchange_weak(old, new, Ordering::Release, Ordering::Relaxed) {
            Ok(_) => return true,
            Err(other) => old = other,
        }
    }
    false
}

fn runs_of(word: u64) -> impl Iterator<Item = Extent> {
    let mut free = free_of(word);
    std::iter::from_fn(move || {
        let start = free.trailing_zeros();
        let len = free.checked_shr(start)?.trailing_ones();
        free &= u32::MAX.checked_shl(start + len).unwrap_or(0);
        Extent::new(chunk_of(word) * PAGES + u64::from(start), u64::from(len))
    })
}

impl Stock {
    pub(crate) const CHUNK: u64 = PAGES;

    pub(crate) fn new() -> Self {
        let words = std::array::from_fn(|_| AtomicU64::new(0));
        Self { words, at: AtomicU64::new(0), recalled: AtomicU64::new(0) }
    }

    #[inline]
    fn place(&self) -> usize {
        self.at.load(Ordering::Relaxed) as usize % WORDS
    }

    #[inline]
    fn first(&self) -> &AtomicU64 {
        &self.words[self.place()]
    }

    #[inline]
    pub(crate) fn next(&self) -> Option<u64> {
        lowest_of(self.first().load(Ordering::Relaxed))
    }

    #[inline]
    pub(crate) fn take(&self) -> Option<u64> {
        let at = self.place();
        let Some((page, last)) = take_of(&self.words[at]) else { return self.take_elsewhere() };
        if last {
            self.at.store(at as u64 + 1, Ordering::Relaxed);
        }
        Some(page)
    }

    #[cold]
    fn take_elsewhere(&self) -> Option<u64> {
        self.words.iter().zip(0..).find_map(|(word, at)| {
            let (page, last) = take_of(word)?;
            self.at.store(at + u64::from(last), Ordering::Relaxed);
            Some(page)
        })
    }

    #[inline]
    pub(crate) fn put_back(&self, page: u64) -> bool {
        put_back_to(self.first(), page) || self.put_back_elsewhere(page)
    }

    #[cold]
    fn put_back_elsewhere(&self, page: u64) -> bool {
        self.words.iter().any(|word| put_back_to(word, page))
    }

    pub(crate) fn fill(&self, pages: Extent) -> bool {
        let bits = u32::MAX >> (PAGES - pages.len());
        let new = word_of(pages.start() / PAGES, bits << (pages.start() % PAGES));
        self.words.iter().any(|word| {
            let old = word.load(Ordering::Relaxed);
            free_of(old) == 0
                && word.compare_exchange(old, new, Ordering::AcqRel, Ordering::Relaxed).is_ok()
        })
    }

    /// Empties the stock. Until `fill`, `put_back` then refuses every page.
    pub(crate) fn drain(&self) -> impl Iterator<Item = Extent> + use<'_> {
        self.words.iter().flat_map(|word| runs_of(word.swap(0, Ordering::AcqRel)))
    }

    #[inline]
    pub(crate) fn count_recalled(&self, live: bool) {
        if live {
            self.recalled.fetch_add(1, Ordering::Relaxed);
        }
    }

    pub(crate) fn recalled(&self) -> u64 {
        self.recalled.load(Ordering::Relaxed)
    }

    #[inline]
    pub(crate) fn is_empty(&self) -> bool {
        self.words.iter().all(|word| free_of(word.load(Ordering::Relaxed)) == 0)
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    fn extent(start: u64, len: u64) -> Extent {
        Extent::new(start, len).unwrap()
    }

    #[test]
    fn lowest_first_and_back_into_the_same_chunks_only() {
        let stock = Stock::new();
        assert_eq!((stock.take(), stock.put_back(65)), (None, false));
        assert!(stock.fill(extent(66, 30)) && stock.fill(extent(96, 20)));
        assert_eq!((stock.next(), stock.take(), stock.take()), (Some(66), Some(66), Some(67)));
        assert!(stock.put_back(66) && !stock.put_back(63) && !stock.put_back(128));
        assert!(!stock.put_back(97 + 32) && !stock.is_empty());
        assert_eq!(stock.take(), Some(66));
        (68..116).for_each(|page| assert_eq!(stock.take(), Some(page)));
        assert!(stock.take().is_none() && stock.put_back(95));
        assert_eq!(stock.take(), Some(95));
    }

    #[test]
    fn draining_gives_every_page_once_as_runs() {
        for bits in [0, 1, u32::MAX, 1 << 31, 0x8000_0001, 0xf0f0_0ff0, 0x5555_5555] {
            let pages = (0..32).filter(|n| bits >> n & 1 == 1).map(|n| 96 + n);
            let runs: Vec<_> = runs_of(word_of(3, bits)).collect();
            assert!(runs.windows(2).all(|two| two[0].end() < two[1].start()), "{runs:?}");
            assert!(runs.iter().flat_map(|run| run.start()..run.end()).eq(pages));
        }
    }

    #[test]
    fn all_words_can_be_filled_and_are_drained() {
        let stock = Stock::new();
        let chunks = 4..4 + WORDS as u64;
        let (first, end) = (chunks.start * PAGES, chunks.end * PAGES);
        assert!(chunks.clone().all(|chunk| stock.fill(extent(chunk * PAGES, PAGES))));
        assert!(!stock.fill(extent(end, 1)));
        let drained = stock.drain().flat_map(|run| run.start()..run.end());
        assert!(drained.eq(first..end) && stock.is_empty() && !stock.put_back(first));
    }
}
