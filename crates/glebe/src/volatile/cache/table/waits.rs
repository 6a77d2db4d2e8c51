//! Who waits for which item, so that nobody waits for himself.
//!
//! A thread that builds may ask for what another builds, which may ask for what the first builds:
//! before a thread waits, the circle is looked for, under the cache's lock. Cost: O(threads that
//! wait) for each in the chain; no chain is longer than threads build.

use std::sync::Arc;
use std::thread::ThreadId;

use super::{Flight, Id, Phase, Table};

/// A thread that waits for an item.
#[derive(Debug)]
pub(super) struct Wait<V> {
    by: ThreadId,
    id: Id,
    flight: Arc<Flight<V>>,
}

impl<K, V> Table<K, V> {
    /// Whether a thread that waits for an item would wait for itself: its builder is the thread, or
    /// waits, over however many others, for what the thread builds.
    pub(in crate::volatile::cache) fn is_in_circle(&self, by: ThreadId, mut id: Id) -> bool {
        loop {
            let builder = match self.items[id].as_ref().map(|item| item.phase) {
                Some(Phase::Building(builder)) => builder,
                _ => return false,
            };
            if builder == by {
                return true;
            }
            let waiting = self.waits.iter().find(|wait| wait.by == builder && self.is_on(wait));
            let Some(wait) = waiting else { return false };
            id = wait.id;
        }
    }

    /// Whether what a thread waits for has not happened: else it has not woken up yet, and the id
    /// may be another item's.
    fn is_on(&self, wait: &Wait<V>) -> bool {
        let flight = self.items[wait.id].as_ref().and_then(|item| item.flight.as_ref());
        flight.is_some_and(|flight| Arc::ptr_eq(flight, &wait.flight))
    }

    /// A thread begins to wait for an item; the flight to wait for.
    pub(in crate::volatile::cache) fn begin_wait(
        &mut self,
        by: ThreadId,
        id: Id,
    ) -> Arc<Flight<V>> {
        let flight = Arc::clone(self.item(id).flight.get_or_insert_with(Arc::default));
        self.waits.push(Wait { by, id, flight: Arc::clone(&flight) });
        flight
    }

    /// A thread waits no more.
    pub(in crate::volatile::cache) fn end_wait(&mut self, by: ThreadId) {
        self.waits.retain(|wait| wait.by != by);
    }
}
