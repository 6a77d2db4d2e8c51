//! [`Entries`]: what an area knows of each page, by its offset.
//!
//! A *chunk* is the entries of 128 pages side by side; its memory comes with its first page and
//! goes when the area is invalidated. An entry is copied out and in under its chunk's lock, and
//! nothing else is done there. Cost: 32 bytes a page of a chunk that is there, and 24 bytes a chunk
//! up to the last of its shard that ever was. Lock: one a chunk, for a copy of one entry, or of all
//! of them; of more chunks than there are shards, those of a shard have one.

use std::mem::{replace, take};

use crate::swap::copies::Copy;
use crate::sync::{lock, Mutex, MutexGuard};
use crate::zpool::Handle;

/// Entries of a chunk.
const CHUNK: u64 = 128;
/// The most locks of an area: it takes so little where nothing is stored.
const SHARDS_MAX: usize = 1 << 12;

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

/// Chunks that share a lock, each in its turn; empty where no page of one was ever stored.
type Shard = Vec<Vec<Raw>>;

/// See the module.
#[derive(Debug)]
pub(super) struct Entries {
    shards: Box<[Mutex<Shard>]>,
    chunks: usize,
}

impl Entries {
    /// Room for so many pages.
    pub(super) fn new(pages: u64) -> Self {
        let chunks = pages.div_ceil(CHUNK) as usize;
        let shards = (0..chunks.min(SHARDS_MAX)).map(|_| Mutex::new(Shard::new())).collect();
        Self { shards, chunks }
    }

    /// The shard of a chunk, and which of the shard's chunks it is.
    fn shard_of(&self, nth: usize) -> (MutexGuard<'_, Shard>, usize) {
        let shards = self.shards.len();
        (lock(&self.shards[nth % shards]), nth / shards)
    }

    /// Hands the entry of an offset to `work`, if its chunk is there.
    fn with<R>(&self, offset: u64, work: impl FnOnce(&mut Raw) -> R) -> Option<R> {
        let (mut shard, at) = self.shard_of((offset / CHUNK) as usize);
        shard.get_mut(at)?.get_mut((offset % CHUNK) as usize).map(work)
    }

    /// The entry of an offset, which the caller has checked, as in what follows.
    pub(super) fn get(&self, offset: u64) -> Option<Entry> {
        self.with(offset, |raw| raw.entry())?
    }

    /// Sets an entry; what it was.
    pub(super) fn set(&self, offset: u64, entry: Entry) -> Option<Entry> {
        let (mut shard, at) = self.shard_of((offset / CHUNK) as usize);
        if shard.len() <= at {
            shard.resize_with(at + 1, Vec::new);
        }
        let chunk = &mut shard[at];
        if chunk.is_empty() {
            *chunk = vec![Raw::default(); CHUNK as usize];
        }
        replace(&mut chunk[(offset % CHUNK) as usize], Raw::of(Some(entry))).entry()
    }

    /// Ends an entry; what it was.
    pub(super) fn take(&self, offset: u64) -> Option<Entry> {
        self.with(offset, take)?.entry()
    }

    /// Sets an entry if it [is the same](Entry::is_same) as `was`; what it was then.
    pub(super) fn set_if(&self, offset: u64, was: &Entry, entry: Option<Entry>) -> Option<Entry> {
        self.with(offset, |raw| {
            let now = raw.entry().filter(|now| now.is_same(was))?;
            *raw = Raw::of(entry);
            Some(now)
        })?
    }

    /// How many chunks there are.
    pub(super) fn chunks(&self) -> usize {
        self.chunks
    }

    fn listed(nth: usize, raws: &[Raw]) -> Vec<(u64, Entry)> {
        let offsets = nth as u64 * CHUNK..;
        offsets.zip(raws).filter_map(|(offset, raw)| Some((offset, raw.entry()?))).collect()
    }

    /// The pages of a chunk, with their offsets.
    pub(super) fn chunk(&self, nth: usize) -> Vec<(u64, Entry)> {
        let (shard, at) = self.shard_of(nth);
        shard.get(at).map_or(Vec::new(), |chunk| Self::listed(nth, chunk))
    }

    /// As [`Entries::chunk`], and then there are none.
    pub(super) fn take_chunk(&self, nth: usize) -> Vec<(u64, Entry)> {
        let (mut shard, at) = self.shard_of(nth);
        let chunk = shard.get_mut(at).map(take).unwrap_or_default();
        Self::listed(nth, &chunk)
    }
}
