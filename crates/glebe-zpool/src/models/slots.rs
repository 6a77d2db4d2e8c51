//! [`Frames`] gives loom models slots of two words in place of bytes. Accesses are relaxed, like
//! plain copies.
//!
//! # Safety
//! The functions do nothing unsafe.
#![allow(unsafe_code)]

use glebe_os::error::OsError;
use glebe_os::internal::sync::{MappedWord, Ordering};

const WORD: usize = size_of::<u64>();
const SLOT: usize = 256;
const SLOT_WORDS: usize = 2;

pub(crate) const DISCARD_MAX: usize = 2;

#[derive(Debug)]
pub(crate) struct Frames(Box<[MappedWord]>);

impl Frames {
    pub(crate) fn new(slots: usize) -> Self {
        Self((0..slots * SLOT_WORDS).map(|_| MappedWord::new(0)).collect())
    }

    pub(crate) fn words(&self, start: usize) -> &[MappedWord] {
        assert_eq!(start % SLOT, 0);
        &self.0[start / SLOT * SLOT_WORDS..][..SLOT_WORDS]
    }

    pub(crate) unsafe fn write(&self, start: usize, bytes: &[u8]) {
        for (word, bytes) in self.words(start).iter().zip(bytes.chunks_exact(WORD)) {
            let value = u64::from_ne_bytes(bytes.try_into().expect("a word"));
            word.store(value, Ordering::Relaxed);
        }
    }

    pub(crate) unsafe fn copy(&self, from: usize, to: usize, _len: usize) {
        for (from, to) in self.words(from).iter().zip(self.words(to)) {
            to.store(from.load(Ordering::Relaxed), Ordering::Relaxed);
        }
    }

    pub(crate) unsafe fn bytes(&self, _start: usize, _len: usize) -> &[u8] {
        unreachable!("models read words")
    }

    #[allow(clippy::unnecessary_wraps)]
    pub(crate) fn populate(&self, _first: u32, _pages: u32) -> Result<(), OsError> {
        Ok(())
    }

    pub(crate) unsafe fn discard(&self, _first: u32, _pages: u32) -> Result<(), OsError> {
        Ok(())
    }

    pub(crate) unsafe fn discard_all(&self, runs: &[(u32, u32)]) -> usize {
        runs.len()
    }
}
