//! Deletes, touches and empties items, marks items stale, and changes counters.
//!
//! Counting and emptying read the old item, release the lock, and start over if the item has
//! changed since. The other changes keep the lock.

use std::sync::atomic::Ordering;

use super::shard::{FLUSHED, STALE, TOKEN};
use super::{Head, Look, Meta, Refused, Room, Store};

const DIGITS_MAX: usize = 20;

/// A change of a counter.
#[derive(Clone, Copy, Debug, Default)]
pub struct Count {
    /// Amount to add or subtract.
    pub delta: u64,
    /// Subtracts instead of adding.
    pub down: bool,
    /// CAS number that the item must have.
    pub cas: Option<u64>,
    /// New CAS number; `None`: the store's next.
    pub new_cas: Option<u64>,
    /// New expiry time by the store's clock.
    pub exptime: Option<u32>,
}

/// The result of a change.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Changed {
    /// The head, and a counter's new value; 0 for other changes.
    Done(Head, u64),
    /// The key is missing.
    NotFound,
    /// The CAS number differs.
    Exists,
    /// The value is not a number.
    NotNumeric,
}

impl Store {
    /// Removes an item; with `cas`, only if its CAS number is equal.
    pub fn delete(&self, key: &[u8], cas: Option<u64>, room: &mut Room) -> Changed {
        let (nth, hash) = self.hash(key);
        let mut shard = self.shard(nth);
        let Some(found) = self.locate(&mut shard, (hash, key), false, room) else {
            return Changed::NotFound;
        };
        if cas.is_some_and(|cas| cas != found.head.cas) {
            return Changed::Exists;
        }
        let gone = shard.remove(found.at);
        let large = self.release(&mut shard, gone);
        drop(shard);
        if let Some(large) = large {
            self.drop_large(large);
        }
        Changed::Done(found.head, 0)
    }

    /// Marks an item stale, with a new CAS number and, if `ttl`, a new expiry time. The next reader
    /// must renew the item.
    pub fn make_stale(&self, key: &[u8], meta: &Meta, ttl: bool, room: &mut Room) -> Changed {
        let (nth, hash) = self.hash(key);
        let mut shard = self.shard(nth);
        let Some(mut found) = self.locate(&mut shard, (hash, key), false, room) else {
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

    /// Empties an item's value. Flags, expiry time and CAS number come from `meta`; without a new
    /// CAS number, the old one stays.
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

    /// Changes the expiry time. Returns true if the item is large, `None` for a miss.
    pub fn touch(&self, key: &[u8], exptime: u32, room: &mut Room) -> Option<bool> {
        let look = Look { touch: Some(exptime), ..Look::default() };
        let mut is_large = false;
        self.get(key, look, room, &mut Vec::new(), |item, _, _| {
            is_large = item.is_large();
            false
        })?;
        Some(is_large)
    }

    /// Changes a counter: adding wraps around, subtracting ends at 0.
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
            // As in memcached, blanks pad a shorter number.
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

    /// Flushes all items, now or at time `at`. The store frees a flushed item when a call next
    /// finds the item.
    pub fn flush(&self, at: Option<u32>) {
        self.flush_at.store(at.unwrap_or(0), Ordering::Relaxed);
        if at.is_none() {
            for nth in 0..self.shards.len() {
                self.shard(nth).mark_all(FLUSHED);
            }
        }
    }
}

/// Parses digits, followed by optional blanks.
fn number(value: &[u8]) -> Option<u64> {
    let end = value.iter().rposition(|byte| *byte != b' ').map_or(0, |last| last + 1);
    let digits = std::str::from_utf8(&value[..end]).ok()?;
    if digits.starts_with('+') {
        return None;
    }
    digits.parse().ok()
}
