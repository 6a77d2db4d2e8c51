//! [`Entries`]: what an area knows of each page, by its offset.
//!
//! A *chunk* is the entries of 128 pages side by side; its memory comes with its first page and
//! goes when the area is invalidated. An entry is copied out and in under its chunk's lock, and
//! nothing else is done there. Cost: 32 bytes a page of a chunk, and 32 bytes a chunk. Lock: one a
//! chunk, for a copy of one entry, or of all of them.

use std::mem::{replace, take};

use crate::swap::copies::Copy;
use crate::sync::{lock, Mutex, MutexGuard};
use crate::zpool::Handle;

/// Entries of a chunk.
const CHUNK: u64 = 128;

/// A page that is stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Entry {
    /// Which store of the area it came by.
    pub(super) generation: u32,
    /// The page.
    pub(super) copy: Copy,
    /// A second copy, of what the file has.
    pub(super) kept: Option<Handle>,
}

/// An entry as it is kept.
#[derive(Clone, Copy, Debug, Default)]
struct Raw {
    copy: [u64; 2],
    kept: u64,
    generation: u32,
    is_there: bool,
}

const _: () = assert!(size_of::<Raw>() == 32);

impl Raw {
    fn of(entry: Option<Entry>) -> Self {
        let Some(Entry { generation, copy, kept }) = entry else { return Self::default() };
        let (copy, kept) = (copy.to_raw(), kept.map_or(0, Handle::to_raw));
        Self { copy, kept, generation, is_there: true }
    }

    fn entry(self) -> Option<Entry> {
        let (copy, kept) = (Copy::from_raw(self.copy), Handle::from_raw(self.kept));
        self.is_there.then_some(Entry { generation: self.generation, copy, kept })
    }
}

impl Entry {
    /// Whether it is of the same store, and its page where it was.
    pub(super) fn is_same(&self, other: &Self) -> bool {
        (self.generation, self.copy) == (other.generation, other.copy)
    }
}

/// See the module.
#[derive(Debug)]
pub(super) struct Entries(Box<[Mutex<Vec<Raw>>]>);

impl Entries {
    /// Room for so many pages.
    pub(super) fn new(pages: u64) -> Self {
        Self((0..pages.div_ceil(CHUNK)).map(|_| Mutex::new(Vec::new())).collect())
    }

    fn chunk_of(&self, offset: u64) -> MutexGuard<'_, Vec<Raw>> {
        lock(&self.0[(offset / CHUNK) as usize])
    }

    /// The entry of an offset, which the caller has checked, as in what follows.
    pub(super) fn get(&self, offset: u64) -> Option<Entry> {
        self.chunk_of(offset).get((offset % CHUNK) as usize)?.entry()
    }

    /// Sets an entry; what it was.
    pub(super) fn set(&self, offset: u64, entry: Entry) -> Option<Entry> {
        let mut chunk = self.chunk_of(offset);
        if chunk.is_empty() {
            *chunk = vec![Raw::default(); CHUNK as usize];
        }
        replace(&mut chunk[(offset % CHUNK) as usize], Raw::of(Some(entry))).entry()
    }

    /// Ends an entry; what it was.
    pub(super) fn take(&self, offset: u64) -> Option<Entry> {
        take(self.chunk_of(offset).get_mut((offset % CHUNK) as usize)?).entry()
    }

    /// Sets an entry if it [is the same](Entry::is_same) as `was`; what it was then.
    pub(super) fn set_if(&self, offset: u64, was: &Entry, entry: Option<Entry>) -> Option<Entry> {
        let mut chunk = self.chunk_of(offset);
        let raw = chunk.get_mut((offset % CHUNK) as usize)?;
        let now = raw.entry().filter(|now| now.is_same(was))?;
        *raw = Raw::of(entry);
        Some(now)
    }

    /// How many chunks there are.
    pub(super) fn chunks(&self) -> usize {
        self.0.len()
    }

    fn listed(nth: usize, raws: &[Raw]) -> Vec<(u64, Entry)> {
        let offsets = nth as u64 * CHUNK..;
        offsets.zip(raws).filter_map(|(offset, raw)| Some((offset, raw.entry()?))).collect()
    }

    /// The pages of a chunk, with their offsets.
    pub(super) fn chunk(&self, nth: usize) -> Vec<(u64, Entry)> {
        Self::listed(nth, &lock(&self.0[nth]))
    }

    /// As [`Entries::chunk`], and then there are none.
    pub(super) fn take_chunk(&self, nth: usize) -> Vec<(u64, Entry)> {
        Self::listed(nth, &take(&mut *lock(&self.0[nth])))
    }
}
