//! [`SharedCache`] is a cache that a user's processes find by its name.

use glebe_lease::internal::PlaceUse;
use glebe_os::internal::hash::hash;
use glebe_os::units::Bytes;

use crate::error::CacheError;
use crate::long::Long;
use crate::options::SharedCacheOptions;
use crate::stats::{Counter, Counts, Stats};
use crate::store::Store;
use crate::table::{Entry, Table};

/// Longest key.
const KEY_MAX: usize = 64 << 10;
/// Longest value that a hit moves to the ring's front.
const RENEWED_MAX: usize = 64 << 10;

/// Values by key, both byte strings, for all processes of a user.
///
/// ```
/// use glebe_cache::SharedCache;
/// use glebe_cache::units::Bytes;
///
/// let cache = SharedCache::options().size(Bytes::mib(8)).open("a cache of the documentation")?;
/// cache.put(b"key", b"value")?;
/// let mut value = Vec::new();
/// assert!(cache.get(b"key", &mut value) && value == b"value");
/// assert!(cache.remove(b"key") && !cache.get(b"key", &mut value));
/// # cache.end()?;
/// # Ok::<(), glebe_cache::CacheError>(())
/// ```
///
/// Any value may vanish: the daemon takes memory for leases, and new values overwrite old ones. A
/// forked child uses the same cache. After the daemon's end the cache continues with the next
/// daemon, empty, if that has the same size for it. Calls then find nothing and store nothing. A
/// process notices the end of a killed daemon within 20 ms.
#[derive(Debug)]
pub struct SharedCache {
    name: String,
    store: Store,
    counts: Counts,
}

/// A value that [`SharedCache::lookup`] found.
#[derive(Debug)]
pub struct Found<'a> {
    store: &'a Store,
    table: Table<'a>,
    entry: Entry,
    long: Option<Long>,
    key: &'a [u8],
}

impl Found<'_> {
    /// Returns the length in bytes.
    #[must_use]
    #[allow(clippy::len_without_is_empty)]
    pub fn len(&self) -> usize {
        self.long.map_or(self.entry.value_len(), |long| long.len())
    }

    /// Copies the value into `value`, of [`len`](Found::len) bytes. Returns false if the value has
    /// vanished; then `value` has any bytes.
    #[must_use]
    pub fn copy(&self, value: &mut [u8]) -> bool {
        if let Some(long) = &self.long {
            return long.copy(self.store, value);
        }
        let is_whole = self.table.copy(&self.entry, value);
        if is_whole && value.len() <= RENEWED_MAX && self.table.is_old(&self.entry) {
            self.table.renew(&self.entry, self.key, value);
        }
        is_whole
    }
}

impl SharedCache {
    /// Returns default options.
    pub fn options() -> SharedCacheOptions {
        SharedCacheOptions::default()
    }

    pub(crate) fn new(name: &str, store: Store) -> Self {
        Self { name: name.to_owned(), store, counts: Counts::new() }
    }

    /// Opens the user's cache `name`, or makes it with default options.
    ///
    /// # Errors
    /// [`CacheError`].
    pub fn open(name: &str) -> Result<Self, CacheError> {
        Self::options().open(name)
    }

    /// Returns the cache's name.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Returns the cache's length in bytes. Parts of it may have no memory.
    #[must_use]
    pub fn size(&self) -> Bytes {
        Bytes::new(self.store.place().get() * self.store.count() as u64)
    }

    /// Returns true if the memory is the daemon's, false if it is a file's.
    #[must_use]
    pub fn is_of_daemon(&self) -> bool {
        matches!(self.store, Store::Daemon(_))
    }

    /// Returns the most bytes of a key with its value: an eighth of the cache, but at least a
    /// quarter of a place, and less than 4 GiB. The key has at most 64 KiB.
    #[must_use]
    pub fn limit(&self) -> usize {
        let place = self.store.place().as_usize();
        (self.size().as_usize() / 8).max(place / 4).min(u32::MAX as usize)
    }

    /// Copies the value of `key` into `value`. Without one returns false, and empties `value`.
    #[must_use]
    pub fn get(&self, key: &[u8], value: &mut Vec<u8>) -> bool {
        value.clear();
        let is_hit = self.lookup(key, |found| {
            value.resize(found.len(), 0);
            found.copy(value).then_some(())
        });
        if is_hit.is_none() {
            value.clear();
        }
        is_hit.is_some()
    }

    /// Calls `look` with the value of `key`, if there is one. `look` returns `None` if the copy
    /// failed.
    pub fn lookup<R>(&self, key: &[u8], look: impl FnOnce(Found<'_>) -> Option<R>) -> Option<R> {
        let hash = hash(self.store.seed(), key);
        let looked = self.store.with(self.store.place_of(hash), PlaceUse::Read, |part| {
            let table = Table::new(part);
            let entry = table.find(hash, key)?;
            let long = if entry.is_long() { Some(self.long(&table, &entry)?) } else { None };
            look(Found { store: &self.store, table, entry, long, key })
        });
        let looked = looked.flatten();
        self.counts.add(if looked.is_some() { Counter::Hits } else { Counter::Misses }, 1);
        looked
    }

    /// Stores a value, which replaces an older one. Returns false if there is no memory for it;
    /// then no older value is left, unless its memory cannot be reached: the daemon does not
    /// answer, or too many processes use the file.
    ///
    /// # Errors
    /// [`CacheError::TooLong`]; the key then has no value, unless its memory cannot be reached.
    pub fn put(&self, key: &[u8], value: &[u8]) -> Result<bool, CacheError> {
        let (len, limit) = (key.len().saturating_add(value.len()), self.limit());
        let (len, limit) = if key.len() > KEY_MAX { (key.len(), KEY_MAX) } else { (len, limit) };
        if len > limit {
            self.store.change(key, PlaceUse::Change, |table, hash| table.remove(hash));
            return Err(CacheError::TooLong { name: self.name.clone(), len, limit });
        }
        let is_long = value.len() > Long::MIN;
        let head = if is_long { Long::put(&self.store, value).map(|it| it.head()) } else { None };
        let is_lost = is_long && head.is_none();
        let wanted = if is_lost { PlaceUse::Change } else { PlaceUse::Fill };
        let value = head.as_ref().map_or(value, |head| head);
        let put = self.store.change(key, wanted, |table, hash| {
            if is_lost {
                table.remove(hash);
            }
            !is_lost && table.put(hash, key, value, is_long)
        });
        let is_kept = put == Some(true);
        self.counts.add(if is_kept { Counter::Stored } else { Counter::NotKept }, 1);
        Ok(is_kept)
    }

    /// Removes a value. Returns true if there was one.
    pub fn remove(&self, key: &[u8]) -> bool {
        let removed = self.store.change(key, PlaceUse::Change, |table, hash| {
            let is_there = table.find(hash, key).is_some();
            table.remove(hash);
            is_there
        });
        self.counts.add(Counter::Removed, u64::from(removed == Some(true)));
        removed == Some(true)
    }

    /// Ends the cache of this name. Processes that have it open find it empty. Without a daemon,
    /// they go on with a file that no later process finds, until they open the cache again.
    ///
    /// # Errors
    /// [`CacheError`].
    pub fn end(&self) -> Result<(), CacheError> {
        self.store.end()
    }

    /// Returns this process's counters.
    #[must_use]
    pub fn stats(&self) -> Stats {
        self.counts.sum()
    }

    /// Returns a long value's description. Another process may have written a wrong length.
    fn long(&self, table: &Table<'_>, entry: &Entry) -> Option<Long> {
        let mut head = [0; Long::HEAD];
        let long = table.copy(entry, &mut head).then(|| Long::of_head(head));
        long.filter(|long| long.len() <= self.limit())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use glebe_testing::Scratch;

    #[test]
    fn a_long_value_of_a_foreign_length_is_a_miss() {
        let scratch = Scratch::in_memory("glebe-cache");
        let options = SharedCache::options().size(Bytes::mib(8)).folder(scratch.path());
        let cache = options.socket(scratch.path().join("no daemon")).open("foreign").unwrap();
        for len in [u64::MAX, 1 << 62, cache.limit() as u64 + 1] {
            let head = [[7; 8], len.to_le_bytes()].concat();
            let put = |table: &Table<'_>, hash| table.put(hash, b"key", &head, true);
            assert_eq!(cache.store.change(b"key", PlaceUse::Fill, put), Some(true));
            assert!(!cache.get(b"key", &mut Vec::new()), "{len}");
            assert!(cache.lookup(b"key", |_| Some(())).is_none(), "{len}");
        }
    }
}
