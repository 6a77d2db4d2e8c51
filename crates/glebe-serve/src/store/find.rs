//! Items found and read.
//!
//! What a reader needs of a small item is copied under its shard's lock; of a large one only the
//! first page is, and the rest comes after. If that is gone by then, the item was replaced or lost,
//! and is looked for again.

use super::item::HEAD;
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
    /// The head of an item, which or the first page of which is then in `room.page`; `None` if it
    /// is lost.
    #[inline]
    pub(super) fn look(&self, entry: Entry, room: &mut Room) -> Option<Head> {
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
    pub(super) fn locate(
        &self,
        shard: &mut Shard,
        hash: u32,
        key: &[u8],
        room: &mut Room,
    ) -> Option<Found> {
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
        let total = found.head.total();
        let first = &room.page[found.head.value_at()..total.min(room.page.len())];
        out.reserve(found.head.len as usize + LINE_END);
        out.extend_from_slice(first);
        let begin = out.len();
        out.resize(begin + found.head.len as usize - first.len(), 0);
        self.memory.get(found.entry.pages().0, 1, &mut out[begin..])
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
    pub(super) fn rewrite_head(
        &self,
        shard: &mut Shard,
        found: &Found,
        room: &mut Room,
    ) -> Option<()> {
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
}
