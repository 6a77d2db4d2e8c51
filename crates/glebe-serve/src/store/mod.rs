//! [`Store`]: items by key, in what a reserve's first class does not use.
//!
//! A key's hash chooses a shard, whose lock is held while an item is found, read if it is small, or
//! changed; never while a large value is copied or another lock is taken. Small items are in the
//! log of their shard, large ones in pages of their own. What is stored is written first and
//! published then, so a reader sees an item whole or not at all. An item that a recall took is a
//! miss, and counted apart from those that went for others.
//!
//! Bytes: items with what they waste and the index count against the limit, as of the last tick;
//! between ticks changes are added up. Room is made by the shards in turn, each by its own clock.

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

use std::hash::{BuildHasher, RandomState};
use std::sync::atomic::{AtomicI64, AtomicU32, AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

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

/// Shards at most, a power of two.
const SHARDS_MAX: u64 = 32;
/// Of so many bytes one is in the head of a log, in ordinary memory.
const BYTES_PER_HEAD: u64 = 64;

/// What a store is made with.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// Bytes of items, their tables and the index.
    pub bytes: u64,
    /// The reserve's part of these bytes.
    pub reserve_bytes: u64,
    /// Bytes of one item, its key and head with it.
    pub item_bytes: u64,
    /// Whether items go for others.
    pub evict: bool,
}

/// Why an item was not stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refused {
    /// Longer than an item may be.
    TooLarge,
    /// Nothing could go for it.
    NoMemory,
}

fn count(counter: &AtomicU64) {
    counter.fetch_add(1, Ordering::Relaxed);
}

/// Buffers of a thread that uses a store.
#[derive(Debug, Default)]
pub struct Room {
    /// A small item, or the first page of a large one.
    page: Vec<u8>,
    /// A segment that is recycled.
    segment: Vec<u8>,
}

/// See the module.
#[derive(Debug)]
pub struct Store {
    memory: Memory,
    shards: Box<[Mutex<Shard>]>,
    hasher: RandomState,
    clock: Clock,
    cas: AtomicU64,
    /// When all items are to be dropped, by the clock; 0: never.
    flush_at: AtomicU32,
    most: AtomicU64,
    /// The least of that and what first class leaves.
    limit: AtomicU64,
    used: AtomicI64,
    /// Bytes beside the reserve.
    own: AtomicU64,
    large_bytes: AtomicI64,
    large_items: AtomicI64,
    hand: AtomicU64,
    item_bytes: u64,
    evict: bool,
    small_max: usize,
    /// What has happened.
    pub events: Events,
}

impl Store {
    /// An empty store over a reserve of its own.
    ///
    /// # Errors
    /// What the reserve could not have.
    pub fn new(limits: Limits) -> Result<Self, Box<dyn std::error::Error + Send + Sync>> {
        let memory = Memory::new(limits.reserve_bytes)?;
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
            small_max: item_max(page),
            events: Events::default(),
        };
        store.measure();
        Ok(store)
    }

    /// The clock that items end by.
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

    /// Whether an item of so many bytes, its key and head with it, has pages of its own.
    #[must_use]
    pub fn is_large(&self, bytes: usize) -> bool {
        bytes > self.small_max
    }

    /// Bytes of a page of the memory.
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
