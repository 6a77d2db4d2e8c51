//! [`Cache`]: values by key that the kernel may take when memory is short.
//!
//! A cache owns a region and a [`Table`] of each entry's pages. An entry that lost a page is lost
//! as a whole. Recently used entries are *hot*: unmarked, up to [`CacheOptions::hot`], because an
//! unmark and a mark at each hit would cost as much as several reads. The entry hot for longest
//! is marked first, unless it was used while hot.
//!
//! Lock: one, held during no builder and no call on the region. The `Hash`, `Eq` and `Clone` of
//! keys run under the lock and must not call the cache.

mod building;
mod bytes;
mod entry;
mod error;
mod flight;
mod fork;
mod lookup;
mod options;
mod stats;
mod table;
#[cfg(test)]
mod tests;

pub use entry::Entry;
pub use error::BuildError;
pub use options::CacheOptions;
pub use stats::Stats as CacheStats;

use std::borrow::Borrow;
use std::hash::Hash;
use std::sync::Arc;

use bytemuck::Pod;

use super::{Engine, Error, Priority, Refills, Region};
use bytes::range_of;
use glebe_os::extent::Extent;
use glebe_os::internal::stats::Histogram;
use glebe_os::internal::sync::{lock, Mutex, MutexGuard};
use glebe_os::internal::sys::page_size;
use glebe_os::internal::sys::processes::atfork;
use glebe_os::units::{Bytes, Pages};
use stats::{Counter, Counts};
use table::{Id, Table};

/// Values by key that the kernel may free, and that are built again when needed.
///
/// | what you have | what to use |
/// |---|---|
/// | values that can be built again, found by a key | a `Cache` |
/// | such values, built once for several processes | a [`SharedCache`](super::SharedCache) |
/// | a large buffer whose single pages may be repaired | a [`Region`] |
/// | memory of a file that several processes use | [`Shared`](super::Shared) |
/// | values that cannot be built again, or not in time | ordinary memory |
///
/// ```
/// use std::convert::Infallible;
/// use glebe_volatile::units::Bytes;
/// use glebe_volatile::Cache;
///
/// let squares = Cache::<u64, u64>::new(Bytes::mib(64))?;
/// let build = |squares: &mut [u64]| {
///     (0_u64..).zip(squares).for_each(|(n, square)| *square = n * n);
///     Ok::<_, Infallible>(())
/// };
/// let entry = squares.get_or_build(1000, 1000, build)?;
/// assert_eq!(entry[12], 144);
/// drop(entry); // The kernel may take the value once the program uses others.
/// assert!(squares.get(&1000).is_none_or(|entry| entry[12] == 144));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// A child of fork(2) has a copy. In a child of clone(2) without the C library, a cache stays
/// empty.
#[derive(Debug)]
pub struct Cache<K, V> {
    /// Dropped first, because forks find the table through this entry.
    _entry: fork::ListedTable,
    region: Arc<Region>,
    table: Arc<Mutex<Table<K, V>>>,
    counts: Counts,
    builds: Histogram,
    hot: Pages,
    refills: Refills,
}

const _: () = {
    const fn shareable<T: Send + Sync>() {}
    shareable::<Cache<String, u8>>();
    shareable::<Entry<'static, String, u8>>();
};

impl<K: Hash + Eq, V> Cache<K, V> {
    /// Returns default options.
    pub fn options() -> CacheOptions<K, V> {
        CacheOptions::default()
    }

    /// Returns the bytes of addresses for kept values.
    #[must_use]
    pub fn addresses(&self) -> Bytes {
        self.region.len()
    }

    /// Returns the engine.
    #[must_use]
    pub fn engine(&self) -> Engine {
        self.region.engine()
    }

    /// Returns the number of entries, lost ones included; 0 in a process cloned without the C
    /// library.
    #[must_use]
    pub fn len(&self) -> usize {
        self.lock().map_or(0, |table| table.len())
    }

    /// Returns the statistics.
    #[must_use]
    pub fn stats(&self) -> CacheStats {
        let (kept, hot, marked) = self.lock().map_or((0, 0, 0), |table| table.pages());
        CacheStats {
            kept: Pages::new(kept),
            hot: Pages::new(hot),
            marked: Pages::new(marked),
            total: self.addresses().pages_down(page_size()),
            build: self.builds.snapshot(),
            ..self.counts.sum()
        }
    }

    /// Marks all unpinned entries, for programs that become idle.
    pub fn offer_all(&self) {
        self.offer(0);
    }

    /// Drops the contents of all marked entries. Returns the bytes dropped.
    ///
    /// # Errors
    /// As [`Region::drop_now`].
    pub fn drop_marked(&self) -> Result<Bytes, Error> {
        self.region.drop_now(Bytes::ZERO..self.region.len())
    }

    fn offer(&self, most: u64) {
        while let Some(id) = self.lock().and_then(|mut table| table.oldest_young(most)) {
            self.offer_one(id);
        }
    }

    fn offer_one(&self, id: Id) {
        let Some(mut table) = self.lock() else { return };
        let (place, priority) = (table.item(id).place, table.item(id).priority);
        drop(table);
        let is_marked =
            place.is_none_or(|place| self.region.mark(range_of(place), priority).is_ok());
        let Some(mut table) = self.lock() else { return };
        if is_marked && table.item(id).is_listed {
            table.set_marked(id);
            let flight = table.item(id).flight.take();
            drop(table);
            flight.inspect(|flight| flight.land(None));
        } else {
            drop(table);
            self.give_up(id);
        }
    }

    fn give_up(&self, id: Id) {
        let Some(mut table) = self.lock() else { return };
        table.unlist(id);
        let place = table.item(id).place;
        drop(table);
        let is_back = place.is_some_and(|place| self.release(place));
        let Some(mut table) = self.lock() else { return };
        let gone = table.take_out(id);
        gone.place.filter(|_| is_back).inspect(|place| table.put_back(*place));
        drop(table);
        gone.flight.inspect(|flight| flight.land(None));
    }

    /// Marks and drops a place, or unmarks it after a refusal (locked memory). Returns true if the
    /// place is reusable.
    fn release(&self, place: Extent) -> bool {
        let range = range_of(place);
        let marked = self.region.mark(range.clone(), Priority::LOWEST);
        let released = marked.and_then(|()| self.region.drop_now(range.clone()).map(drop));
        let is_back = released.is_ok() || self.region.unmark(range).is_ok();
        if !is_back {
            self.counts.add(Counter::Stuck, place.len());
        }
        is_back
    }

    fn unpin(&self, id: Id) {
        let Some(mut table) = self.lock() else { return };
        let ends = table.unpin(id);
        let next = if ends { Some(id) } else { table.oldest_young(self.hot.get()) };
        drop(table);
        match next {
            Some(id) if ends => self.give_up(id),
            Some(id) => {
                self.offer_one(id);
                self.offer(self.hot.get());
            }
            None => {}
        }
    }

    /// Returns `None` in a process cloned without the C library, where the lock may stay locked.
    #[inline]
    fn lock(&self) -> Option<MutexGuard<'_, Table<K, V>>> {
        if atfork::is_without_steps() {
            return None;
        }
        Some(lock(&self.table))
    }
}

impl<K: Hash + Eq + Clone + Send + 'static, V: Pod + Send + Sync> Cache<K, V> {
    /// Makes a cache with default options. Unused addresses cost little: `addresses` may be most of
    /// the machine's memory.
    ///
    /// # Errors
    /// As [`CacheOptions::build`].
    pub fn new(addresses: Bytes) -> Result<Self, Error> {
        Self::options().build(addresses)
    }

    /// Removes an entry. Returns true if it existed. An [`Entry`] in use keeps its value.
    pub fn remove<Q: Hash + Eq + ?Sized>(&self, key: &Q) -> bool
    where
        K: Borrow<Q>,
    {
        let Some(mut table) = self.lock() else { return false };
        let Some(id) = table.find(key) else { return false };
        let goes = table.begin_removal(id);
        drop(table);
        self.counts.add(Counter::Removed, 1);
        if goes {
            self.give_up(id);
        }
        true
    }

    /// Removes all entries like [`Cache::remove`].
    pub fn clear(&self) {
        let Some(mut table) = self.lock() else { return };
        self.counts.add(Counter::Removed, table.len() as u64);
        let listed = table.listed().into_iter();
        let go: Vec<Id> = listed.filter(|id| table.begin_removal(*id)).collect();
        drop(table);
        go.into_iter().for_each(|id| self.give_up(id));
    }
}

impl<K, V> Drop for Cache<K, V> {
    /// Leaks the table in a process cloned without the C library, because it may be half changed.
    fn drop(&mut self) {
        if atfork::is_without_steps() {
            std::mem::forget(Arc::clone(&self.table));
        }
    }
}

/// Returns the cache's region.
pub fn region_of<K, V>(cache: &Cache<K, V>) -> &Arc<Region> {
    &cache.region
}
