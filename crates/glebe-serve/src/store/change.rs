//! Stores items: set, add, replace, append, prepend, cas.
//!
//! A store writes a large item before it takes the shard's lock, a small item under the lock. The
//! new item becomes visible if the command and the old item allow that. Appending starts over if
//! another client changed the old item meanwhile.

use std::sync::atomic::Ordering;

use super::item::Head;
use super::place::{Item, Placed, TRIES};
use super::shard::{Entry, LARGE, STALE, TOKEN};
use super::{count, Found, Look, Refused, Room, Store};
use crate::protocol::Verb;

/// The result of a store.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// The item was stored.
    Stored,
    /// `add` found an item, or another verb found none.
    NotStored,
    /// The CAS number differs.
    Exists,
    /// There is no item whose CAS number could be compared.
    NotFound,
}

/// The effects of a store.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stored {
    /// The result.
    pub outcome: Outcome,
    /// The CAS number now; 0 if not stored.
    pub cas: u64,
    /// Bytes of the value.
    pub len: u32,
}

/// Properties of an item to store.
#[derive(Clone, Copy, Debug, Default)]
pub struct Meta {
    /// Client flags.
    pub flags: u32,
    /// Expiry time by the store's clock; 0: never.
    pub exptime: u32,
    /// New CAS number; `None`: the store's next.
    pub new_cas: Option<u64>,
    /// CAS number that the old item must have.
    pub cas: Option<u64>,
    /// Stores also if `cas` is lower than the old item's, and marks the item stale.
    pub allow_stale: bool,
    /// `append` and `prepend` create a missing item.
    pub vivify: bool,
    /// A client was asked to renew the item.
    pub won: bool,
}

impl Store {
    fn head(&self, key: &[u8], meta: &Meta, len: usize) -> Head {
        Head {
            cas: meta.new_cas.unwrap_or_else(|| self.next_cas()),
            exptime: meta.exptime,
            stored: self.clock.now(),
            flags: meta.flags,
            len: len as u32,
            key_len: key.len() as u8,
        }
    }

    /// Stores a value.
    ///
    /// # Errors
    /// [`Refused`]. A refused `set` deletes the old item.
    pub fn store(
        &self,
        key: &[u8],
        verb: Verb,
        meta: &Meta,
        value: &[u8],
        room: &mut Room,
    ) -> Result<Stored, Refused> {
        match verb {
            Verb::Append | Verb::Prepend => self.extend(key, verb, meta, value, room),
            _ => {
                let stored = self.put(key, verb, meta, value, room);
                if stored.is_err() && verb == Verb::Set {
                    self.delete(key, None, room);
                }
                stored
            }
        }
    }

    fn put(
        &self,
        key: &[u8],
        verb: Verb,
        meta: &Meta,
        value: &[u8],
        room: &mut Room,
    ) -> Result<Stored, Refused> {
        let (nth, hash) = self.hash(key);
        let mut item = Item { head: self.head(key, meta, value.len()), key, value, hash };
        for nth_try in 0..TRIES {
            let placed = self.place(&item, room)?;
            let mut shard = self.shard(nth);
            let is_set = verb == Verb::Set && meta.cas.is_none();
            let found = shard.find(hash, None).filter(|at| is_set && shard.at(*at).is_for_good());
            // An item that cannot expire is replaced without reading it.
            let old = match found {
                Some(_) => None,
                None => self.locate(&mut shard, (hash, key), false, room),
            };
            let outcome = may_store(verb, meta, old.as_ref());
            if outcome != Outcome::Stored {
                if let (Some(old), Verb::Add) = (old, verb) {
                    shard.at_mut(old.at).touch(self.clock.now());
                }
                drop(shard);
                self.drop_placed(placed);
                return Ok(Stored { outcome, cas: 0, len: item.head.len });
            }
            let mut bits = if meta.won { TOKEN } else { 0 };
            let is_outdated = |old: &&Found| meta.cas.is_some_and(|cas| cas != old.head.cas);
            if let Some(old) = old.as_ref().filter(|_| meta.allow_stale).filter(is_outdated) {
                let has_end = item.head.exptime == old.head.exptime;
                item.head.exptime = old.head.exptime;
                if let (Placed::Large(_), false) = (placed, has_end) {
                    drop(shard);
                    self.drop_placed(placed);
                    continue;
                }
                bits |= STALE | old.entry.access & TOKEN;
            }
            let Ok(mut entry) = self.enter(&mut shard, &item, placed) else {
                drop(shard);
                self.free_segment(nth_try, room);
                continue;
            };
            entry.access |= bits;
            let large = match found.or(old.map(|old| old.at)) {
                Some(at) => {
                    let was = shard.replace(at, entry);
                    self.release(&mut shard, was)
                }
                None => {
                    self.insert(&mut shard, entry);
                    None
                }
            };
            self.tidy(&mut shard, room);
            drop(shard);
            if let Some(large) = large {
                self.drop_large(large);
            }
            return Ok(Stored { outcome, cas: item.head.cas, len: item.head.len });
        }
        Err(self.no_memory(&item))
    }

    fn drop_placed(&self, placed: Placed) {
        if let Placed::Large(place) = placed {
            self.drop_large(Entry::new(place, 0, LARGE, 0));
        }
    }

    fn insert(&self, shard: &mut super::Shard, entry: Entry) {
        let before = shard.bytes();
        shard.insert(entry);
        self.used.fetch_add((shard.bytes() - before) as i64, Ordering::Relaxed);
    }

    fn extend(
        &self,
        key: &[u8],
        verb: Verb,
        meta: &Meta,
        value: &[u8],
        room: &mut Room,
    ) -> Result<Stored, Refused> {
        loop {
            let mut old = Vec::new();
            let Some(found) = self.read_whole(key, &mut old, room) else {
                if !meta.vivify {
                    return Ok(Stored { outcome: Outcome::NotStored, cas: 0, len: 0 });
                }
                let stored = self.put(key, Verb::Add, meta, value, room)?;
                if stored.outcome == Outcome::Stored {
                    return Ok(stored);
                }
                continue;
            };
            if meta.cas.is_some_and(|cas| cas != 0 && cas != found.head.cas) {
                return Ok(Stored { outcome: Outcome::Exists, cas: 0, len: 0 });
            }
            match verb {
                Verb::Append => old.extend_from_slice(value),
                _ => drop(old.splice(0..0, value.iter().copied())),
            }
            let (flags, exptime) = (found.head.flags, found.head.exptime);
            let new = Meta { flags, exptime, ..*meta };
            if let Some(head) = self.exchange(key, &found, &new, &old, room)? {
                return Ok(Stored { outcome: Outcome::Stored, cas: head.cas, len: head.len });
            }
        }
    }

    fn read_whole(&self, key: &[u8], value: &mut Vec<u8>, room: &mut Room) -> Option<Found> {
        let (mut found, quiet) = (None, Look { quiet: true, ..Look::default() });
        self.get(key, quiet, room, value, |item, _, _| {
            found = Some(*item);
            true
        })?;
        found
    }

    /// Replaces the item `found` and returns the new head, or `None` if the item has changed.
    pub(super) fn exchange(
        &self,
        key: &[u8],
        found: &Found,
        meta: &Meta,
        value: &[u8],
        room: &mut Room,
    ) -> Result<Option<Head>, Refused> {
        let (nth, hash) = self.hash(key);
        let item = Item { head: self.head(key, meta, value.len()), key, value, hash };
        let is_same = |old: &Found| old.entry.place == found.entry.place && old.head == found.head;
        for nth_try in 0..TRIES {
            let placed = self.place(&item, room)?;
            let mut shard = self.shard(nth);
            let old = self.locate(&mut shard, (hash, key), false, room);
            let Some(old) = old.filter(is_same) else {
                drop(shard);
                self.drop_placed(placed);
                return Ok(None);
            };
            let Ok(entry) = self.enter(&mut shard, &item, placed) else {
                drop(shard);
                self.free_segment(nth_try, room);
                continue;
            };
            let was = shard.replace(old.at, entry);
            self.discard(&mut shard, was);
            return Ok(Some(item.head));
        }
        Err(self.no_memory(&item))
    }

    /// Counts a value that was refused for its length before it arrived.
    pub(crate) fn refuse_too_large(&self) {
        count(&self.events.too_large);
    }

    /// Returns the maximum bytes of an item with key and head.
    #[must_use]
    pub fn item_bytes(&self) -> u64 {
        self.item_bytes
    }
}

fn may_store(verb: Verb, meta: &Meta, old: Option<&Found>) -> Outcome {
    let wanted = match verb {
        Verb::Cas(number) => Some(number),
        _ => meta.cas,
    };
    match (verb, old, wanted) {
        (Verb::Add, Some(_), _) | (Verb::Replace, None, None) => Outcome::NotStored,
        (Verb::Add, None, _) | (Verb::Set | Verb::Replace, _, None) => Outcome::Stored,
        (_, None, Some(_)) => Outcome::NotFound,
        (_, Some(old), Some(number)) if number != 0 && number == old.head.cas => Outcome::Stored,
        (_, Some(old), Some(number))
            if meta.allow_stale && number != 0 && number < old.head.cas =>
        {
            Outcome::Stored
        }
        (_, Some(_), Some(_)) => Outcome::Exists,
        (Verb::Append | Verb::Prepend | Verb::Cas(_), _, None) => Outcome::NotStored,
    }
}
