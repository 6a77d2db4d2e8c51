//! [`Entries`] has the entries of an area's pages, by offset.
//!
//! A *chunk* holds the entries of 128 adjacent pages, from its first store until the area is
//! invalidated. Cost: 32 bytes per page of a chunk, 24 per chunk. Lock: one per shard of chunks.

use std::mem::{replace, take};

use crate::swap::copies::Copy;
use crate::zpool::Handle;
use glebe_os::internal::sync::{lock, Mutex, MutexGuard};

const CHUNK: u64 = 128;
/// Limits the locks, to keep empty areas small.
const SHARDS_MAX: usize = 1 << 12;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Entry {
    pub(super) generation: u32,
    pub(super) copy: Copy,
    /// A second copy, in the swap cache, only if `copy` is in the file.
    pub(super) kept: Option<Handle>,
}

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
    pub(super) fn is_same(&self, other: &Self) -> bool {
        (self.generation, self.copy) == (other.generation, other.copy)
    }
}

type Shard = Vec<Vec<Raw>>;

#[derive(Debug)]
pub(super) struct Entries {
    shards: Box<[Mutex<Shard>]>,
    chunks: usize,
}

impl Entries {
    pub(super) fn new(pages: u64) -> Self {
        let chunks = pages.div_ceil(CHUNK) as usize;
        let shards = (0..chunks.min(SHARDS_MAX)).map(|_| Mutex::new(Shard::new())).collect();
        Self { shards, chunks }
    }

    fn shard_of(&self, nth: usize) -> (MutexGuard<'_, Shard>, usize) {
        let shards = self.shards.len();
        (lock(&self.shards[nth % shards]), nth / shards)
    }

    fn with<R>(&self, offset: u64, work: impl FnOnce(&mut Raw) -> R) -> Option<R> {
        let (mut shard, at) = self.shard_of((offset / CHUNK) as usize);
        shard.get_mut(at)?.get_mut((offset % CHUNK) as usize).map(work)
    }

    pub(super) fn get(&self, offset: u64) -> Option<Entry> {
        self.with(offset, |raw| raw.entry())?
    }

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

    pub(super) fn take(&self, offset: u64) -> Option<Entry> {
        self.with(offset, take)?.entry()
    }

    /// Returns the replaced entry.
    pub(super) fn set_if(&self, offset: u64, was: &Entry, entry: Option<Entry>) -> Option<Entry> {
        self.with(offset, |raw| {
            let now = raw.entry().filter(|now| now.is_same(was))?;
            *raw = Raw::of(entry);
            Some(now)
        })?
    }

    pub(super) fn chunks(&self) -> usize {
        self.chunks
    }

    fn listed(nth: usize, raws: &[Raw]) -> Vec<(u64, Entry)> {
        let offsets = nth as u64 * CHUNK..;
        offsets.zip(raws).filter_map(|(offset, raw)| Some((offset, raw.entry()?))).collect()
    }

    pub(super) fn chunk(&self, nth: usize) -> Vec<(u64, Entry)> {
        let (shard, at) = self.shard_of(nth);
        shard.get(at).map_or(Vec::new(), |chunk| Self::listed(nth, chunk))
    }

    pub(super) fn take_chunk(&self, nth: usize) -> Vec<(u64, Entry)> {
        let (mut shard, at) = self.shard_of(nth);
        let chunk = shard.get_mut(at).map(take).unwrap_or_default();
        Self::listed(nth, &chunk)
    }
}
