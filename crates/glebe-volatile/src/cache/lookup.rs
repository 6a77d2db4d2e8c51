//! A hit unmarks and pins the item; a miss builds or returns nothing. A thread waits for another
//! thread's build or move without the cache's lock.

use std::borrow::Borrow;
use std::hash::Hash;
use std::thread;

use bytemuck::Pod;

use super::bytes::range_of;
use super::entry::{Entry, Value};
use super::flight::Handed;
use super::stats::Counter;
use super::table::{Found, Id, Phase, Table};
use super::{BuildError, Cache};
use glebe_os::extent::Extent;
use glebe_os::internal::sync::MutexGuard;

enum Rescued<'a, K: Hash + Eq, V> {
    Whole(Entry<'a, K, V>),
    Lost,
    Refused,
}

impl<K: Hash + Eq + Clone + Send + 'static, V: Pod + Send + Sync> Cache<K, V> {
    /// Returns the pinned entry of a key; `None` if the entry is missing, being built, lost, or
    /// cannot be unmarked.
    pub fn get<Q: Hash + Eq + ?Sized>(&self, key: &Q) -> Option<Entry<'_, K, V>>
    where
        K: Borrow<Q>,
    {
        let entry = self.find_whole(key);
        if entry.is_none() {
            self.counts.add(Counter::Misses, 1);
            self.counts.add(Counter::Told, 1);
        }
        entry
    }

    fn find_whole<Q: Hash + Eq + ?Sized>(&self, key: &Q) -> Option<Entry<'_, K, V>>
    where
        K: Borrow<Q>,
    {
        loop {
            let mut table = self.lock()?;
            match table.look(key) {
                Found::Nothing | Found::Building(_) => return None,
                Found::Safe(id) => return Some(self.hit(table, id)),
                Found::Moving(id) => drop(self.wait(table, id)),
                Found::Marked(id) => match self.rescue(table, id) {
                    Rescued::Whole(entry) => return Some(entry),
                    Rescued::Lost | Rescued::Refused => {
                        self.give_up(id);
                        return None;
                    }
                },
            }
        }
    }

    /// Returns the pinned entry of a key, or builds its value: `build` gets `count` zeros. If
    /// several threads miss a key, one builds and the others wait. Builds in ordinary memory if the
    /// cache has no room or [`refills`](super::CacheOptions::refills) are withheld. An existing
    /// entry keeps its length.
    ///
    /// A builder may use the cache, except for its own key. If the builder fails or panics, a
    /// waiting thread builds.
    ///
    /// # Errors
    /// [`BuildError::Builder`], [`BuildError::TooLong`], [`BuildError::Recursion`],
    /// [`BuildError::NoMemory`].
    pub fn get_or_build<E>(
        &self,
        key: K,
        count: usize,
        build: impl FnOnce(&mut [V]) -> Result<(), E>,
    ) -> Result<Entry<'_, K, V>, BuildError<E>> {
        self.check_length(count)?;
        loop {
            let Some(mut table) = self.lock() else {
                self.counts.add(Counter::Misses, 1);
                return self.build_apart(None, count, build);
            };
            match table.look(&key) {
                Found::Safe(id) => return Ok(self.hit(table, id)),
                Found::Moving(id) => drop(self.wait(table, id)),
                Found::Building(id) if table.is_in_circle(thread::current().id(), id) => {
                    drop(table);
                    self.counts.add(Counter::Misses, 1);
                    self.counts.add(Counter::Refused, 1);
                    return Err(BuildError::Recursion);
                }
                Found::Building(id) => {
                    if let Some(values) = self.wait(table, id) {
                        self.counts.add(Counter::Misses, 1);
                        self.counts.add(Counter::Handed, 1);
                        return Ok(Entry::new(self, Value::Handed(values)));
                    }
                }
                Found::Marked(id) => match self.rescue(table, id) {
                    Rescued::Whole(entry) => return Ok(entry),
                    Rescued::Lost => {
                        if let Some(place) = self.begin_again(id, count) {
                            self.counts.add(Counter::Misses, 1);
                            return self.build_in_place(id, place, count, build);
                        }
                        self.give_up(id);
                    }
                    Rescued::Refused => self.give_up(id),
                },
                Found::Nothing => {
                    self.counts.add(Counter::Misses, 1);
                    let id = table.add(key, count, thread::current().id());
                    drop(table);
                    return self.build_new(id, count, build);
                }
            }
        }
    }

    fn check_length<E>(&self, count: usize) -> Result<(), BuildError<E>> {
        let limit = self.addresses();
        match count.checked_mul(size_of::<V>()) {
            Some(bytes) if bytes <= limit.as_usize() => Ok(()),
            _ => {
                self.counts.add(Counter::Misses, 1);
                self.counts.add(Counter::Refused, 1);
                Err(BuildError::TooLong { count, item_bytes: size_of::<V>(), limit })
            }
        }
    }

    #[inline]
    fn hit(&self, mut table: MutexGuard<'_, Table<K, V>>, id: Id) -> Entry<'_, K, V> {
        let item = table.item(id);
        let (place, count, nanos) = (item.place, item.count, item.build_nanos);
        drop(table);
        self.counts.add(Counter::Hits, 1);
        self.counts.add(Counter::Saved, nanos);
        let place = place.expect("a safe item has a place");
        Entry::new(self, Value::Kept(id, place, count))
    }

    fn rescue(&self, mut table: MutexGuard<'_, Table<K, V>>, id: Id) -> Rescued<'_, K, V> {
        let place = table.item(id).place.expect("a marked item has a place");
        drop(table);
        let Ok(lost) = self.region.unmark(range_of(place)) else { return Rescued::Refused };
        if !lost.is_empty() {
            self.counts.add(Counter::Purges, 1);
            return Rescued::Lost;
        }
        let Some(mut table) = self.lock() else { return Rescued::Refused };
        let item = table.item(id);
        item.phase = Phase::Safe;
        let flight = item.flight.take();
        table.pin(id);
        let entry = self.hit(table, id);
        flight.inspect(|flight| flight.land(None));
        Rescued::Whole(entry)
    }

    fn begin_again(&self, id: Id, count: usize) -> Option<Extent> {
        let mut table = self.lock()?;
        let item = table.item(id);
        if !item.is_listed || item.count != count || !self.refills.are_allowed() {
            return None;
        }
        item.phase = Phase::Building(thread::current().id());
        let (place, flight) = (item.place, item.flight.take());
        drop(table);
        // `get` need not wait for this builder.
        flight.inspect(|flight| flight.land(None));
        self.counts.add(Counter::Rebuilds, 1);
        place
    }

    fn wait(&self, mut table: MutexGuard<'_, Table<K, V>>, id: Id) -> Option<Handed<V>> {
        let by = thread::current().id();
        let flight = table.begin_wait(by, id);
        drop(table);
        let handed = flight.wait();
        if let Some(mut table) = self.lock() {
            table.end_wait(by);
        }
        handed
    }
}
