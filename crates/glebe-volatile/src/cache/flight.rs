//! [`Flight`] lets threads wait for a change of an item, and gives them a value that the cache
//! could not keep.

use std::sync::Arc;

use glebe_os::internal::sync::{lock, Condvar, Mutex, MutexGuard};

pub(super) type Handed<V> = Arc<Vec<V>>;

#[derive(Debug)]
enum State<V> {
    UnderWay,
    /// Without a value, waiters look up the key again.
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
    pub(super) fn land(&self, handed: Option<Handed<V>>) {
        *lock(&self.state) = State::Landed(handed);
        self.woken.notify_all();
    }

    /// Blocks, so the caller must not hold the cache's lock.
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
