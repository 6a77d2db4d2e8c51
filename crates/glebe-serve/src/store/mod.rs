//! [`Store`]: items by key, in what a reserve's first class does not use.
//!
//! A key's hash chooses a shard of the index, whose lock is held while an item is found, read if it
//! is small, or changed; never while room is made, a large value is copied, or another lock is
//! taken. What is stored gets its place first and is published then, so a reader sees an item whole
//! or not at all. An item that a recall took is a miss, and counted apart from those that went for
//! others.
//!
//! Bytes: items with what they waste, the tables and the index count against the limit, as of the
//! last tick; between ticks changes are added up. Room is made by the shards in turn, each by its
//! own clock.

mod change;
mod clock;
mod item;
mod memory;
mod shard;
mod upkeep;

use std::hash::{BuildHasher, RandomState};
use std::sync::atomic::{AtomicI64, AtomicU32, AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

pub use change::{Changed, Count, Meta, Outcome, Stored};
pub use clock::Clock;
pub use item::Head;
pub use upkeep::Held;

use item::HEAD;
use memory::{Full, Memory};
use shard::{Entry, Shard, FETCHED, FLUSHED, LARGE, STALE, TOKEN};

/// Shards of the index.
const SHARDS: usize = 64;
/// What an object costs beside its bytes, until the next tick says better.
const OBJECT_BYTES: i64 = 16;
/// Items that go before one is refused for which no pages can be had.
const EVICTED_MAX: u32 = 512;
/// Looks for a large item that is replaced while it is read.
const LOOKS_MAX: u32 = 4;

/// What a store is made with.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// Bytes of items, their tables and the index.
    pub bytes: u64,
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

/// What has happened to items, counted.
#[derive(Debug, Default)]
pub struct Events {
    /// Went for others.
    pub evicted: AtomicU64,
    /// Of them, those that nobody had read.
    pub evicted_unfetched: AtomicU64,
    /// Lost in a recall, and found so.
    pub recalled: AtomicU64,
    /// Were asked for when their time was over.
    pub get_expired: AtomicU64,
    /// Were asked for after all were dropped.
    pub get_flushed: AtomicU64,
    /// Gave their place up because they were over or dropped.
    pub reclaimed: AtomicU64,
    /// Of those whose time was over, those that nobody had read.
    pub expired_unfetched: AtomicU64,
    /// Were stored.
    pub stored: AtomicU64,
    /// Puts that found no room.
    pub no_memory: AtomicU64,
    /// Puts of items that were too large.
    pub too_large: AtomicU64,
}

fn count(counter: &AtomicU64) {
    counter.fetch_add(1, Ordering::Relaxed);
}

/// Buffers of a thread that uses a store.
#[derive(Debug, Default)]
pub struct Room {
    /// An item, or its first page.
    page: Vec<u8>,
    /// An item that is put together.
    build: Vec<u8>,
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
    large_bytes: AtomicI64,
    large_items: AtomicI64,
    hand: AtomicU64,
    item_bytes: u64,
    evict: bool,
    small_max: usize,
    /// What has happened.
    pub events: Events,
}

/// An item that was found.
#[derive(Clone, Copy, Debug)]
pub struct Found {
    /// Its head.
    pub head: Head,
    entry: Entry,
    at: usize,
}

impl Found {
    /// Whether it was read since it was stored.
    #[must_use]
    pub fn is_fetched(&self) -> bool {
        self.entry.access & FETCHED != 0
    }

    /// Whether it is marked stale.
    #[must_use]
    pub fn is_stale(&self) -> bool {
        self.entry.access & STALE != 0
    }

    /// Whether a client was told to make it anew.
    #[must_use]
    pub fn is_won(&self) -> bool {
        self.entry.access & TOKEN != 0
    }

    /// When it was last read or stored, in seconds of the clock.
    #[must_use]
    pub fn last_access(&self) -> u32 {
        self.entry.last_access()
    }

    /// Whether its pages are those of the page cache.
    #[must_use]
    pub fn is_large(&self) -> bool {
        self.entry.is_large()
    }
}

/// What a reader wants beside the value.
#[derive(Clone, Copy, Debug, Default)]
pub struct Look {
    /// Leave no trace.
    pub quiet: bool,
    /// Below this end, one reader is told to make it anew.
    pub recache: Option<u32>,
    /// The new end.
    pub touch: Option<u32>,
}

impl Store {
    /// An empty store over a reserve of its own.
    ///
    /// # Errors
    /// What the reserve could not have.
    pub fn new(limits: Limits) -> Result<Self, Box<dyn std::error::Error + Send + Sync>> {
        let memory = Memory::new(limits.bytes)?;
        // Up to there a page that is not shared would be wasted by a quarter or more.
        let small_max = memory.page() / 4 * 3;
        let store = Self {
            memory,
            shards: (0..SHARDS).map(|_| Mutex::new(Shard::new())).collect(),
            hasher: RandomState::new(),
            clock: Clock::new(),
            cas: AtomicU64::new(0),
            flush_at: AtomicU32::new(0),
            most: AtomicU64::new(limits.bytes),
            limit: AtomicU64::new(limits.bytes),
            used: AtomicI64::new(0),
            large_bytes: AtomicI64::new(0),
            large_items: AtomicI64::new(0),
            hand: AtomicU64::new(0),
            item_bytes: limits.item_bytes,
            evict: limits.evict,
            small_max,
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
    fn hash(&self, key: &[u8]) -> (usize, u32) {
        let hash = self.hasher.hash_one(key);
        ((hash >> 32) as usize % SHARDS, hash as u32)
    }

    fn shard(&self, nth: usize) -> MutexGuard<'_, Shard> {
        self.shards[nth].lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn next_cas(&self) -> u64 {
        self.cas.fetch_add(1, Ordering::Relaxed) + 1
    }

    fn is_over(&self, head: &Head) -> bool {
        head.exptime != 0 && head.exptime <= self.clock.now()
    }

    /// The head of an item, which or the first page of which is then in `room.page`; `None` if it
    /// is lost.
    #[inline]
    fn look(&self, entry: Entry, room: &mut Room) -> Option<Head> {
        room.page.resize(self.memory.page(), 0);
        if entry.is_large() {
            let got = self.memory.get(entry.pages().0, 0, &mut room.page);
            return got.then(|| Head::read(&room.page)).flatten();
        }
        let len = self.memory.read(entry.place, &mut room.page)?;
        Head::read(&room.page[..len])
    }

    /// The item of a key, which or the first page of which is then in `room.page`.
    #[inline]
    fn locate(&self, shard: &mut Shard, hash: u32, key: &[u8], room: &mut Room) -> Option<Found> {
        let mut at = shard.find(hash, None)?;
        loop {
            let entry = shard.at(at);
            match self.look(entry, room) {
                None => {
                    self.forget_lost(shard.remove(at));
                    // What stood behind it may have moved up.
                    at = shard.find(hash, None)?;
                }
                Some(head) if head.key(&room.page) == key => {
                    if entry.access & FLUSHED != 0 {
                        count(&self.events.get_flushed);
                        count(&self.events.reclaimed);
                        self.drop_item(shard.remove(at), head.total());
                        return None;
                    }
                    if self.is_over(&head) {
                        count(&self.events.get_expired);
                        count(&self.events.reclaimed);
                        self.expire(shard.remove(at), &head);
                        return None;
                    }
                    return Some(Found { head, entry, at });
                }
                Some(_) => at = shard.find(hash, Some(at))?,
            }
        }
    }

    /// The item of an entry that no longer is in its shard is lost.
    fn forget_lost(&self, entry: Entry) {
        count(&self.events.recalled);
        if entry.is_large() {
            self.drop_large(entry);
        }
    }

    fn expire(&self, entry: Entry, head: &Head) {
        if entry.access & FETCHED == 0 {
            count(&self.events.expired_unfetched);
        }
        self.drop_item(entry, head.total());
    }

    fn drop_large(&self, entry: Entry) {
        let (number, pages) = entry.pages();
        self.memory.drop_pages(number, pages);
        let bytes = (pages * self.memory.page() as u64) as i64;
        self.used.fetch_sub(bytes, Ordering::Relaxed);
        self.large_bytes.fetch_sub(bytes, Ordering::Relaxed);
        self.large_items.fetch_sub(1, Ordering::Relaxed);
    }

    /// Gives up the place of an item of `len` bytes, whose entry no longer is in its shard.
    fn drop_item(&self, entry: Entry, len: usize) {
        if entry.is_large() {
            return self.drop_large(entry);
        }
        self.memory.remove(entry.place);
        self.used.fetch_sub(len as i64 + OBJECT_BYTES, Ordering::Relaxed);
    }

    /// Reads the item of `key`. `head` is told what it is, may write what goes first, and
    /// says whether the value is to follow in `out`. `None`: a miss, and `out` is as it was.
    pub fn get(
        &self,
        key: &[u8],
        look: Look,
        room: &mut Room,
        out: &mut Vec<u8>,
        mut head: impl FnMut(&Found, bool, &mut Vec<u8>) -> bool,
    ) -> Option<()> {
        let (nth, hash) = self.hash(key);
        let begin = out.len();
        for _ in 0..LOOKS_MAX {
            let mut shard = self.shard(nth);
            let mut found = self.locate(&mut shard, hash, key, room)?;
            if let Some(exptime) = look.touch {
                found.head.exptime = exptime;
                self.rewrite_head(&mut shard, &found, room)?;
            }
            let won = self.mark(&mut shard, &found, look);
            drop(shard);
            let from = found.head.value_at();
            if !head(&found, won, out) {
                return Some(());
            }
            if !found.is_large() {
                out.extend_from_slice(&room.page[from..found.head.total()]);
                return Some(());
            }
            if self.read_rest(&found, room, out) {
                return Some(());
            }
            out.truncate(begin);
            let mut shard = self.shard(nth);
            if let Some(at) = shard.find_place(hash, found.entry.place) {
                let lost = shard.remove(at);
                drop(shard);
                self.forget_lost(lost);
                return None;
            }
        }
        None
    }

    /// The value of a large item, whose first page is in `room.page`; false if a page is missing.
    fn read_rest(&self, found: &Found, room: &Room, out: &mut Vec<u8>) -> bool {
        let (page, total) = (self.memory.page(), found.head.total());
        let (number, pages) = found.entry.pages();
        let end = out.len() + found.head.len as usize;
        out.reserve(found.head.len as usize + page + 2);
        out.extend_from_slice(&room.page[found.head.value_at()..total.min(page)]);
        for index in 1..pages {
            let at = out.len();
            out.resize(at + page, 0);
            if !self.memory.get(number, index, &mut out[at..]) {
                return false;
            }
        }
        out.truncate(end);
        true
    }

    /// Notes that the item is read; whether this reader is to make it anew.
    fn mark(&self, shard: &mut Shard, found: &Found, look: Look) -> bool {
        let entry = shard.at_mut(found.at);
        let ends_soon = |end| found.head.exptime != 0 && found.head.exptime < end;
        let won = !found.is_won() && (look.recache.is_some_and(ends_soon) || found.is_stale());
        if !look.quiet {
            entry.touch(self.clock.now());
        }
        if won {
            entry.access |= TOKEN;
        }
        won
    }

    /// Stores another head over an item that was found and lies in `room.page`. `None`: it went.
    fn rewrite_head(&self, shard: &mut Shard, found: &Found, room: &mut Room) -> Option<()> {
        room.build.clear();
        found.head.write(&mut room.build);
        room.page[..HEAD].copy_from_slice(&room.build);
        let done = match found.entry.is_large() {
            true => self.memory.put(found.entry.pages().0, 0, &room.page),
            false => self.memory.replace(found.entry.place, &room.page[..found.head.total()]),
        };
        if done.is_err() {
            let gone = shard.remove(found.at);
            count(&self.events.evicted);
            self.drop_item(gone, found.head.total());
        }
        done.ok()
    }

    /// Makes room for so many bytes more; false if nothing can go.
    fn make_room(&self, bytes: i64) -> bool {
        let limit = self.limit.load(Ordering::Relaxed) as i64;
        while self.used.load(Ordering::Relaxed) + bytes > limit {
            if !self.evict || !self.evict_one() {
                return false;
            }
        }
        true
    }

    /// Lets an item go, of the shards in turn; false if there is none.
    fn evict_one(&self) -> bool {
        for _ in 0..SHARDS {
            let nth = self.hand.fetch_add(1, Ordering::Relaxed) as usize % SHARDS;
            let Some(entry) = self.shard(nth).evict() else { continue };
            if entry.is_large() {
                self.count_evicted(entry);
                self.drop_large(entry);
                return true;
            }
            match self.memory.len_of(entry.place) {
                Some(len) => {
                    if entry.access & FLUSHED == 0 {
                        self.count_evicted(entry);
                    }
                    self.drop_item(entry, len);
                }
                // What it used is found free by the next tick.
                None => self.forget_lost(entry),
            }
            return true;
        }
        false
    }

    fn count_evicted(&self, entry: Entry) {
        count(&self.events.evicted);
        if entry.access & FETCHED == 0 {
            count(&self.events.evicted_unfetched);
        }
    }

    /// Finds a place for an item: that, and [`LARGE`] if it is.
    fn place(
        &self,
        head: &Head,
        key: &[u8],
        value: &[u8],
        room: &mut Room,
    ) -> Result<(u64, u32), Refused> {
        let placed = self.try_place(head, key, value, room);
        match placed {
            Err(Refused::TooLarge) => count(&self.events.too_large),
            Err(Refused::NoMemory) => count(&self.events.no_memory),
            Ok(_) => count(&self.events.stored),
        }
        placed
    }

    fn try_place(
        &self,
        head: &Head,
        key: &[u8],
        value: &[u8],
        room: &mut Room,
    ) -> Result<(u64, u32), Refused> {
        let (total, page) = (head.total(), self.memory.page());
        if total as u64 > self.item_bytes {
            return Err(Refused::TooLarge);
        }
        let pages = total.div_ceil(page);
        let is_large = total > self.small_max;
        let bytes = if is_large { pages * page } else { total + OBJECT_BYTES as usize } as i64;
        let mut tries = 0;
        while self.make_room(bytes) && tries < EVICTED_MAX {
            // Anew each time: a try that found no room has used the buffer.
            room.build.clear();
            head.write(&mut room.build);
            room.build.extend_from_slice(key);
            let placed = match is_large {
                true => self.put_large(value, pages, room),
                false => {
                    room.build.extend_from_slice(value);
                    self.memory.insert(&room.build)
                }
            };
            if let Ok(place) = placed {
                self.used.fetch_add(bytes, Ordering::Relaxed);
                if is_large {
                    self.large_bytes.fetch_add(bytes, Ordering::Relaxed);
                    self.large_items.fetch_add(1, Ordering::Relaxed);
                }
                return Ok((place, if is_large { LARGE } else { 0 }));
            }
            if !self.evict || !self.evict_one() {
                break;
            }
            tries += 1;
        }
        Err(Refused::NoMemory)
    }

    /// Puts `room.build`, which is a head and a key, and the value into pages.
    fn put_large(&self, value: &[u8], pages: usize, room: &mut Room) -> Result<u64, Full> {
        let (page, number) = (self.memory.page(), self.memory.number());
        let before = room.build.len();
        let mut put = || -> Result<(), Full> {
            let (first, rest) = value.split_at(value.len().min(page - before));
            room.build.extend_from_slice(first);
            room.build.resize(page, 0);
            self.memory.put(number, 0, &room.build)?;
            for (index, part) in (1..).zip(rest.chunks(page)) {
                if part.len() == page {
                    self.memory.put(number, index, part)?;
                } else {
                    room.build.clear();
                    room.build.extend_from_slice(part);
                    room.build.resize(page, 0);
                    self.memory.put(number, index, &room.build)?;
                }
            }
            Ok(())
        };
        put().map(|()| Entry::large(number, pages as u64)).inspect_err(|_| {
            self.memory.drop_pages(number, pages as u64);
        })
    }
}

#[cfg(test)]
mod tests;
