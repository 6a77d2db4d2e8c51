//! Changes of items: stored, deleted, counted up and down, touched, marked.
//!
//! What is stored gets its place first, without a lock, and is published if the item that it
//! replaces is such that it may. What depends on the old value is read, made, and published if the
//! item is still the one that was read; else it is made again.

use std::sync::atomic::Ordering;

use super::item::Head;
use super::shard::{Entry, FLUSHED, STALE, TOKEN};
use super::{count, Found, Look, Refused, Room, Store};
use crate::protocol::Verb;

/// Digits of the largest number.
const DIGITS_MAX: usize = 20;

/// How storing ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// It is stored.
    Stored,
    /// There is one, or there is none, and so it is not.
    NotStored,
    /// The item is another one than expected.
    Exists,
    /// There is none.
    NotFound,
}

/// What was stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stored {
    /// How it ended.
    pub outcome: Outcome,
    /// The number that the item has now; 0 if it was not stored.
    pub cas: u64,
    /// Bytes of the value now.
    pub len: u32,
}

/// An item to be stored.
#[derive(Clone, Copy, Debug, Default)]
pub struct Meta {
    /// The client's own flags.
    pub flags: u32,
    /// When it ends, by the store's clock; 0: never.
    pub exptime: u32,
    /// The number that it gets; the next one without.
    pub new_cas: Option<u64>,
    /// The number that an old item must have.
    pub cas: Option<u64>,
    /// A number below the old item's will do, and then the item is marked stale.
    pub allow_stale: bool,
    /// Appending stores it where there is none.
    pub vivify: bool,
    /// Whoever stores it was told to make it anew.
    pub won: bool,
}

/// How a number is changed.
#[derive(Clone, Copy, Debug, Default)]
pub struct Count {
    /// What is added.
    pub delta: u64,
    /// Or rather taken away.
    pub down: bool,
    /// The number that the item must have.
    pub cas: Option<u64>,
    /// The number that it gets.
    pub new_cas: Option<u64>,
    /// Its new end.
    pub exptime: Option<u32>,
}

/// How changing an item ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Changed {
    /// It was; its head now, and its number as a counter.
    Done(Head, u64),
    /// There is none.
    NotFound,
    /// Its number is not the one expected.
    Exists,
    /// It is not a number.
    NotNumeric,
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
    /// [`Refused`]; after a refused set there is no item either.
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
            _ => self.put(key, verb, *meta, value, room),
        }
    }

    fn put(
        &self,
        key: &[u8],
        verb: Verb,
        mut meta: Meta,
        value: &[u8],
        room: &mut Room,
    ) -> Result<Stored, Refused> {
        loop {
            let head = self.head(key, &meta, value.len());
            let placed = self.place(&head, key, value, room);
            let (place, large) = placed.inspect_err(|_| {
                if verb == Verb::Set {
                    self.delete(key, None, room);
                }
            })?;
            let (nth, hash) = self.hash(key);
            let mut entry = Entry::new(place, hash, large, self.clock.now());
            if meta.won {
                entry.access |= TOKEN;
            }
            let mut shard = self.shard(nth);
            let old = self.locate(&mut shard, hash, key, room);
            let outcome = may_store(verb, &meta, old.as_ref());
            if let (Outcome::Stored, Some(old), true) = (outcome, &old, meta.allow_stale) {
                if meta.cas.is_some_and(|cas| cas != old.head.cas) {
                    if head.exptime != old.head.exptime {
                        drop(shard);
                        self.drop_item(entry, head.total());
                        (meta.exptime, meta.new_cas) = (old.head.exptime, Some(head.cas));
                        continue;
                    }
                    entry.access |= STALE | old.entry.access & TOKEN;
                }
            }
            let gone = match (outcome, old) {
                (Outcome::Stored, Some(old)) => {
                    *shard.at_mut(old.at) = entry;
                    Some((old.entry, old.head.total()))
                }
                (Outcome::Stored, None) => {
                    self.insert(&mut shard, entry);
                    None
                }
                (_, old) => {
                    if let (Some(old), Verb::Add) = (old, verb) {
                        shard.at_mut(old.at).touch(self.clock.now());
                    }
                    Some((entry, head.total()))
                }
            };
            drop(shard);
            if let Some((entry, len)) = gone {
                self.drop_item(entry, len);
            }
            let cas = if outcome == Outcome::Stored { head.cas } else { 0 };
            return Ok(Stored { outcome, cas, len: head.len });
        }
    }

    fn insert(&self, shard: &mut super::Shard, entry: Entry) {
        let before = shard.bytes();
        shard.insert(entry);
        self.used.fetch_add((shard.bytes() - before) as i64, Ordering::Relaxed);
    }

    /// Appends and prepends.
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
                let stored = self.put(key, Verb::Add, *meta, value, room)?;
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

    /// Stores a value in place of the item that was found, if that is still as it was. `None`: it
    /// is not.
    fn exchange(
        &self,
        key: &[u8],
        found: &Found,
        meta: &Meta,
        value: &[u8],
        room: &mut Room,
    ) -> Result<Option<Head>, Refused> {
        let head = self.head(key, meta, value.len());
        let (place, large) = self.place(&head, key, value, room)?;
        let (nth, hash) = self.hash(key);
        let mut shard = self.shard(nth);
        let old = self.locate(&mut shard, hash, key, room);
        let is_same = |old: &Found| old.entry.place == found.entry.place && old.head == found.head;
        let new = Entry::new(place, hash, large, self.clock.now());
        let gone = match old.filter(is_same) {
            Some(old) => {
                *shard.at_mut(old.at) = new;
                (old.entry, old.head.total(), Some(head))
            }
            None => (new, head.total(), None),
        };
        drop(shard);
        self.drop_item(gone.0, gone.1);
        Ok(gone.2)
    }

    /// Removes an item; with `cas`, only one of that number.
    pub fn delete(&self, key: &[u8], cas: Option<u64>, room: &mut Room) -> Changed {
        let (nth, hash) = self.hash(key);
        let mut shard = self.shard(nth);
        let Some(found) = self.locate(&mut shard, hash, key, room) else {
            return Changed::NotFound;
        };
        if cas.is_some_and(|cas| cas != found.head.cas) {
            return Changed::Exists;
        }
        let gone = shard.remove(found.at);
        drop(shard);
        self.drop_item(gone, found.head.total());
        Changed::Done(found.head, 0)
    }

    /// Marks an item stale, with a new number: the next reader is told to make it anew.
    pub fn make_stale(&self, key: &[u8], meta: &Meta, ttl: bool, room: &mut Room) -> Changed {
        let (nth, hash) = self.hash(key);
        let mut shard = self.shard(nth);
        let Some(mut found) = self.locate(&mut shard, hash, key, room) else {
            return Changed::NotFound;
        };
        if meta.cas.is_some_and(|cas| cas != found.head.cas) {
            return Changed::Exists;
        }
        found.head.cas = meta.new_cas.unwrap_or_else(|| self.next_cas());
        if ttl {
            found.head.exptime = meta.exptime;
        }
        if self.rewrite_head(&mut shard, &found, room).is_none() {
            return Changed::NotFound;
        }
        let entry = shard.at_mut(found.at);
        entry.access = entry.access & !TOKEN | STALE;
        Changed::Done(found.head, 0)
    }

    /// Leaves an item without its value; marked stale, if `meta` says so.
    ///
    /// # Errors
    /// [`Refused`].
    pub fn clear(&self, key: &[u8], meta: &Meta, room: &mut Room) -> Result<Changed, Refused> {
        loop {
            let (mut found, quiet) = (None, Look { quiet: true, ..Look::default() });
            self.get(key, quiet, room, &mut Vec::new(), |item, _, _| {
                found = Some(*item);
                false
            });
            let Some(found) = found else { return Ok(Changed::NotFound) };
            if meta.cas.is_some_and(|cas| cas != found.head.cas) {
                return Ok(Changed::Exists);
            }
            let new = Meta { new_cas: meta.new_cas.or(Some(found.head.cas)), ..*meta };
            if let Some(head) = self.exchange(key, &found, &new, b"", room)? {
                return Ok(Changed::Done(head, 0));
            }
        }
    }

    /// Gives an item another end.
    pub fn touch(&self, key: &[u8], exptime: u32, room: &mut Room) -> Option<()> {
        let look = Look { touch: Some(exptime), ..Look::default() };
        self.get(key, look, room, &mut Vec::new(), |_, _, _| false)
    }

    /// Counts an item that is a number up or down.
    ///
    /// # Errors
    /// [`Refused`].
    pub fn count(&self, key: &[u8], how: &Count, room: &mut Room) -> Result<Changed, Refused> {
        let mut old = Vec::new();
        loop {
            old.clear();
            let (mut found, quiet) = (None, Look { quiet: true, ..Look::default() });
            self.get(key, quiet, room, &mut old, |item, _, _| {
                found = Some(*item);
                item.head.len as usize <= DIGITS_MAX
            });
            let Some(found) = found else { return Ok(Changed::NotFound) };
            if how.cas.is_some_and(|cas| cas != found.head.cas) {
                return Ok(Changed::Exists);
            }
            let Some(number) = number(&old) else { return Ok(Changed::NotNumeric) };
            let number = match how.down {
                true => number.saturating_sub(how.delta),
                false => number.wrapping_add(how.delta),
            };
            let mut digits = number.to_string();
            // As memcached: a number never gets shorter in its place.
            while digits.len() < old.len() {
                digits.push(' ');
            }
            let exptime = how.exptime.unwrap_or(found.head.exptime);
            let flags = found.head.flags;
            let meta = Meta { flags, exptime, new_cas: how.new_cas, ..Meta::default() };
            if let Some(head) = self.exchange(key, &found, &meta, digits.as_bytes(), room)? {
                return Ok(Changed::Done(head, number));
            }
        }
    }

    /// Drops all items: now, or once the clock is at `at`. What is dropped gives its place up as
    /// it is met.
    pub fn flush(&self, at: Option<u32>) {
        self.flush_at.store(at.unwrap_or(0), Ordering::Relaxed);
        if at.is_none() {
            for nth in 0..self.shards.len() {
                self.shard(nth).mark_all(FLUSHED);
            }
        }
    }

    /// Counts what was refused before its value came.
    pub(crate) fn refuse_too_large(&self) {
        count(&self.events.too_large);
    }

    /// Bytes that an item may have, its key and head with it.
    #[must_use]
    pub fn item_bytes(&self) -> u64 {
        self.item_bytes
    }
}

/// What a number's digits say; blanks may follow them.
fn number(value: &[u8]) -> Option<u64> {
    let end = value.iter().rposition(|byte| *byte != b' ').map_or(0, |last| last + 1);
    let digits = std::str::from_utf8(&value[..end]).ok()?;
    if digits.starts_with('+') {
        return None;
    }
    digits.parse().ok()
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
