//! Records which thread waits for which item, because builders may want each other's values. A
//! builder looks for a circle before it waits. Lock: the cache's.

use std::sync::Arc;
use std::thread::ThreadId;

use super::{Flight, Id, Phase, Table};

#[derive(Debug)]
pub(super) struct Wait<V> {
    by: ThreadId,
    id: Id,
    flight: Arc<Flight<V>>,
}

impl<K, V> Table<K, V> {
    pub(in crate::cache) fn is_in_circle(&self, by: ThreadId, mut id: Id) -> bool {
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

    /// Compares flights: another item may get the id after the flight woke its waiters.
    fn is_on(&self, wait: &Wait<V>) -> bool {
        let flight = self.items[wait.id].as_ref().and_then(|item| item.flight.as_ref());
        flight.is_some_and(|flight| Arc::ptr_eq(flight, &wait.flight))
    }

    pub(in crate::cache) fn begin_wait(&mut self, by: ThreadId, id: Id) -> Arc<Flight<V>> {
        let flight = Arc::clone(self.item(id).flight.get_or_insert_with(Arc::default));
        self.waits.push(Wait { by, id, flight: Arc::clone(&flight) });
        flight
    }

    pub(in crate::cache) fn end_wait(&mut self, by: ThreadId) {
        self.waits.retain(|wait| wait.by != by);
    }
}
