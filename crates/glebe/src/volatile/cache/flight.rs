//! [`Flight`]: where threads wait until something has happened to an item.
//!
//! Made by the first that waits, and done with when it lands. A value that could not be kept is
//! handed to those who wait, so that it is built once for all of them. Its state changes under the
//! cache's lock.

use std::sync::Arc;

use crate::sync::{lock, Condvar, Mutex, MutexGuard};

/// A value in ordinary memory.
pub(super) type Handed<V> = Arc<Vec<V>>;

#[derive(Debug)]
enum State<V> {
    UnderWay,
    /// With a value for whoever waited, or none: then they look again.
    Landed(Option<Handed<V>>),
}

#[derive(Debug)]
pub(super) struct Flight<V> {
    woken: Condvar,
    state: Mutex<State<V>>,
}

impl<V> Default for Flight<V> {
    fn default() -> Self {
        Self { woken: Condvar::new(), state: Mutex::new(State::UnderWay) }
    }
}

impl<V> Flight<V> {
    /// Wakes all who wait.
    pub(super) fn land(&self, handed: Option<Handed<V>>) {
        *lock(&self.state) = State::Landed(handed);
        self.woken.notify_all();
    }

    /// Waits until it lands; what is handed over. Without the cache's lock.
    pub(super) fn wait(&self) -> Option<Handed<V>> {
        let mut state = lock(&self.state);
        loop {
            if let State::Landed(handed) = &*state {
                return handed.clone();
            }
            state = wait(&self.woken, state);
        }
    }
}

fn wait<'a, T>(woken: &Condvar, guard: MutexGuard<'a, T>) -> MutexGuard<'a, T> {
    woken.wait(guard).unwrap_or_else(|poisoned| poisoned.into_inner())
}
