//! Handles, and the tables that know which are open.
//!
//! ```text
//! handle   kind, 4 bits | process, 5 bits | index, 23 bits | generation, 32 bits
//! ```
//!
//! The kind is never 0, so no handle is. The generation of a place goes up when its object goes, so
//! that a handle that was used up stays refused until its place was used 2^32 times more.
//!
//! Locks: each place of [`Owned`] has one, so only calls on the same handle wait for each other;
//! each place of [`Shared`] has one a lane of threads, held shared by a call for its length, and
//! all of them alone by the call that closes. Their order: a reserve, a pool, a promise, a block,
//! a view.

use std::sync::{Mutex, MutexGuard, PoisonError, RwLock, RwLockWriteGuard};

use glebe::stats::{lane, LANES};

use crate::failure::Failure;
use crate::slots::{Slots, INDEX_BITS};

const GENERATION_BITS: u32 = 32;
const PROCESS_BITS: u32 = 5;
const PROCESS_SHIFT: u32 = GENERATION_BITS + INDEX_BITS;
const KIND_SHIFT: u32 = PROCESS_SHIFT + PROCESS_BITS;
/// Processes in a line of descent that can have handles.
pub(crate) const PROCESSES: u32 = 1 << PROCESS_BITS;

/// What a handle stands for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    Reserve = 1,
    Block,
    Promise,
    Pool,
    Volatile,
    Zpool,
    View,
    LentZpool,
}

impl Kind {
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Reserve => "reserve",
            Self::Block => "block",
            Self::Promise => "promise",
            Self::Pool => "pool",
            Self::Volatile => "volatile region",
            Self::Zpool => "object pool",
            Self::View => "view",
            Self::LentZpool => "lent object pool",
        }
    }
}

/// A handle taken apart.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Key {
    index: u32,
    generation: u32,
}

impl Key {
    pub(crate) fn handle(self, kind: Kind, process: u32) -> u64 {
        (kind as u64) << KIND_SHIFT
            | u64::from(process) << PROCESS_SHIFT
            | u64::from(self.index) << GENERATION_BITS
            | u64::from(self.generation)
    }

    /// The key and the process of a handle; `None` if it is of another kind.
    pub(crate) fn of(handle: u64, kind: Kind) -> Option<(Self, u32)> {
        let index = (handle >> GENERATION_BITS) as u32 & ((1 << INDEX_BITS) - 1);
        let process = (handle >> PROCESS_SHIFT) as u32 & (PROCESSES - 1);
        let key = Self { index, generation: handle as u32 };
        (handle >> KIND_SHIFT == kind as u64).then_some((key, process))
    }
}

#[derive(Debug)]
struct Entry<T> {
    generation: u32,
    value: Option<T>,
}

impl<T> Default for Entry<T> {
    fn default() -> Self {
        Self { generation: 0, value: None }
    }
}

impl<T> Entry<T> {
    fn is(&self, key: Key) -> bool {
        self.generation == key.generation && self.value.is_some()
    }

    fn take(&mut self) -> Option<T> {
        self.generation = self.generation.wrapping_add(1);
        self.value.take()
    }
}

/// Objects of which each call has one alone: blocks and promises.
#[derive(Debug)]
pub(crate) struct Owned<T>(Slots<Mutex<Entry<T>>>);

/// A panic under a lock leaves the entry whole: it is changed by single assignments.
fn lock<T>(entry: &Mutex<Entry<T>>) -> MutexGuard<'_, Entry<T>> {
    entry.lock().unwrap_or_else(PoisonError::into_inner)
}

impl<T> Owned<T> {
    pub(crate) fn new() -> Self {
        Self(Slots::new())
    }

    /// Keeps what `make` makes. A place is had before, so that nothing is made in vain.
    pub(crate) fn insert_with(
        &self,
        what: &'static str,
        make: impl FnOnce() -> Result<T, Failure>,
    ) -> Result<Key, Failure> {
        let most = Slots::<Mutex<Entry<T>>>::MAX;
        let (index, place) = self.0.take().ok_or(Failure::TooMany { what, most })?;
        let value = make().inspect_err(|_| self.0.give(index))?;
        let mut entry = lock(place);
        entry.value = Some(value);
        Ok(Key { index, generation: entry.generation })
    }

    /// The object of `key`, held until the answer is dropped.
    pub(crate) fn hold(&self, key: Key) -> Option<Held<'_, T>> {
        let entry = lock(self.0.get(key.index)?);
        // Not made where it is refused: its drop would give the place back once more.
        entry.is(key).then(|| Held { table: self, index: key.index, entry: Some(entry) })
    }

    /// How many objects `is` true of.
    pub(crate) fn count(&self, is: impl Fn(&T) -> bool) -> usize {
        self.0.iter().filter(|place| lock(place).value.as_ref().is_some_and(&is)).count()
    }
}

/// An object that is held, and can be taken out.
#[derive(Debug)]
pub(crate) struct Held<'a, T> {
    table: &'a Owned<T>,
    index: u32,
    /// Until it is dropped.
    entry: Option<MutexGuard<'a, Entry<T>>>,
}

impl<T> Held<'_, T> {
    pub(crate) fn get(&self) -> Option<&T> {
        self.entry.as_ref()?.value.as_ref()
    }

    /// Ends the handle; `None` if that was done before.
    pub(crate) fn take(&mut self) -> Option<T> {
        self.entry.as_mut()?.take()
    }
}

impl<T> Drop for Held<'_, T> {
    fn drop(&mut self) {
        let was_taken = self.get().is_none();
        // Unlocked first: who gets the place next need not wait.
        self.entry = None;
        if was_taken {
            self.table.0.give(self.index);
        }
    }
}

/// On cache lines of its own.
#[derive(Debug)]
#[repr(align(128))]
struct Lane<T>(RwLock<Entry<T>>);

impl<T> Default for Lane<T> {
    fn default() -> Self {
        Self(RwLock::default())
    }
}

/// Objects that many threads use at once: reserves, pools, volatile regions and object pools.
#[derive(Debug)]
pub(crate) struct Shared<T>(Slots<[Lane<T>; LANES]>);

impl<T: Clone> Shared<T> {
    pub(crate) const fn new() -> Self {
        Self(Slots::new())
    }

    fn alone(place: &[Lane<T>; LANES]) -> [RwLockWriteGuard<'_, Entry<T>>; LANES] {
        std::array::from_fn(|lane| place[lane].0.write().unwrap_or_else(PoisonError::into_inner))
    }

    /// Keeps what `make` makes.
    pub(crate) fn insert_with(
        &self,
        what: &'static str,
        make: impl FnOnce() -> Result<T, Failure>,
    ) -> Result<Key, Failure> {
        let most = Slots::<[Lane<T>; LANES]>::MAX;
        let (index, place) = self.0.take().ok_or(Failure::TooMany { what, most })?;
        let value = make().inspect_err(|_| self.0.give(index))?;
        let mut lanes = Self::alone(place);
        for entry in &mut lanes {
            entry.value = Some(value.clone());
        }
        Ok(Key { index, generation: lanes[0].generation })
    }

    /// Calls `call` on the object of `key`, which is not closed meanwhile.
    pub(crate) fn with<R>(&self, key: Key, call: impl FnOnce(&T) -> R) -> Option<R> {
        let place = self.0.get(key.index)?;
        let entry = place[lane()].0.read().unwrap_or_else(PoisonError::into_inner);
        if !entry.is(key) {
            return None;
        }
        entry.value.as_ref().map(call)
    }

    /// Ends the handle if `may` allows it, once the calls under way on it have ended.
    pub(crate) fn remove_if(
        &self,
        key: Key,
        may: impl FnOnce() -> Result<(), Failure>,
    ) -> Option<Result<T, Failure>> {
        let place = self.0.get(key.index)?;
        let mut lanes = Self::alone(place);
        if !lanes[0].is(key) {
            return None;
        }
        if let Err(failure) = may() {
            return Some(Err(failure));
        }
        let values: Vec<T> = lanes.iter_mut().filter_map(|entry| entry.take()).collect();
        drop(lanes);
        self.0.give(key.index);
        values.into_iter().next().map(Ok)
    }

    /// Every place, alone: until the answer is dropped no call is under way on any object.
    pub(crate) fn hold_all(&self) -> AllHeld<'_, T> {
        AllHeld { _lanes: self.0.iter().flat_map(Self::alone).collect() }
    }

    /// How many objects `is` true of.
    pub(crate) fn count(&self, is: impl Fn(&T) -> bool) -> usize {
        let counted = |place: &&[Lane<T>; LANES]| {
            let entry = place[0].0.read().unwrap_or_else(PoisonError::into_inner);
            entry.value.as_ref().is_some_and(&is)
        };
        self.0.iter().filter(counted).count()
    }
}

/// All places of a table, locked.
#[derive(Debug)]
pub(crate) struct AllHeld<'a, T> {
    _lanes: Vec<RwLockWriteGuard<'a, Entry<T>>>,
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

    use super::*;

    #[test]
    fn a_handle_is_taken_apart_as_it_was_put_together() {
        let key = Key { index: (1 << INDEX_BITS) - 1, generation: u32::MAX };
        let all = [Kind::Reserve, Kind::Block, Kind::Promise, Kind::Pool, Kind::Volatile];
        for kind in all.into_iter().chain([Kind::Zpool, Kind::View, Kind::LentZpool]) {
            let handle = key.handle(kind, PROCESSES - 1);
            assert_eq!(Key::of(handle, kind), Some((key, PROCESSES - 1)));
            assert_ne!(Key { index: 0, generation: 0 }.handle(kind, 0), 0);
            let other = if kind == Kind::Pool { Kind::Block } else { Kind::Pool };
            assert_eq!(Key::of(handle, other), None);
            assert_eq!(Key::of(0, kind), None);
        }
    }

    #[test]
    fn a_used_up_key_is_refused_though_its_place_is_used_again() {
        let table = Owned::new();
        let first = table.insert_with("numbers", || Ok(1)).unwrap();
        assert_eq!(table.hold(first).unwrap().take(), Some(1));
        assert!(table.hold(first).is_none());
        let second = table.insert_with("numbers", || Ok(2)).unwrap();
        assert_eq!(second.index, first.index);
        assert!(table.hold(first).is_none());
        assert_eq!(table.hold(second).unwrap().get(), Some(&2));
        assert!(table.insert_with("numbers", || Err(Failure::Forked)).is_err());
        assert_eq!(table.count(|_| true), 1);
        assert!(table.hold(Key { index: 1 << 20, generation: 0 }).is_none());
        // What was refused gave no place back: all that come now have one of their own.
        let keys: Vec<_> = (0..10).map(|n| table.insert_with("numbers", || Ok(n))).collect();
        for (n, key) in keys.into_iter().enumerate() {
            assert_eq!(table.hold(key.unwrap()).unwrap().get(), Some(&(n as i32)));
        }
    }

    #[test]
    fn a_shared_object_that_may_not_be_closed_stays() {
        let table = Shared::new();
        let key = table.insert_with("numbers", || Ok(7)).unwrap();
        assert!(table.remove_if(key, || Err(Failure::Forked)).unwrap().is_err());
        assert_eq!(table.with(key, |n| *n), Some(7));
        assert_eq!(table.remove_if(key, || Ok(())).unwrap().unwrap(), 7);
        assert_eq!(table.with(key, |n| *n), None);
        assert!(table.remove_if(key, || Ok(())).is_none());
        assert_ne!(table.insert_with("numbers", || Ok(8)).unwrap(), key);
    }

    #[test]
    fn closing_waits_for_the_calls_under_way() {
        let table = Shared::new();
        let key = table.insert_with("flags", || Ok(())).unwrap();
        let (inside, closed) = (AtomicUsize::new(0), AtomicBool::new(false));
        let call = || {
            while table
                .with(key, |()| {
                    inside.fetch_add(1, Ordering::SeqCst);
                    for _ in 0..100 {
                        std::hint::spin_loop();
                    }
                    assert!(!closed.load(Ordering::SeqCst));
                    inside.fetch_sub(1, Ordering::SeqCst);
                })
                .is_some()
            {}
        };
        std::thread::scope(|scope| {
            (0..3).for_each(|_| drop(scope.spawn(call)));
            while inside.load(Ordering::SeqCst) == 0 {
                std::thread::yield_now();
            }
            let may = || {
                assert_eq!(inside.load(Ordering::SeqCst), 0);
                closed.store(true, Ordering::SeqCst);
                Ok(())
            };
            table.remove_if(key, may).unwrap().unwrap();
        });
    }
}
