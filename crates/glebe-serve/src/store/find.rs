//! Finds and reads items.
//!
//! A reader copies a small item, or the first page of a large one, under the shard's lock, and the
//! other pages without the lock. If another page is missing, a writer replaced the item, or first
//! class recalled the page. The reader then reads the new item, or removes the lost one. A reader
//! that lost three races with writers keeps the lock while it copies.

use super::item::HEAD;
use super::log::Spot;
use super::shard::{Entry, Shard, FETCHED, FLUSHED, STALE, TOKEN};
use super::{count, Head, Room, Store};

/// Maximum lookups that do not hold the lock while they copy the value.
const FREE_LOOKS: u32 = 3;
const LINE_END: usize = 2;

/// An item that a lookup found.
#[derive(Clone, Copy, Debug)]
pub struct Found {
    /// The head.
    pub head: Head,
    pub(super) entry: Entry,
    pub(super) at: usize,
}

impl Found {
    /// Returns true if the item was read.
    #[must_use]
    pub fn is_fetched(&self) -> bool {
        self.entry.access & FETCHED != 0
    }

    /// Returns true if the item is stale.
    #[must_use]
    pub fn is_stale(&self) -> bool {
        self.entry.access & STALE != 0
    }

    /// Returns true if a client was asked to renew the item.
    #[must_use]
    pub fn is_won(&self) -> bool {
        self.entry.access & TOKEN != 0
    }

    /// Returns the seconds since the last read or store, modulo 2^25 (a year).
    #[must_use]
    pub fn idle(&self, now: u32) -> u32 {
        self.entry.idle(now)
    }

    /// Returns true if the item has pages of its own.
    #[must_use]
    pub fn is_large(&self) -> bool {
        self.entry.is_large()
    }
}

/// Effects of a read.
#[derive(Clone, Copy, Debug, Default)]
pub struct Look {
    /// Does not mark the item as read.
    pub quiet: bool,
    /// If the item expires before this time, one reader must renew it.
    pub recache: Option<u32>,
    /// New expiry time.
    pub touch: Option<u32>,
}

impl Store {
    /// Copies the first page of a large item, or at most `most` bytes of a small one, to
    /// `room.page`. Returns the head, or `None` if the item is lost.
    #[inline]
    pub(super) fn look(
        &self,
        shard: &Shard,
        entry: Entry,
        most: usize,
        room: &mut Room,
    ) -> Option<Head> {
        room.page.resize(self.small_max.max(self.memory.page()), 0);
        if entry.is_large() {
            let page = &mut room.page[..self.memory.page()];
            let is_there = self.memory.get_run(entry.pages().0, 0, page);
            return is_there.then(|| Head::read(&room.page)).flatten();
        }
        let spot = Spot::from_word(entry.place);
        let len = spot.len.min(most);
        let is_there = shard.log.read(&self.memory, spot, &mut room.page[..len]);
        is_there.then(|| Head::read(&room.page)).flatten()
    }

    /// Finds an item and copies its start to `room.page`; with `whole`, all of a small item.
    /// Removes lost items with the same hash, and the item if it is expired or flushed.
    #[inline]
    pub(super) fn locate(
        &self,
        shard: &mut Shard,
        (hash, key): (u64, &[u8]),
        whole: bool,
        room: &mut Room,
    ) -> Option<Found> {
        // Copies only the start of a key longer than `key`; its length shows that the keys differ.
        let most = if whole { usize::MAX } else { HEAD + key.len() };
        let mut at = shard.find(hash, None)?;
        loop {
            let entry = shard.at(at);
            match self.look(shard, entry, most, room) {
                None => {
                    let lost = shard.remove(at);
                    self.forget_lost(shard, lost, Some(key));
                    // The removal may have moved entries.
                    at = shard.find(hash, None)?;
                }
                Some(head) if head.key(&room.page) == key => {
                    let is_flushed = entry.access & FLUSHED != 0;
                    if !is_flushed && !self.is_over(&head) {
                        return Some(Found { head, entry, at });
                    }
                    let why = match is_flushed {
                        true => &self.events.get_flushed,
                        false => &self.events.get_expired,
                    };
                    count(why);
                    self.events.reclaimed.count(entry.is_large());
                    let over = shard.remove(at);
                    self.expire(shard, over);
                    return None;
                }
                Some(_) => at = shard.find(hash, Some(at))?,
            }
        }
    }

    /// Reads an item. Passes `head` the item, true if this reader must renew the item, and `out`,
    /// to which `head` may append. If `head` returns true, appends the value. Returns `None` for a
    /// miss, with `out` unchanged. `head` must not call the store, because `get` may hold a lock.
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
        let mut looks = 0;
        loop {
            let mut shard = self.shard(nth);
            let mut found = self.locate(&mut shard, (hash, key), true, room)?;
            if let Some(exptime) = look.touch.filter(|new| *new != found.head.exptime) {
                found.head.exptime = exptime;
                self.rewrite_head(&mut shard, &found, room)?;
            }
            let won = self.mark(&mut shard, &found, look);
            // Others change no item of the shard while the reader keeps the lock.
            let kept = (looks == FREE_LOOKS).then_some(shard);
            looks += 1;
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
            let mut shard = kept.unwrap_or_else(|| self.shard(nth));
            if let Some(at) = shard.find_place(hash, found.entry.place) {
                let lost = shard.remove(at);
                self.forget_lost(&mut shard, lost, Some(key));
                return None;
            }
        }
    }

    /// Appends the value of a large item whose first page is in `room.page`. Returns false if
    /// another page is missing.
    fn read_rest(&self, found: &Found, room: &Room, out: &mut Vec<u8>) -> bool {
        let total = found.head.total();
        let first = &room.page[found.head.value_at()..total.min(self.memory.page())];
        out.reserve(found.head.len as usize + LINE_END);
        out.extend_from_slice(first);
        let begin = out.len();
        out.resize(begin + found.head.len as usize - first.len(), 0);
        self.memory.get_run(found.entry.pages().0, 1, &mut out[begin..])
    }

    /// Marks an item as read, unless `look` is quiet. Returns true if this reader must renew the
    /// item.
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

    /// Replaces an item's head by `found.head`. `room.page` must hold the old head and the key, or
    /// the first page of a large item. Returns `None` if the item is lost.
    pub(super) fn rewrite_head(
        &self,
        shard: &mut Shard,
        found: &Found,
        room: &mut Room,
    ) -> Option<()> {
        let (at, entry, head) = (found.at, found.entry, &found.head);
        head.write_head(&mut room.page);
        shard.at_mut(at).set_end(head.exptime != 0);
        let is_done = if entry.is_large() {
            self.memory.replace(entry.pages().0, 0, &room.page[..self.memory.page()])
        } else {
            let spot = Spot::from_word(entry.place);
            shard.log.rewrite(&self.memory, spot, head, &mut room.segment)
        };
        if !is_done {
            // Nearly always because no page was free for the new bytes.
            let evicted = shard.remove(at);
            self.note_evicted(evicted, head, &room.page);
            self.count_evicted(evicted);
            self.discard(shard, evicted);
        }
        is_done.then_some(())
    }
}
