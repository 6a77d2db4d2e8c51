//! What caches do around fork(2): their locks are held, so that the child has whole tables.
//!
//! Before: the list of caches is locked, then each cache's lock is taken. Nobody who holds a
//! cache's lock waits for another lock, or forks. After: they are released; in the child first
//! what another thread was building or moving there is forgotten, since no thread will end it.
//! What others had pinned stays pinned. The region follows by its own step.
//!
//! # Safety
//! The guards in the static are of locks that the pointers beside them keep alive; they are made
//! and dropped by the forking thread, and forks go one after the other.
#![allow(unsafe_code)]

use std::hash::Hash;
use std::mem::transmute;
use std::sync::{Arc, PoisonError, Weak};
use std::thread;

use super::table::Table;
use crate::error::OsError;
use crate::sync::{lock, Mutex, MutexGuard, StaticMutex, StaticMutexGuard};
use crate::sys::atfork;
use crate::volatile::follow_forks;

/// A cache's table behind its lock, of whatever types.
trait Lockable: Send + Sync {
    fn hold(self: Arc<Self>) -> Box<dyn Held>;
}

/// Such a lock while it is held, until this is dropped.
trait Held {
    fn follow_fork(&mut self);
}

/// The guard goes first.
struct HeldTable<K: 'static, V: 'static> {
    guard: MutexGuard<'static, Table<K, V>>,
    _table: Arc<Mutex<Table<K, V>>>,
}

impl<K: Hash + Eq + Send + 'static, V: Send + Sync + 'static> Lockable for Mutex<Table<K, V>> {
    fn hold(self: Arc<Self>) -> Box<dyn Held> {
        // SAFETY: the guard borrows from what `_table` keeps alive and is dropped before it.
        let guard: MutexGuard<'static, Table<K, V>> = unsafe { transmute(lock(&self)) };
        Box::new(HeldTable { guard, _table: self })
    }
}

impl<K: Hash + Eq, V> Held for HeldTable<K, V> {
    fn follow_fork(&mut self) {
        self.guard.follow_fork(thread::current().id());
    }
}

type List = Vec<Weak<dyn Lockable>>;

static LIST: StaticMutex<List> = StaticMutex::new(Vec::new());

/// What is held over a fork; the tables' locks go first.
struct AllHeld {
    tables: Vec<Box<dyn Held>>,
    list: Option<StaticMutexGuard<'static, List>>,
}

// SAFETY: as the file's head says, the guards stay with the forking thread.
unsafe impl Send for AllHeld {}

static HELD: StaticMutex<AllHeld> = StaticMutex::new(AllHeld { tables: Vec::new(), list: None });

/// A cache's place in the list; it leaves the list when this is dropped.
#[derive(Debug)]
pub(super) struct Entry(usize);

/// Adds the steps around fork(2) that a cache needs.
pub(super) fn follow() -> Result<(), OsError> {
    static STEP: atfork::Step = atfork::Step { prepare, parent, child };
    follow_forks()?;
    atfork::add(&STEP)
}

/// Lists a cache.
pub(super) fn enter<K, V>(table: &Arc<Mutex<Table<K, V>>>) -> Entry
where
    K: Hash + Eq + Send + 'static,
    V: Send + Sync + 'static,
{
    let listed: Arc<dyn Lockable> = Arc::<Mutex<Table<K, V>>>::clone(table);
    LIST.lock().unwrap_or_else(PoisonError::into_inner).push(Arc::downgrade(&listed));
    Entry(Arc::as_ptr(table).addr())
}

impl Drop for Entry {
    fn drop(&mut self) {
        // There the list may be locked for ever; and no fork looks at it any more.
        if !atfork::is_without_steps() {
            let mut list = LIST.lock().unwrap_or_else(PoisonError::into_inner);
            list.retain(|listed| listed.as_ptr().cast::<()>().addr() != self.0);
        }
    }
}

fn prepare() {
    let list = LIST.lock().unwrap_or_else(PoisonError::into_inner);
    let mut held = HELD.lock().unwrap_or_else(PoisonError::into_inner);
    held.tables.extend(list.iter().filter_map(Weak::upgrade).map(Lockable::hold));
    held.list = Some(list);
}

fn parent() {
    release(|_| {});
}

fn child() {
    release(|table| table.follow_fork());
}

fn release(first: impl Fn(&mut Box<dyn Held>)) {
    let mut held = HELD.lock().unwrap_or_else(PoisonError::into_inner);
    held.tables.iter_mut().for_each(first);
    // A table whose cache was dropped meanwhile ends without the locks of this file.
    let tables = std::mem::take(&mut held.tables);
    let list = held.list.take();
    drop(held);
    drop(tables);
    drop(list);
}
