//! Allocates and frees items' memory.
//!
//! Storing an item makes room first. Each shard in turn evicts a segment of small items or a large
//! item, in proportion to the bytes of each kind.

use std::sync::atomic::Ordering;

use super::log::{segment_bytes, taken, Recycled, Spot};
use super::memory::Full;
use super::shard::{Entry, Shard, FETCHED, FLUSHED, LARGE};
use super::{count, Head, Refused, Room, Store};

/// Maximum attempts to get pages. The first `PATIENCE` attempts evict nothing.
pub(super) const TRIES: u32 = 64;
const PATIENCE: u32 = 4;
/// Maximum segments that storing an item frees beyond the item's bytes. If a recall lowered the
/// limit by more, later stores and the next tick free the rest.
const FREED_MAX: u64 = 4;
/// Maximum quarters of a recycled segment that are kept.
const KEPT_QUARTERS: usize = 3;

#[derive(Clone, Copy, Debug)]
pub(super) struct Item<'a> {
    pub(super) head: Head,
    pub(super) key: &'a [u8],
    pub(super) value: &'a [u8],
    pub(super) hash: u64,
}

#[derive(Clone, Copy, Debug)]
pub(super) enum Placed {
    /// The item is added to the log later, under the shard's lock.
    Small,
    Large(u64),
}

impl Store {
    /// Makes room for an item, and writes the item if it is large.
    pub(super) fn place(&self, item: &Item<'_>, room: &mut Room) -> Result<Placed, Refused> {
        let (total, page) = (item.head.total(), self.memory.page());
        if total as u64 > self.item_bytes {
            count(&self.events.too_large);
            return Err(Refused::TooLarge);
        }
        if total <= self.small_max {
            let has_room = self.make_room(0, room);
            return has_room.then_some(Placed::Small).ok_or_else(|| self.no_memory(item));
        }
        let pages = total.div_ceil(page);
        for nth in 0..TRIES {
            if !self.make_room(pages * page, room) {
                break;
            }
            if let Ok(number) = self.put_large(item, room) {
                self.change_large(pages as i64, 1);
                return Ok(Placed::Large(Entry::large(number, pages as u64)));
            }
            self.free_pages(nth, pages as u64, room);
        }
        Err(self.no_memory(item))
    }

    /// Evicts at least `pages` pages, if possible, after attempt `nth` to store an item found no
    /// free pages. The first `PATIENCE` attempts evict nothing.
    #[cold]
    fn free_pages(&self, nth: u32, pages: u64, room: &mut Room) {
        let mut freed = if nth < PATIENCE { pages } else { 0 };
        while freed < pages {
            let Some(more) = self.evict(room) else { return };
            freed += more;
        }
    }

    #[cold]
    pub(super) fn free_segment(&self, nth: u32, room: &mut Room) {
        let page = self.memory.page();
        self.free_pages(nth, (segment_bytes(page) / page) as u64, room);
    }

    pub(super) fn no_memory(&self, item: &Item<'_>) -> Refused {
        self.events.no_memory.count(self.is_large(item.head.total()));
        Refused::NoMemory
    }

    /// Returns the entry of a placed item. Writes a small item to the log, and fails if the log
    /// gets no pages.
    #[inline]
    pub(super) fn enter(
        &self,
        shard: &mut Shard,
        item: &Item<'_>,
        placed: Placed,
    ) -> Result<Entry, Full> {
        let now = self.clock.now();
        let mut entry = match placed {
            Placed::Large(place) => Entry::new(place, item.hash, LARGE, now),
            Placed::Small => {
                let add = |shard: &mut Shard| {
                    shard.log.add(&self.memory, &item.head, item.key, item.value)
                };
                let spot = self.with_log(shard, add)?;
                Entry::new(spot.to_word(), item.hash, 0, now)
            }
        };
        entry.set_end(item.head.exptime != 0);
        count(&self.events.stored);
        Ok(entry)
    }

    #[inline]
    pub(super) fn with_log<R>(&self, shard: &mut Shard, change: impl FnOnce(&mut Shard) -> R) -> R {
        let before = shard.log.sealed();
        let done = change(shard);
        let more = shard.log.sealed() as i64 - before as i64;
        if more != 0 {
            let bytes = more * segment_bytes(self.memory.page()) as i64;
            self.used.fetch_add(bytes, Ordering::Relaxed);
        }
        done
    }

    fn put_large(&self, item: &Item<'_>, room: &mut Room) -> Result<u64, Full> {
        let (page, number) = (self.memory.page(), self.memory.number());
        let start = item.head.value_at();
        let (first, rest) = item.value.split_at(item.value.len().min(page - start));
        room.page.resize(self.small_max.max(page), 0);
        let bytes = &mut room.page[..page];
        item.head.write(&mut bytes[..start + first.len()], item.key, first);
        bytes[start + first.len()..].fill(0);
        self.memory.put(number, 0, bytes)?;
        let put = self.memory.put(number, 1, rest);
        put.map(|()| number).inspect_err(|_| {
            self.memory.drop_pages(number, 1);
        })
    }

    fn change_large(&self, pages: i64, items: i64) {
        let bytes = pages * self.memory.page() as i64;
        self.used.fetch_add(bytes, Ordering::Relaxed);
        self.large_bytes.fetch_add(bytes, Ordering::Relaxed);
        self.large_items.fetch_add(items, Ordering::Relaxed);
    }

    /// Makes room for `bytes`, but stops after freeing `bytes` plus [`FREED_MAX`] segments. Returns
    /// false if nothing more can be freed.
    #[inline]
    fn make_room(&self, bytes: usize, room: &mut Room) -> bool {
        let most = bytes as u64 + FREED_MAX * segment_bytes(self.memory.page()) as u64;
        self.free_bytes(bytes, most, room)
    }

    /// Evicts until `bytes` more fit the limit, or `most` bytes were freed. Returns false if
    /// nothing more can be freed.
    #[inline]
    pub(super) fn free_bytes(&self, bytes: usize, most: u64, room: &mut Room) -> bool {
        let (mut freed, most) = (0, most / self.memory.page() as u64);
        let limit = self.limit.load(Ordering::Relaxed) as i64;
        while self.used.load(Ordering::Relaxed) + bytes as i64 > limit && freed < most {
            let Some(pages) = self.evict(room) else { return false };
            freed += pages;
        }
        true
    }

    /// Evicts a large item or a segment of the next shard that has one. If eviction is off, only
    /// compacts a segment with gaps. Returns the pages freed, or `None` if nothing can be freed.
    #[cold]
    pub(super) fn evict(&self, room: &mut Room) -> Option<u64> {
        // Each thread asks every shard once, also while other threads move the hand.
        let first = self.hand.fetch_add(1, Ordering::Relaxed) as usize;
        for nth in first..first + self.shards.len() {
            self.hand.store(nth as u64 + 1, Ordering::Relaxed);
            let shard = &mut *self.shard(nth % self.shards.len());
            let page = self.memory.page();
            let is_turn_of_large = shard.is_turn_of_large(page as u64);
            if let Some(freed) = is_turn_of_large.then(|| self.evict_large(shard)).flatten() {
                return Some(freed);
            }
            let all = segment_bytes(page);
            let live = if self.evict { all } else { all / 4 * KEPT_QUARTERS };
            if let Some(freed) = self.recycle(shard, live, room) {
                shard.add_gone((all / page) as u64);
                return Some(freed);
            }
            // If all small items are in the log's head, it is their turn, but there is no segment
            // to free.
            if let Some(freed) = self.evict_large(shard) {
                return Some(freed);
            }
        }
        None
    }

    /// Evicts a large item, if eviction is on and the shard has one. Returns the pages freed.
    fn evict_large(&self, shard: &mut Shard) -> Option<u64> {
        let entry = if self.evict { shard.evict_large() } else { None }?;
        self.note_evicted_large(shard, entry);
        self.count_evicted(entry);
        Some(self.drop_large(entry))
    }

    /// Frees the oldest segment with at most `live` bytes of items, and keeps some of the items.
    /// Returns the pages gained, or `None` if there is no such segment.
    fn recycle(&self, shard: &mut Shard, live: usize, room: &mut Room) -> Option<u64> {
        let take = |shard: &mut Shard| shard.log.recycle(&self.memory, live, &mut room.segment);
        let recycled = self.with_log(shard, take)?;
        let before = shard.log.sealed();
        self.with_log(shard, |shard| self.keep_some(shard, &recycled, &room.segment));
        let segment_pages = (room.segment.len() / self.memory.page()) as u64;
        let used = (shard.log.sealed() - before) * segment_pages;
        Some(recycled.pages.saturating_sub(used))
    }

    /// Recycles a sparse segment of a log that is mostly gaps, so that items stored repeatedly stay
    /// in little memory and in the processor's caches.
    #[inline]
    pub(super) fn tidy(&self, shard: &mut Shard, room: &mut Room) {
        if shard.log.is_mostly_gaps() {
            self.recycle(shard, segment_bytes(self.memory.page()) / 2, room);
        }
    }

    /// Moves items of a recycled segment to the log's head. Drops expired items and, unless the
    /// segment is sparse, those not read lately.
    fn keep_some(&self, shard: &mut Shard, recycled: &Recycled, bytes: &[u8]) {
        let mut left = bytes.len() / 4 * KEPT_QUARTERS;
        // A sparse segment frees memory even if all its items are kept.
        let is_sparse = recycled.live <= bytes.len() / 2 || !self.evict;
        for (spot, head) in recycled.items(bytes) {
            let (_, hash) = self.hash(head.key(Recycled::item(spot, bytes)));
            let Some(at) = shard.find_place(hash, spot.to_word()) else { continue };
            let entry = shard.at(at);
            if entry.access & FLUSHED != 0 || self.is_over(&head) {
                self.events.reclaimed.count(entry.is_large());
                self.count_unfetched(shard.remove(at));
                continue;
            }
            let is_kept = (is_sparse || shard.at_mut(at).is_spared()) && taken(spot.len) <= left;
            let item = Recycled::item(spot, bytes);
            match is_kept.then(|| shard.log.add_again(&self.memory, item)) {
                Some(Ok(new)) => {
                    left -= taken(spot.len);
                    shard.at_mut(at).place = new.to_word();
                }
                None | Some(Err(Full)) => {
                    self.note_evicted(entry, &head, item);
                    self.count_evicted(shard.remove(at));
                }
            }
        }
    }

    pub(super) fn count_evicted(&self, entry: Entry) {
        if entry.access & FLUSHED != 0 {
            return;
        }
        self.events.evicted.count(entry.is_large());
        if entry.access & FETCHED == 0 {
            self.events.evicted_unfetched.count(entry.is_large());
        }
    }

    fn count_unfetched(&self, entry: Entry) {
        if entry.access & (FETCHED | FLUSHED) == 0 {
            self.events.expired_unfetched.count(entry.is_large());
        }
    }

    /// Frees an item that a recall took. `key` is the one that a client asked for, if any.
    pub(super) fn forget_lost(&self, shard: &mut Shard, entry: Entry, key: Option<&[u8]>) {
        self.note_lost(entry, key);
        self.events.recalled.count(entry.is_large());
        self.discard(shard, entry);
    }

    pub(super) fn expire(&self, shard: &mut Shard, entry: Entry) {
        self.count_unfetched(entry);
        self.discard(shard, entry);
    }

    /// Frees an item that is already removed from the index.
    pub(super) fn discard(&self, shard: &mut Shard, entry: Entry) {
        if let Some(large) = self.release(shard, entry) {
            self.drop_large(large);
        }
    }

    /// Frees a small item. Returns the entry of a large one, which the caller can drop without the
    /// lock.
    #[inline]
    pub(super) fn release(&self, shard: &mut Shard, entry: Entry) -> Option<Entry> {
        if entry.is_large() {
            return Some(entry);
        }
        let spot = Spot::from_word(entry.place);
        self.with_log(shard, |shard| shard.log.free(&self.memory, spot));
        None
    }

    /// Frees a large item. Returns how many of its pages were present.
    pub(super) fn drop_large(&self, entry: Entry) -> u64 {
        let (number, pages) = entry.pages();
        self.change_large(-(pages as i64), -1);
        self.memory.drop_pages(number, pages)
    }
}
