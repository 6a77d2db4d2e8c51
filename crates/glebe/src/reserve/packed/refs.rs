//! [`Refs`] records the lent pages to which each *sealed* zspage was copied.
//!
//! ```text
//! word 0   the number of the seal; 0: not sealed
//! word 1.. one a page:  63      48 47         32 31                 0
//!                      +----------+-------------+--------------------+
//!                      |  lent 1  | generation  |        page        |
//!                      +----------+-------------+--------------------+
//! ```
//!
//! [`Refs::set`] writes word 0 last, after [`Refs::prepare`] populated the words. The end of the
//! zspage clears word 0 first. Until then, a word changes only when its page moves. No lock.

use crate::reserve::words::PageUse;
use glebe_os::error::OsError;
use glebe_os::internal::sync::{AtomicU64, Ordering};
use glebe_os::internal::words::Words;
use glebe_os::units::PageSize;

pub(in crate::reserve) const PAGES_MAX: usize = 16;
const STRIDE: usize = 1 + PAGES_MAX;
const LENT: u64 = 1 << 48;
const GENERATION_AT: u32 = 32;

#[derive(Debug)]
pub(super) struct Refs {
    words: Words,
    page: PageSize,
    present: Box<[AtomicU64]>,
}

fn word_of(at: PageUse) -> u64 {
    LENT | u64::from(at.generation) << GENERATION_AT | at.page as u64
}

fn use_of(word: u64) -> Option<PageUse> {
    let at = PageUse { page: word as u32 as usize, generation: (word >> GENERATION_AT) as u16 };
    (word & LENT != 0).then_some(at)
}

impl Refs {
    pub(super) fn new(most: usize, page: PageSize) -> Result<Self, OsError> {
        let words = Words::new(most * STRIDE)?;
        let pages = (words.len() * size_of::<u64>()).div_ceil(page.bytes().as_usize());
        let present = (0..pages.div_ceil(u64::BITS as usize)).map(|_| AtomicU64::new(0)).collect();
        Ok(Self { words, page, present })
    }

    pub(super) fn prepare(&self, zspage: u32) -> Result<(), OsError> {
        let page_words = self.page.bytes().as_usize() / size_of::<u64>();
        let first = zspage as usize * STRIDE;
        for page in first / page_words..=(first + STRIDE - 1) / page_words {
            let (word, bit) = (&self.present[page / 64], 1 << (page % 64));
            if word.load(Ordering::Relaxed) & bit == 0 {
                self.words.populate(page, self.page.bytes())?;
                word.fetch_or(bit, Ordering::Relaxed);
            }
        }
        Ok(())
    }

    pub(super) fn set(&self, zspage: u32, seal: u64, uses: &[PageUse]) {
        let first = zspage as usize * STRIDE;
        for nth in 0..PAGES_MAX {
            let word = uses.get(nth).map_or(0, |at| word_of(*at));
            self.words[first + 1 + nth].store(word, Ordering::Relaxed);
        }
        self.words[first].store(seal, Ordering::Release);
    }

    pub(super) fn take(&self, zspage: u32) -> impl Iterator<Item = PageUse> + '_ {
        let first = zspage as usize * STRIDE;
        self.words[first].store(0, Ordering::Release);
        let words = &self.words[first + 1..first + STRIDE];
        words.iter().filter_map(|word| use_of(word.swap(0, Ordering::AcqRel)))
    }

    #[inline]
    pub(super) fn seal(&self, zspage: u32) -> u64 {
        self.words[zspage as usize * STRIDE].load(Ordering::Acquire)
    }

    #[inline]
    pub(super) fn at(&self, zspage: u32, nth: usize) -> Option<PageUse> {
        use_of(self.words[zspage as usize * STRIDE + 1 + nth].load(Ordering::Acquire))
    }

    pub(super) fn exchange(&self, zspage: u32, nth: usize, from: PageUse, to: PageUse) -> bool {
        let word = &self.words[zspage as usize * STRIDE + 1 + nth];
        let (from, to) = (word_of(from), word_of(to));
        word.compare_exchange(from, to, Ordering::AcqRel, Ordering::Relaxed).is_ok()
    }

    pub(super) fn held_bytes(&self) -> u64 {
        let present = self.present.iter().map(|word| word.load(Ordering::Relaxed).count_ones());
        let pages: u64 = present.map(u64::from).sum();
        pages * self.page.bytes().get() + size_of_val(&*self.present) as u64
    }
}
