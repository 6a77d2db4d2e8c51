//! Where items get their places, and how they give them up.
//!
//! Room is made before a place is looked for: items of the shards go, in turn, small ones by
//! segments of the log and large ones one by one, in proportion to the bytes of either.

use std::sync::atomic::Ordering;

use super::log::{segment_bytes, taken, Recycled, Spot};
use super::memory::Full;
use super::shard::{Entry, Shard, FETCHED, FLUSHED, LARGE};
use super::{count, Head, Refused, Room, Store};

/// How often pages are asked for before an item is refused, and before others go for it.
pub(super) const TRIES: u32 = 64;
const PATIENCE: u32 = 4;
/// Segments that one item waits for beyond its own bytes. Where the limit came down by more, since
/// first class took some, other items and the next tick free the rest.
const FREED_MAX: u64 = 4;
/// Of a segment that is recycled so many quarters at most are kept; the rest makes room.
const KEPT_QUARTERS: usize = 3;

/// An item to be stored.
#[derive(Clone, Copy, Debug)]
pub(super) struct Item<'a> {
    pub(super) head: Head,
    pub(super) key: &'a [u8],
    pub(super) value: &'a [u8],
    pub(super) hash: u64,
}

/// The place of an item.
#[derive(Clone, Copy, Debug)]
pub(super) enum Placed {
    /// In the log of its shard, under whose lock it will be added.
    Small,
    /// In the page cache, where it is.
    Large(u64),
}

impl Store {
    /// Makes room for an item, and puts it into the page cache if it is large.
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
                count(&self.events.stored);
                return Ok(Placed::Large(Entry::large(number, pages as u64)));
            }
            self.free_pages(nth, pages as u64, room);
        }
        Err(self.no_memory(item))
    }

    /// Frees pages for an item that was refused any for the time numbered `nth`, though the limit
    /// allows it: first class is taking some. At first they are only being looked for again.
    #[cold]
    fn free_pages(&self, nth: u32, pages: u64, room: &mut Room) {
        let mut freed = if nth < PATIENCE { pages } else { 0 };
        while freed < pages {
            let Some(more) = self.evict(room) else { return };
            freed += more;
        }
    }

    /// As [`Store::free_pages`], for a segment of a log.
    #[cold]
    pub(super) fn free_segment(&self, nth: u32, room: &mut Room) {
        let page = self.memory.page();
        self.free_pages(nth, (segment_bytes(page) / page) as u64, room);
    }

    /// Counts an item that found no room.
    pub(super) fn no_memory(&self, item: &Item<'_>) -> Refused {
        self.events.no_memory.count(self.is_large(item.head.total()));
        Refused::NoMemory
    }

    /// The entry of an item that has its place; one that is small gets it now. An error: others are
    /// to go first.
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
                count(&self.events.stored);
                Entry::new(spot.to_word(), item.hash, 0, now)
            }
        };
        entry.set_end(item.head.exptime != 0);
        Ok(entry)
    }

    /// Changes a log, and counts the segments that came and went.
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

    /// Puts the head, the key and the value into pages.
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

    /// Makes room for so many bytes more, or as much of it as an item waits for; false if nothing
    /// can go.
    #[inline]
    fn make_room(&self, bytes: usize, room: &mut Room) -> bool {
        let most = bytes as u64 + FREED_MAX * segment_bytes(self.memory.page()) as u64;
        self.free_bytes(bytes, most, room)
    }

    /// Lets items go until so many bytes more are within the limit, or `most` bytes are free for
    /// it; false if nothing can go.
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

    /// Lets items of one shard go, of all in turn; where none may go, brings those in sparse
    /// segments together. Returns the pages that are free then; none of those that were lost.
    /// `None` if nothing can be done.
    #[cold]
    fn evict(&self, room: &mut Room) -> Option<u64> {
        for _ in 0..self.shards.len() {
            let nth = self.hand.fetch_add(1, Ordering::Relaxed) as usize % self.shards.len();
            let shard = &mut *self.shard(nth);
            let page = self.memory.page();
            if self.evict && shard.is_turn_of_large(page as u64) {
                if let Some(entry) = shard.evict_large() {
                    self.count_evicted(entry);
                    return Some(self.drop_large(entry));
                }
            }
            let all = segment_bytes(page);
            let live = if self.evict { all } else { all / 4 * KEPT_QUARTERS };
            if let Some(freed) = self.recycle(shard, live, room) {
                shard.add_gone((all / page) as u64);
                return Some(freed);
            }
        }
        None
    }

    /// Recycles the oldest segment of at most `live` bytes of items; the pages that are free then.
    fn recycle(&self, shard: &mut Shard, live: usize, room: &mut Room) -> Option<u64> {
        let take = |shard: &mut Shard| shard.log.recycle(&self.memory, live, &mut room.segment);
        let recycled = self.with_log(shard, take)?;
        let before = shard.log.sealed();
        self.with_log(shard, |shard| self.keep_some(shard, &recycled, &room.segment));
        let segment_pages = (room.segment.len() / self.memory.page()) as u64;
        let used = (shard.log.sealed() - before) * segment_pages;
        Some(recycled.pages.saturating_sub(used))
    }

    /// Brings items of a log together that is mostly gaps, so that those which are stored again and
    /// again keep to little memory, and to the processor's caches.
    #[inline]
    pub(super) fn tidy(&self, shard: &mut Shard, room: &mut Room) {
        if shard.log.is_mostly_gaps() {
            self.recycle(shard, segment_bytes(self.memory.page()) / 2, room);
        }
    }

    /// Takes the items of a segment that left the log to its head, if they are worth it.
    fn keep_some(&self, shard: &mut Shard, recycled: &Recycled, bytes: &[u8]) {
        let mut left = bytes.len() / 4 * KEPT_QUARTERS;
        // What is sparse makes room by itself.
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
                // Nobody wants it, or there is no room.
                None | Some(Err(Full)) => self.count_evicted(shard.remove(at)),
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

    /// The item of an entry that no longer is in its shard is lost.
    pub(super) fn forget_lost(&self, shard: &mut Shard, entry: Entry) {
        self.events.recalled.count(entry.is_large());
        self.discard(shard, entry);
    }

    /// An item's time is over.
    pub(super) fn expire(&self, shard: &mut Shard, entry: Entry) {
        self.count_unfetched(entry);
        self.discard(shard, entry);
    }

    /// Gives up the place of an item whose entry no longer is in its shard.
    pub(super) fn discard(&self, shard: &mut Shard, entry: Entry) {
        if let Some(large) = self.release(shard, entry) {
            self.drop_large(large);
        }
    }

    /// As [`Store::discard`], but for a large item, which can be dropped without the lock.
    #[inline]
    pub(super) fn release(&self, shard: &mut Shard, entry: Entry) -> Option<Entry> {
        if entry.is_large() {
            return Some(entry);
        }
        let spot = Spot::from_word(entry.place);
        self.with_log(shard, |shard| shard.log.free(&self.memory, spot));
        None
    }

    /// Gives up the pages of a large item; how many of them were there.
    pub(super) fn drop_large(&self, entry: Entry) -> u64 {
        let (number, pages) = entry.pages();
        self.change_large(-(pages as i64), -1);
        self.memory.drop_pages(number, pages)
    }
}
