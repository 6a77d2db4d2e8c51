//! [`Slots`] has four words for each object or page.
//!
//! ```text
//! 0  the object's word: see [`word`](super::word)
//! 1  place    63 ... 24 first page | 23 .. 0 length in bytes; of a hole: the next hole's index + 1
//!             of a region's page: 1 if the program has locked or protected it
//! 2  copy     a handle of the pool, a unit of the file, or the word that fills the object
//! 3           63 .. 62 filled, plain or coded | 61 in the file
//!             55 .. 32 length in bytes | 31 .. 0 checksum
//! ```
//!
//! An unused slot reads as 0, a hole of generation 0. The object's word lets one thread at a time
//! change place and copy, so their accesses are relaxed. No lock.

use super::copies::Copy;
use glebe_os::error::OsError;
use glebe_os::internal::sync::{MappedWord, Ordering};
use glebe_os::internal::sys::page_size;
use glebe_os::internal::words::Words;
use glebe_os::units::Bytes;

const WORDS: usize = 4;
const LEN_BITS: u32 = 24;
const LEN: u64 = (1 << LEN_BITS) - 1;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Place {
    pub(super) first: u64,
    pub(super) len: usize,
}

impl Place {
    pub(super) fn pages(self) -> u64 {
        Bytes::new(self.len as u64).pages_up(page_size()).get()
    }

    fn to_raw(self) -> u64 {
        self.first << LEN_BITS | self.len as u64
    }

    fn from_raw(raw: u64) -> Self {
        Self { first: raw >> LEN_BITS, len: (raw & LEN) as usize }
    }
}

#[derive(Debug)]
pub(super) struct Slots {
    words: Words,
    len: u32,
}

#[derive(Clone, Copy, Debug)]
pub(super) struct SwapSlot<'a>(&'a [MappedWord; WORDS]);

impl Slots {
    pub(super) fn new(len: u32) -> Result<Self, OsError> {
        Ok(Self { words: Words::new(len as usize * WORDS)?, len })
    }

    pub(super) fn len(&self) -> u32 {
        self.len
    }

    pub(super) fn bytes_of(count: u32) -> u64 {
        count as u64 * (WORDS * size_of::<MappedWord>()) as u64
    }

    pub(super) fn populate(&self, index: u32) -> Result<(), OsError> {
        let page = page_size().bytes();
        self.words.populate((Self::bytes_of(index) / page.get()) as usize, page)
    }

    /// Commits all slots.
    pub(super) fn come_as_written(&self) -> Result<(), OsError> {
        self.words.come_as_written()
    }

    #[inline]
    pub(super) fn get(&self, index: u32) -> Option<SwapSlot<'_>> {
        let start = index as usize * WORDS;
        self.words.get(start..)?.first_chunk().map(SwapSlot)
    }
}

impl<'a> SwapSlot<'a> {
    #[inline]
    pub(super) fn word(self) -> &'a MappedWord {
        &self.0[0]
    }

    #[inline]
    pub(super) fn place(self) -> Place {
        Place::from_raw(self.0[1].load(Ordering::Relaxed))
    }

    pub(super) fn set_place(self, place: Place) {
        self.0[1].store(place.to_raw(), Ordering::Relaxed);
    }

    pub(super) fn next_hole(self) -> Option<u32> {
        (self.0[1].load(Ordering::Relaxed) as u32).checked_sub(1)
    }

    pub(super) fn set_next_hole(self, next: Option<u32>) {
        self.0[1].store(next.map_or(0, |index| u64::from(index) + 1), Ordering::Relaxed);
    }

    pub(super) fn is_unmovable(self) -> bool {
        self.0[1].load(Ordering::Relaxed) != 0
    }

    pub(super) fn set_unmovable(self, is_unmovable: bool) {
        self.0[1].store(u64::from(is_unmovable), Ordering::Relaxed);
    }

    pub(super) fn copy(self) -> Copy {
        Copy::from_raw([2, 3].map(|word| self.0[word].load(Ordering::Relaxed)))
    }

    pub(super) fn set_copy(self, copy: Copy) {
        let [what, about] = copy.to_raw();
        self.0[2].store(what, Ordering::Relaxed);
        self.0[3].store(about, Ordering::Relaxed);
    }
}
