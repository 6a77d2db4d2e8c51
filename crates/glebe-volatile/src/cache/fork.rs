//! Keeps the tables of caches consistent across fork(2).
//!
//! Lock order: the list of caches, then each cache. The child removes items that other threads were
//! building or moving. Pins of other threads remain.
//!
//! # Safety
//! A `HeldTable` keeps the mutex of its `'static` guard alive. The forking thread makes and drops
//! the guards, and only one fork runs at a time.
#![allow(unsafe_code)]

use std::hash::Hash;
use std::mem::transmute;
use std::sync::{Arc, PoisonError, Weak};
use std::thread;

use super::table::Table;
use crate::follow_forks;
use glebe_os::error::OsError;
use glebe_os::internal::sync::{lock, Mutex, MutexGuard, StaticMutex, StaticMutexGuard};
use glebe_os::internal::sys::processes::atfork;

trait Lockable: Send + Sync {
    fn hold(self: Arc<Self>) -> Box<dyn Held>;
}

trait Held {
    fn follow_fork(&mut self);
}

struct HeldTable<K: 'static, V: 'static> {
    guard: MutexGuard<'static, Table<K, V>>,
    _table: Arc<Mutex<Table<K, V>>>,
}

impl<K: Hash + Eq + Send + 'static, V: Send + Sync + 'static> Lockable for Mutex<Table<K, V>> {
    fn hold(self: Arc<Self>) -> Box<dyn Held> {
        // SAFETY: `_table` keeps the guard's mutex alive, and is dropped after the guard.
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

struct AllHeld {
    tables: Vec<Box<dyn Held>>,
    list: Option<StaticMutexGuard<'static, List>>,
}

// SAFETY: the forking thread makes and drops the guards.
unsafe impl Send for AllHeld {}

static HELD: StaticMutex<AllHeld> = StaticMutex::new(AllHeld { tables: Vec::new(), list: None });

#[derive(Debug)]
pub struct ListedTable(usize);

pub(super) fn follow() -> Result<(), OsError> {
    static STEP: atfork::Step = atfork::Step { prepare, parent, child };
    follow_forks()?;
    atfork::add(&STEP)
}

pub(super) fn enter<K, V>(table: &Arc<Mutex<Table<K, V>>>) -> ListedTable
where
    K: Hash + Eq + Send + 'static,
    V: Send + Sync + 'static,
{
    let listed: Arc<dyn Lockable> = Arc::<Mutex<Table<K, V>>>::clone(table);
    LIST.lock().unwrap_or_else(PoisonError::into_inner).push(Arc::downgrade(&listed));
    ListedTable(Arc::as_ptr(table).addr())
}

impl Drop for ListedTable {
    fn drop(&mut self) {
        // `LIST` may stay locked in a child without fork steps.
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
    let tables = std::mem::take(&mut held.tables);
    let list = held.list.take();
    drop(held);
    drop(tables);
    drop(list);
}
