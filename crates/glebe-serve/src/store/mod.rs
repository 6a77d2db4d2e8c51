//! [`Store`] keeps items by key in the part of a reserve that first class does not use.
//!
//! A key's hash selects a shard. The shard's lock is held to look up or change items, and to read
//! small items and the first page of large ones; never while another lock is taken. A reader holds
//! it while copying the rest of a large item only if writers keep replacing the item. Small items
//! are in the shard's log, large ones in pages of their own. An item is written before it is
//! published, so a reader sees all of it or nothing. An item that a recall took is a miss, and does
//! not count as evicted.
//!
//! Items, gaps between items, and the index count against the limit, in bytes. [`Store::tick`]
//! measures their sum; the store adds later changes. Shards evict in turn, each by its own CLOCK.

mod alter;
mod change;
mod clock;
mod events;
mod find;
mod item;
mod list;
mod log;
mod memory;
mod place;
mod shard;
mod upkeep;
mod watched;

use std::hash::{BuildHasher, RandomState};
use std::sync::atomic::{AtomicI64, AtomicU32, AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use glebe::contig::Node;
use glebe::units::PageSize;

pub use alter::{Changed, Count};
pub use change::{Meta, Outcome, Stored};
pub use clock::Clock;
pub use events::{ByClass, Events};
pub use find::{Found, Look};
pub use item::{Head, HEAD};
pub use list::{Classes, Place};
pub use upkeep::Held;

use log::{item_max, segment_bytes, Log};
use memory::Memory;
use shard::Shard;

use crate::watch::Watch;

/// Maximum number of shards, a power of two.
const SHARDS_MAX: u64 = 32;
/// The logs' heads, which are in ordinary memory, take at most the limit divided by this, but at
/// least one segment.
const BYTES_PER_HEAD: u64 = 64;

/// Limits of a store.
#[derive(Clone, Debug)]
pub struct Limits {
    /// Bytes of items, the index and the logs' heads.
    pub bytes: u64,
    /// Bytes of the reserve.
    pub reserve_bytes: u64,
    /// Size of the bricks that can be leased to other processes, if any.
    pub brick: Option<PageSize>,
    /// Bytes that may be added to a reserve of bricks later.
    pub more: u64,
    /// The only NUMA nodes to take memory of; any if empty.
    pub nodes: Vec<Node>,
    /// Maximum bytes of an item with key and head.
    pub item_bytes: u64,
    /// Allows eviction.
    pub evict: bool,
}

/// The reason why an item was not stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refused {
    /// The item is too long.
    TooLarge,
    /// There is no room.
    NoMemory,
}

fn count(counter: &AtomicU64) {
    counter.fetch_add(1, Ordering::Relaxed);
}

/// A thread's buffers.
#[derive(Debug, Default)]
pub struct Room {
    /// A small item, or a large one's first page.
    page: Vec<u8>,
    /// The segment being recycled, or the pages that get a new head.
    segment: Vec<u8>,
}

/// A cache of items in a reserve.
#[derive(Debug)]
pub struct Store {
    memory: Memory,
    shards: Box<[Mutex<Shard>]>,
    hasher: RandomState,
    clock: Clock,
    cas: AtomicU64,
    /// Time of the next flush; 0: never.
    flush_at: AtomicU32,
    most: AtomicU64,
    /// Limit in bytes: `most`, or less if first class leaves less.
    limit: AtomicU64,
    used: AtomicI64,
    /// Bytes outside the reserve when last measured.
    own: AtomicU64,
    large_bytes: AtomicI64,
    large_items: AtomicI64,
    hand: AtomicU64,
    item_bytes: u64,
    evict: bool,
    /// Lines for clients that watch the store.
    pub watch: Watch,
    small_max: usize,
    /// Counts of events.
    pub events: Events,
}

impl Store {
    /// Makes an empty store with a new reserve.
    ///
    /// # Errors
    /// If the reserve cannot be made.
    pub fn new(limits: Limits) -> Result<Self, Box<dyn std::error::Error + Send + Sync>> {
        let bricks = limits.brick.map(|brick| (brick, limits.more));
        let memory = Memory::new(limits.reserve_bytes, bricks, &limits.nodes)?;
        let page = memory.page();
        let shards = limits.bytes / (BYTES_PER_HEAD * segment_bytes(page) as u64);
        let shards = 1 << shards.clamp(1, SHARDS_MAX).ilog2();
        let store = Self {
            memory,
            shards: (0..shards).map(|nth| Mutex::new(Shard::new(Log::new(nth, page)))).collect(),
            hasher: RandomState::new(),
            clock: Clock::new(),
            cas: AtomicU64::new(0),
            flush_at: AtomicU32::new(0),
            most: AtomicU64::new(limits.bytes),
            limit: AtomicU64::new(limits.bytes),
            used: AtomicI64::new(0),
            own: AtomicU64::new(0),
            large_bytes: AtomicI64::new(0),
            large_items: AtomicI64::new(0),
            hand: AtomicU64::new(0),
            item_bytes: limits.item_bytes,
            evict: limits.evict,
            watch: Watch::default(),
            small_max: item_max(page),
            events: Events::default(),
        };
        store.measure();
        Ok(store)
    }

    /// Returns the clock.
    #[must_use]
    pub fn clock(&self) -> &Clock {
        &self.clock
    }

    #[inline]
    fn hash(&self, key: &[u8]) -> (usize, u64) {
        let hash = self.hasher.hash_one(key);
        (hash as usize & (self.shards.len() - 1), hash)
    }

    fn shard(&self, nth: usize) -> MutexGuard<'_, Shard> {
        self.shards[nth].lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn next_cas(&self) -> u64 {
        self.cas.fetch_add(1, Ordering::Relaxed) + 1
    }

    /// Returns true if an item of `bytes`, with key and head, has pages of its own.
    #[must_use]
    pub fn is_large(&self, bytes: usize) -> bool {
        bytes > self.small_max
    }

    /// Returns the bytes of a page.
    #[must_use]
    pub fn page(&self) -> usize {
        self.memory.page()
    }

    fn is_over(&self, head: &Head) -> bool {
        head.exptime != 0 && head.exptime <= self.clock.now()
    }
}

#[cfg(test)]
mod tests;
