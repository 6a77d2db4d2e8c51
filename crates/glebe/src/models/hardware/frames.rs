//! [`Frames`] has pages of two words in place of mapped memory. Accesses are relaxed, like plain
//! copies.

use glebe_os::internal::sync::{AtomicU64, Ordering};
use glebe_os::units::PageSize;

pub(crate) const WORDS: usize = 2;
const WORD_BYTES: usize = size_of::<u64>();
pub(crate) const PAGE_BYTES: usize = WORDS * WORD_BYTES;

#[derive(Debug)]
pub(crate) struct Frames {
    words: Box<[AtomicU64]>,
}

impl Frames {
    pub(crate) fn new(pages: usize) -> Self {
        Self { words: (0..pages * WORDS).map(|_| AtomicU64::new(0)).collect() }
    }

    pub(crate) fn page(&self) -> PageSize {
        PageSize::new(PAGE_BYTES as u64).expect("a power of two")
    }

    pub(crate) fn at(&self, page: usize) -> &[AtomicU64] {
        &self.words[page * WORDS..][..WORDS]
    }

    pub(crate) fn prefetch(&self, _page: usize) {}

    pub(crate) fn read(&self, page: usize, offset: usize, buf: &mut [u8]) {
        let words = &self.at(page)[offset / WORD_BYTES..];
        for (to, word) in buf.chunks_exact_mut(WORD_BYTES).zip(words) {
            to.copy_from_slice(&word.load(Ordering::Relaxed).to_ne_bytes());
        }
    }

    pub(crate) fn zero(&self, page: usize, count: usize) {
        for word in &self.words[page * WORDS..][..count * WORDS] {
            word.store(0, Ordering::Relaxed);
        }
    }
}
