//! Items found and read.
//!
//! What a reader needs of a small item is copied under its shard's lock; of a large one only the
//! first page is, and the rest comes after. If that is gone by then, the item was replaced or lost,
//! and is looked for again.

use super::item::HEAD;
use super::log::Spot;
use super::shard::{Entry, Shard, FETCHED, FLUSHED, STALE, TOKEN};
use super::{count, Head, Room, Store};

/// Looks for a large item that is replaced while it is read.
const LOOKS_MAX: u32 = 4;
/// What comes behind a value.
const LINE_END: usize = 2;

/// An item that was found.
#[derive(Clone, Copy, Debug)]
pub struct Found {
    /// Its head.
    pub head: Head,
    pub(super) entry: Entry,
    pub(super) at: usize,
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

    /// Seconds since it was last read or stored, if that is less than a year ago.
    #[must_use]
    pub fn idle(&self, now: u32) -> u32 {
        self.entry.idle(now)
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
    /// The head of an item, whose first `most` bytes then are in `room.page`; at least those of the
    /// head are asked for. Of a large one it is the first page. `None` if it is lost.
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

    /// The item of a key, which then is in `room.page`: all of a small one if it is wanted whole.
    #[inline]
    pub(super) fn locate(
        &self,
        shard: &mut Shard,
        (hash, key): (u64, &[u8]),
        whole: bool,
        room: &mut Room,
    ) -> Option<Found> {
        // A longer key is another one, by its head.
        let most = if whole { usize::MAX } else { HEAD + key.len() };
        let mut at = shard.find(hash, None)?;
        loop {
            let entry = shard.at(at);
            match self.look(shard, entry, most, room) {
                None => {
                    let lost = shard.remove(at);
                    self.forget_lost(shard, lost);
                    // What stood behind it may have moved up.
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
            let mut found = self.locate(&mut shard, (hash, key), true, room)?;
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
            // One that was replaced meanwhile is looked for again.
            if let Some(at) = shard.find_place(hash, found.entry.place) {
                let lost = shard.remove(at);
                self.forget_lost(&mut shard, lost);
                return None;
            }
        }
        None
    }

    /// The value of a large item, whose first page is in `room.page`; false if a page is missing.
    fn read_rest(&self, found: &Found, room: &Room, out: &mut Vec<u8>) -> bool {
        let total = found.head.total();
        let first = &room.page[found.head.value_at()..total.min(self.memory.page())];
        out.reserve(found.head.len as usize + LINE_END);
        out.extend_from_slice(first);
        let begin = out.len();
        out.resize(begin + found.head.len as usize - first.len(), 0);
        self.memory.get_run(found.entry.pages().0, 1, &mut out[begin..])
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

    /// Gives an item that was found, and lies whole in `room.page`, another head: `found.head`.
    /// `None`: there was no room, and it went.
    pub(super) fn rewrite_head(
        &self,
        shard: &mut Shard,
        found: &Found,
        room: &mut Room,
    ) -> Option<()> {
        let (at, old, head) = (found.at, found.entry, &found.head);
        head.write_head(&mut room.page);
        shard.at_mut(at).set_end(head.exptime != 0);
        let done = match old.is_large() {
            true => self.memory.put(old.pages().0, 0, &room.page[..self.memory.page()]),
            false => {
                let item = &room.page[..head.total()];
                self.with_log(shard, |shard| shard.log.add_again(&self.memory, item)).map(|spot| {
                    shard.at_mut(at).place = spot.to_word();
                    self.discard(shard, old);
                })
            }
        };
        if done.is_err() {
            let gone = shard.remove(at);
            self.count_evicted(gone);
            self.discard(shard, gone);
        }
        done.ok()
    }
}
