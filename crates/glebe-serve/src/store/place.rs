//! Where items get their places, and how they give them up.
//!
//! Room is made before a place is looked for, by the shards in turn; where the reserve has none all
//! the same, because first class took it, further items go.

use std::sync::atomic::Ordering;

use super::memory::Full;
use super::shard::{Entry, FETCHED, FLUSHED, LARGE};
use super::{count, Head, Refused, Room, Store, SHARDS};

/// What an object costs beside its bytes, until the next tick says better.
const OBJECT_BYTES: i64 = 16;
/// Items that go before one is refused for which no pages can be had.
const EVICTED_MAX: u32 = 512;

impl Store {
    /// Finds a place for an item: that, and [`LARGE`] if it is.
    pub(super) fn place(
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
        let (first, rest) = value.split_at(value.len().min(page - room.build.len()));
        room.build.extend_from_slice(first);
        room.build.resize(page, 0);
        let put = self.memory.put(number, 0, &room.build);
        put.and_then(|()| self.memory.put(number, 1, rest))
            .map(|()| Entry::large(number, pages as u64))
            .inspect_err(|_| self.memory.drop_pages(number, 1))
    }

    /// Makes room for so many bytes more; false if nothing can go.
    pub(super) fn make_room(&self, bytes: i64) -> bool {
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

    /// The item of an entry that no longer is in its shard is lost.
    pub(super) fn forget_lost(&self, entry: Entry) {
        count(&self.events.recalled);
        if entry.is_large() {
            self.drop_large(entry);
        }
    }

    pub(super) fn expire(&self, entry: Entry, head: &Head) {
        if entry.access & FETCHED == 0 {
            count(&self.events.expired_unfetched);
        }
        self.drop_item(entry, head.total());
    }

    /// Gives up the place of an item of `len` bytes, whose entry no longer is in its shard.
    pub(super) fn drop_item(&self, entry: Entry, len: usize) {
        if entry.is_large() {
            return self.drop_large(entry);
        }
        self.memory.remove(entry.place);
        self.used.fetch_sub(len as i64 + OBJECT_BYTES, Ordering::Relaxed);
    }

    fn drop_large(&self, entry: Entry) {
        let (number, pages) = entry.pages();
        self.memory.drop_pages(number, pages);
        let bytes = (pages * self.memory.page() as u64) as i64;
        self.used.fetch_sub(bytes, Ordering::Relaxed);
        self.large_bytes.fetch_sub(bytes, Ordering::Relaxed);
        self.large_items.fetch_sub(1, Ordering::Relaxed);
    }
}
