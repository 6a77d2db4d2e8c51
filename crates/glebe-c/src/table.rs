//! Handles, and the tables of open objects.
//!
//! ```text
//! handle   kind, 5 bits | process, 4 bits | index, 23 bits | generation, 32 bits
//! ```
//!
//! The kind is never 0, so no handle is 0. The end of an object increases the generation of its
//! place, so the handle stays refused until the place has been used 2^32 more times.
//!
//! Locks: each place has `N` locks. A thread uses only the lock of its *lane*, a fixed number below
//! [`LANES`](glebe::internal::stats::LANES). A call holds this lock shared; the call that ends an
//! object holds all `N` exclusively. With `N` = `LANES`, threads in different lanes share no lock.
//! An object that one thread uses at a time needs only one lock. Lock order: reserve, pool,
//! promise, block, view; swap cache, area; store or region, its pin.

use std::array;
use std::sync::{Mutex, MutexGuard, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};

use glebe::internal::stats::lane;

use crate::abi::{GLEBE_ERROR_BAD_HANDLE, GLEBE_ERROR_TOO_MANY};
use crate::failure::Failure;
use crate::slots::{Slots, INDEX_BITS};

const GENERATION_BITS: u32 = 32;
const PROCESS_BITS: u32 = 4;
const PROCESS_SHIFT: u32 = GENERATION_BITS + INDEX_BITS;
const KIND_SHIFT: u32 = PROCESS_SHIFT + PROCESS_BITS;
/// Maximum number of processes with handles in a chain of forks.
pub(crate) const PROCESSES: u32 = 1 << PROCESS_BITS;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Kind {
    /// From 1 to 31.
    pub(crate) number: u64,
    pub(crate) name: &'static str,
}

impl Kind {
    #[cold]
    pub(crate) fn unknown(self, handle: u64) -> Failure {
        let text = format!("{handle:#x} is no {} that is open", self.name);
        Failure::new(GLEBE_ERROR_BAD_HANDLE, text)
    }
}

/// Locks a mutex, also after a panic, because a panic leaves no value half changed.
pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[derive(Debug)]
pub(crate) struct Entry<T> {
    generation: u32,
    value: Option<T>,
}

impl<T> Entry<T> {
    pub(crate) fn value(&self) -> Option<&T> {
        self.value.as_ref()
    }
}

pub(crate) type AllHeld<'a, T> = Vec<RwLockWriteGuard<'a, Entry<T>>>;

/// [`Lane`] is a lock on its own cache line. A poisoned entry is whole, because no change of an
/// entry can panic.
#[derive(Debug)]
#[repr(align(64))]
struct Lane<T>(RwLock<Entry<T>>);

impl<T> Default for Lane<T> {
    fn default() -> Self {
        Self(RwLock::new(Entry { generation: 0, value: None }))
    }
}

impl<T> Lane<T> {
    fn read(&self) -> RwLockReadGuard<'_, Entry<T>> {
        self.0.read().unwrap_or_else(PoisonError::into_inner)
    }

    fn write(&self) -> RwLockWriteGuard<'_, Entry<T>> {
        self.0.write().unwrap_or_else(PoisonError::into_inner)
    }
}

#[derive(Debug)]
struct Place<T, const N: usize>([Lane<T>; N]);

impl<T, const N: usize> Default for Place<T, N> {
    fn default() -> Self {
        Self(array::from_fn(|_| Lane::default()))
    }
}

impl<T, const N: usize> Place<T, N> {
    fn alone(&self) -> [RwLockWriteGuard<'_, Entry<T>>; N] {
        self.0.each_ref().map(Lane::write)
    }
}

/// The objects of one kind. A place holds `N` cheap clones of an object, one per lane, or the
/// object itself if `N` is 1.
#[derive(Debug)]
pub(crate) struct Table<T, const N: usize> {
    kind: Kind,
    process: u32,
    slots: Slots<Place<T, N>>,
}

impl<T, const N: usize> Table<T, N> {
    /// Makes the table of a process that has `process` ancestors with tables.
    pub(crate) const fn new(kind: Kind, process: u32) -> Self {
        Self { kind, process, slots: Slots::new() }
    }

    fn handle(&self, index: u32, generation: u32) -> u64 {
        self.kind.number << KIND_SHIFT
            | u64::from(self.process) << PROCESS_SHIFT
            | u64::from(index) << GENERATION_BITS
            | u64::from(generation)
    }

    fn find(&self, handle: u64) -> Result<(&Place<T, N>, u32, u32), Failure> {
        let process = (handle >> PROCESS_SHIFT) as u32 & (PROCESSES - 1);
        if handle >> KIND_SHIFT != self.kind.number || process > self.process {
            return Err(self.kind.unknown(handle));
        }
        if process < self.process {
            return Err(Failure::forked());
        }
        let index = (handle >> GENERATION_BITS) as u32 & ((1 << INDEX_BITS) - 1);
        let place = self.slots.get(index).ok_or_else(|| self.kind.unknown(handle))?;
        Ok((place, index, handle as u32))
    }

    /// Takes a place before `make` makes the object, so that no object is made without a place.
    pub(crate) fn insert(
        &self,
        make: impl FnOnce() -> Result<[T; N], Failure>,
    ) -> Result<u64, Failure> {
        let Some((index, place)) = self.slots.take() else {
            let text = format!("no more than {} at once: {}", 1_u32 << INDEX_BITS, self.kind.name);
            return Err(Failure::new(GLEBE_ERROR_TOO_MANY, text));
        };
        let values = make().inspect_err(|_| self.slots.give(index))?;
        let mut entries = place.alone();
        for (entry, value) in entries.iter_mut().zip(values) {
            entry.value = Some(value);
        }
        Ok(self.handle(index, entries[0].generation))
    }

    #[inline]
    pub(crate) fn with<R>(
        &self,
        handle: u64,
        call: impl FnOnce(&T) -> Result<R, Failure>,
    ) -> Result<R, Failure> {
        let (place, _, generation) = self.find(handle)?;
        let entry = place.0[lane() % N].read();
        match &entry.value {
            Some(value) if entry.generation == generation => call(value),
            _ => Err(self.kind.unknown(handle)),
        }
    }

    /// Waits for the calls on an object, and keeps new calls out until the result is dropped.
    pub(crate) fn hold(&self, handle: u64) -> Result<Held<'_, T, N>, Failure> {
        let (place, index, generation) = self.find(handle)?;
        let entries = place.alone();
        // No `Held` is made here, because its drop would give the place back a second time.
        if entries[0].generation != generation || entries[0].value.is_none() {
            return Err(self.kind.unknown(handle));
        }
        Ok(Held { table: self, index, entries: Some(entries) })
    }

    pub(crate) fn end(&self, handle: u64) -> Result<(), Failure> {
        let mut held = self.hold(handle)?;
        let ended = held.take();
        // Gives the place back before the drop of the object, so that nobody waits for the drop.
        drop(held);
        drop(ended);
        Ok(())
    }

    /// Keeps calls off every object until the result is dropped.
    pub(crate) fn hold_all(&self) -> AllHeld<'_, T> {
        self.slots.iter().flat_map(Place::alone).collect()
    }

    pub(crate) fn count(&self, is: impl Fn(&T) -> bool) -> usize {
        let counted = |place: &&Place<T, N>| place.0[0].read().value.as_ref().is_some_and(&is);
        self.slots.iter().filter(counted).count()
    }
}

/// A locked object, which can be taken out.
#[derive(Debug)]
pub(crate) struct Held<'a, T, const N: usize> {
    table: &'a Table<T, N>,
    index: u32,
    /// `None` only in the drop.
    entries: Option<[RwLockWriteGuard<'a, Entry<T>>; N]>,
}

impl<T, const N: usize> Held<'_, T, N> {
    /// Returns the object, or `None` if it was taken.
    pub(crate) fn get(&self) -> Option<&T> {
        self.entries.iter().flatten().find_map(|entry| entry.value())
    }

    /// Ends the handle. Returns the object, or `None` if it was taken before.
    pub(crate) fn take(&mut self) -> Option<T> {
        let take = |entry: &mut RwLockWriteGuard<'_, Entry<T>>| {
            entry.generation = entry.generation.wrapping_add(1);
            entry.value.take()
        };
        // Drops all clones but the last.
        self.entries.iter_mut().flatten().filter_map(take).last()
    }
}

impl<T, const N: usize> Drop for Held<'_, T, N> {
    fn drop(&mut self) {
        let was_taken = self.entries.iter().flatten().all(|entry| entry.value.is_none());
        // Unlocks first, so that the next user of the place need not wait.
        self.entries = None;
        if was_taken {
            self.table.slots.give(self.index);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

    use glebe::internal::stats::LANES;

    use super::*;

    const NUMBERS: Kind = Kind { number: 15, name: "number" };

    fn numbers(process: u32) -> Table<i32, 1> {
        Table::new(NUMBERS, process)
    }

    #[test]
    fn a_handle_is_taken_apart_as_it_was_put_together() {
        for number in 1..=31 {
            let table = Table::<(), 1>::new(Kind { number, name: "one" }, PROCESSES - 1);
            let handles: Vec<_> = (0..9).map(|_| table.insert(|| Ok([()])).unwrap()).collect();
            for (index, handle) in handles.into_iter().enumerate() {
                table.end(handle).unwrap();
                let next = table.insert(|| Ok([()])).unwrap();
                let (_, place, generation) = table.find(next).unwrap();
                assert_eq!((place as usize, generation), (index, 1));
                assert_eq!(next, table.handle(place, generation));
            }
            let (handle, last) =
                (table.handle(0, 0), table.handle((1 << INDEX_BITS) - 1, u32::MAX));
            assert_eq!(table.find(last).unwrap_err().code(), GLEBE_ERROR_BAD_HANDLE);
            let other = Table::<(), 1>::new(Kind { number: number ^ 1, ..table.kind }, 0);
            assert_eq!(other.find(handle).unwrap_err().code(), GLEBE_ERROR_BAD_HANDLE);
            assert_eq!(table.find(0).unwrap_err().code(), GLEBE_ERROR_BAD_HANDLE);
        }
        let first = numbers(0);
        assert_ne!(first.handle(0, 0), 0);
        let later = numbers(1).handle(0, 0);
        assert_eq!(first.find(later).unwrap_err().code(), GLEBE_ERROR_BAD_HANDLE);
        let child = numbers(1);
        assert_eq!(
            child.find(first.handle(0, 0)).unwrap_err().code(),
            crate::abi::GLEBE_ERROR_FORKED
        );
    }

    #[test]
    fn a_used_up_handle_is_refused_though_its_place_is_used_again() {
        let table = numbers(0);
        let first = table.insert(|| Ok([1])).unwrap();
        assert_eq!(table.hold(first).unwrap().take(), Some(1));
        assert!(table.hold(first).is_err() && table.end(first).is_err());
        let second = table.insert(|| Ok([2])).unwrap();
        assert_eq!(table.find(second).unwrap().1, table.find(first).unwrap().1);
        assert!(table.hold(first).is_err());
        assert_eq!(table.with(second, |n| Ok(*n)).unwrap(), 2);
        assert!(table.insert(|| Err(Failure::forked())).is_err());
        assert_eq!(table.count(|_| true), 1);
        assert!(table.hold(table.handle(1 << 20, 0)).is_err());
        // The refused calls gave no place back, so each new object has its own.
        let all: Vec<_> = (0..10).map(|n| table.insert(|| Ok([n])).unwrap()).collect();
        for (n, handle) in all.into_iter().enumerate() {
            assert_eq!(table.with(handle, |n| Ok(*n)).unwrap(), n as i32);
        }
    }

    #[test]
    fn a_held_object_that_is_not_taken_stays() {
        let table = Table::<_, LANES>::new(NUMBERS, 0);
        let handle = table.insert(|| Ok([7; LANES])).unwrap();
        drop(table.hold(handle).unwrap());
        assert_eq!(table.with(handle, |n| Ok(*n)).unwrap(), 7);
        let mut held = table.hold(handle).unwrap();
        assert_eq!((held.take(), held.take()), (Some(7), None));
        drop(held);
        assert!(table.with(handle, |_| Ok(())).is_err());
        assert!(table.end(handle).is_err());
        assert_ne!(table.insert(|| Ok([8; LANES])).unwrap(), handle);
    }

    #[test]
    fn ending_waits_for_the_calls_under_way() {
        let table = Table::<_, LANES>::new(NUMBERS, 0);
        let handle = table.insert(|| Ok([(); LANES])).unwrap();
        let (inside, closed) = (AtomicUsize::new(0), AtomicBool::new(false));
        let call = || {
            while table
                .with(handle, |()| {
                    inside.fetch_add(1, Ordering::SeqCst);
                    for _ in 0..100 {
                        std::hint::spin_loop();
                    }
                    assert!(!closed.load(Ordering::SeqCst));
                    inside.fetch_sub(1, Ordering::SeqCst);
                    Ok(())
                })
                .is_ok()
            {}
        };
        std::thread::scope(|scope| {
            (0..3).for_each(|_| drop(scope.spawn(call)));
            while inside.load(Ordering::SeqCst) == 0 {
                std::thread::yield_now();
            }
            let mut held = table.hold(handle).unwrap();
            assert_eq!(inside.load(Ordering::SeqCst), 0);
            closed.store(true, Ordering::SeqCst);
            held.take();
        });
    }
}
