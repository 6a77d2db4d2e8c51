//! [`Cache`]: values by key that the kernel may take when memory is short, and that are built again
//! when they are asked for.
//!
//! Owns a region, and which entry has which pages of it ([`Table`]). The limit is not a size but
//! the memory of the machine or of the memory cgroup: a cache takes addresses, as many as it may
//! ever use, and marks what nobody uses, so that the kernel takes that before it swaps or kills. An
//! entry that lost a page is lost as a whole; what was left of it is given back or built over.
//!
//! What was asked for last is *hot*: not marked, up to [`CacheOptions::hot`]. A hit of a marked
//! entry costs an unmark and a mark, several times as much as to read it. Entries stop being hot
//! in the order in which they came, but for those asked for since, and so the kernel, which purges
//! in the order of marking, takes those first that were not asked for the longest.
//!
//! One lock, held for some instructions, and never while a builder runs or the kernel is called;
//! the code of keys, `Hash`, `Eq` and `Clone`, does run under it and must not call the cache.

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
use crate::extent::Extent;
use crate::stats::Histogram;
use crate::sync::{lock, Mutex, MutexGuard};
use crate::sys::{atfork, page_size};
use crate::units::{Bytes, Pages};
use bytes::range_of;
use stats::{Counter, Counts};
use table::{Id, Table};

/// Values by key that the kernel may take and that are built again then.
///
/// | what there is | take |
/// |---|---|
/// | values that can be built again, found by a key | a `Cache` |
/// | the same, built once for several processes | a [`SharedCache`](super::SharedCache) |
/// | a large buffer, of which single pages may be lost and mended | a [`Region`] |
/// | memory of a file, in use by several processes | [`Shared`](super::Shared) |
/// | values that nobody can build again, or that must never wait for a builder | ordinary memory |
///
/// ```
/// use std::convert::Infallible;
/// use glebe::units::Bytes;
/// use glebe::volatile::Cache;
///
/// let squares = Cache::<u64, u64>::new(Bytes::mib(64))?;
/// let build = |squares: &mut [u64]| {
///     (0_u64..).zip(squares).for_each(|(n, square)| *square = n * n);
///     Ok::<_, Infallible>(())
/// };
/// let entry = squares.get_or_build(1000, 1000, build)?;
/// assert_eq!(entry[12], 144);
/// drop(entry); // From here on the kernel may take it, once others were asked for.
/// assert!(squares.get(&1000).is_none_or(|entry| entry[12] == 144));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// Threads share a cache: it is `Send` and `Sync` where its keys are `Send`.
///
/// A child of fork(2) has a copy, as it has of other memory. One that clone(2) made without the C
/// library finds nothing in its cache and keeps nothing.
#[derive(Debug)]
pub struct Cache<K, V> {
    /// Gone before the rest: forks know of the lock by it.
    _entry: fork::Entry,
    /// Watched by a reclaimer too, which drops what is marked.
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
    /// What a cache can be like.
    pub fn options() -> CacheOptions<K, V> {
        CacheOptions::default()
    }

    /// The memory, for who drops what is marked.
    pub(crate) fn region(&self) -> &Arc<Region> {
        &self.region
    }

    /// Bytes of addresses.
    #[must_use]
    pub fn addresses(&self) -> Bytes {
        self.region.len()
    }

    /// The engine that knows what was lost.
    #[must_use]
    pub fn engine(&self) -> Engine {
        self.region.engine()
    }

    /// How many entries there are, those that the kernel took since among them. 0 in a process in
    /// which the lock may never be released.
    #[must_use]
    pub fn len(&self) -> usize {
        self.lock().map_or(0, |table| table.len())
    }

    /// The counters, and what there is now.
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

    /// Marks all that nobody pins, so that the kernel may take it, as a program does that will be
    /// idle, or was told that memory is short.
    pub fn offer_all(&self) {
        self.offer(0);
    }

    /// Drops the contents of all that is marked, as the kernel would under pressure. Returns how
    /// much was not dropped here before. The entries are found lost when they are asked for.
    ///
    /// # Errors
    /// As [`Region::drop_now`].
    pub fn drop_marked(&self) -> Result<Bytes, Error> {
        self.region.drop_now(Bytes::ZERO..self.region.len())
    }

    /// Marks young items, those that came first, until no more than so many pages of them are left.
    fn offer(&self, most: u64) {
        while let Some(id) = self.lock().and_then(|mut table| table.oldest_young(most)) {
            self.offer_one(id);
        }
    }

    /// Marks a moving item.
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

    /// Gives back the memory of a moving item, which ends; its place may be used again.
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

    /// Drops the contents of a place, which is marked then. Whether it may be used again: also
    /// where the kernel would not mark it, as where the process has locked its memory since.
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

    /// After the last use of a pinned item by the caller.
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

    /// The lock; none in a process in which it may never be released.
    #[inline]
    fn lock(&self) -> Option<MutexGuard<'_, Table<K, V>>> {
        if atfork::is_without_steps() {
            return None;
        }
        Some(lock(&self.table))
    }
}

impl<K: Hash + Eq + Clone + Send + 'static, V: Pod + Send + Sync> Cache<K, V> {
    /// A cache with so many bytes of addresses and default options. Addresses cost 8 bytes a page
    /// and no more, so they may be most of what the machine has as memory; for more than that the
    /// kernel may have no mapping.
    ///
    /// # Errors
    /// As [`CacheOptions::build`].
    pub fn new(addresses: Bytes) -> Result<Self, Error> {
        Self::options().build(addresses)
    }

    /// Removes an entry; whether there was one. Who has it pinned keeps it to the end; what is
    /// being built is still returned to its builder's caller.
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

    /// Removes all entries, as [`Cache::remove`] does one.
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
    /// In a process that was cloned without the C library another thread may have been changing the
    /// table: nothing of it is looked at.
    fn drop(&mut self) {
        if atfork::is_without_steps() {
            std::mem::forget(Arc::clone(&self.table));
        }
    }
}
