//! Builds values in the cache's region or in ordinary memory. Holds no lock while a builder runs.
//!
//! # Safety
//! A builder gets an unmarked part of the region that no other thread uses.
#![allow(unsafe_code)]

use std::hash::Hash;
use std::sync::Arc;
use std::time::Instant;

use bytemuck::Pod;

use super::bytes::{lend_zeroed, range_of};
use super::entry::{Entry, Value};
use super::stats::Counter;
use super::table::{Id, Phase, Room};
use super::{BuildError, Cache};
use glebe_os::extent::Extent;
use glebe_os::internal::sys::page_size;
use glebe_os::units::Bytes;

struct Building<'a, K: Hash + Eq, V> {
    cache: &'a Cache<K, V>,
    id: Option<Id>,
    since: Instant,
}

impl<'a, K: Hash + Eq, V> Building<'a, K, V> {
    fn begin(cache: &'a Cache<K, V>, id: Option<Id>) -> Self {
        Self { cache, id, since: Instant::now() }
    }

    fn end(mut self) -> (Option<Id>, u64) {
        let nanos = u64::try_from(self.since.elapsed().as_nanos()).unwrap_or(u64::MAX);
        self.cache.builds.record(nanos);
        self.cache.counts.add(Counter::Built, 1);
        let id = self.id.take();
        std::mem::forget(self);
        (id, nanos)
    }
}

impl<K: Hash + Eq, V> Drop for Building<'_, K, V> {
    fn drop(&mut self) {
        self.cache.counts.add(Counter::Failed, 1);
        let Some(id) = self.id else { return };
        let Some(mut table) = self.cache.lock() else { return };
        table.item(id).phase = Phase::Moving;
        drop(table);
        self.cache.give_up(id);
    }
}

impl<K: Hash + Eq + Clone + Send + 'static, V: Pod + Send + Sync> Cache<K, V> {
    pub(super) fn build_new<E>(
        &self,
        id: Id,
        count: usize,
        build: impl FnOnce(&mut [V]) -> Result<(), E>,
    ) -> Result<Entry<'_, K, V>, BuildError<E>> {
        let bytes = Bytes::new((count * size_of::<V>()) as u64);
        let pages = bytes.pages_up(page_size()).get().max(1);
        let place = self.refills.are_allowed().then(|| self.find_place(id, pages)).flatten();
        match place {
            Some(place) => self.build_in_place(id, place, count, build),
            None => self.build_apart(Some(id), count, build),
        }
    }

    fn find_place(&self, id: Id, pages: u64) -> Option<Extent> {
        self.take_room(id, pages).or_else(|| {
            // Hot entries may occupy the room.
            self.offer_all();
            self.take_room(id, pages)
        })
    }

    fn take_room(&self, id: Id, pages: u64) -> Option<Extent> {
        let Room { place, left_over, evicted } = self.lock()?.make_room(id, pages);
        self.counts.add(Counter::Evicted, evicted);
        for part in left_over {
            // If the drop fails, the kernel may still take the part.
            let _ = self.region.drop_now(range_of(part));
        }
        let is_unmarked = |place: &Extent| self.region.unmark(range_of(*place)).is_ok();
        let ready = place.filter(is_unmarked);
        if ready.is_none() {
            self.lock()?.take_place(id);
        }
        ready
    }

    pub(super) fn build_in_place<E>(
        &self,
        id: Id,
        place: Extent,
        count: usize,
        build: impl FnOnce(&mut [V]) -> Result<(), E>,
    ) -> Result<Entry<'_, K, V>, BuildError<E>> {
        let building = Building::begin(self, Some(id));
        // SAFETY: this thread builds the item, and no page of the place is marked.
        let built = unsafe { lend_zeroed(&self.region, place, count, build) };
        built.map_err(BuildError::Builder)?;
        let (_, nanos) = building.end();
        if let Some(mut table) = self.lock() {
            let item = table.item(id);
            (item.phase, item.build_nanos) = (Phase::Safe, nanos);
            let flight = item.flight.take();
            item.pins = 1;
            drop(table);
            flight.inspect(|flight| flight.land(None));
        }
        Ok(Entry::new(self, Value::Kept(id, place, count)))
    }

    pub(super) fn build_apart<E>(
        &self,
        id: Option<Id>,
        count: usize,
        build: impl FnOnce(&mut [V]) -> Result<(), E>,
    ) -> Result<Entry<'_, K, V>, BuildError<E>> {
        let building = Building::begin(self, id);
        let mut values = Vec::new();
        if values.try_reserve_exact(count).is_err() {
            let len = Bytes::new((count * size_of::<V>()) as u64);
            return Err(BuildError::NoMemory { len });
        }
        values.resize(count, V::zeroed());
        build(&mut values).map_err(BuildError::Builder)?;
        let values = Arc::new(values);
        let (id, _) = building.end();
        self.counts.add(Counter::NotKept, 1);
        if let (Some(id), Some(mut table)) = (id, self.lock()) {
            let gone = table.take_out(id);
            drop(table);
            gone.flight.inspect(|flight| flight.land(Some(Arc::clone(&values))));
        }
        Ok(Entry::new(self, Value::Handed(values)))
    }
}
