//! Handles, and the tables that know which are open.
//!
//! ```text
//! handle   kind, 5 bits | process, 4 bits | index, 23 bits | generation, 32 bits
//! ```
//!
//! The kind is never 0, so no handle is. The generation of a place goes up when its object goes, so
//! that a handle that was used up stays refused until its place was used 2^32 times more.
//!
//! Locks: each place of a table has `N`, one a lane of threads. A call holds that of its thread,
//! shared, for its length; the call that ends the object holds all of them alone. So threads that
//! use one object share no lock if `N` is [`LANES`](glebe::stats::LANES), and an object that one
//! thread uses at a time needs one lock only. Their order: a reserve, a pool, a promise, a block, a
//! view; a swap cache, an area; a store or a region, a pin of it.

use std::array;
use std::sync::{Mutex, MutexGuard, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};

use glebe::stats::lane;

use crate::abi::{GLEBE_ERROR_BAD_HANDLE, GLEBE_ERROR_TOO_MANY};
use crate::failure::Failure;
use crate::slots::{Slots, INDEX_BITS};

const GENERATION_BITS: u32 = 32;
const PROCESS_BITS: u32 = 4;
const PROCESS_SHIFT: u32 = GENERATION_BITS + INDEX_BITS;
const KIND_SHIFT: u32 = PROCESS_SHIFT + PROCESS_BITS;
/// Processes in a line of descent that can have handles.
pub(crate) const PROCESSES: u32 = 1 << PROCESS_BITS;

/// What the handles of a table stand for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Kind {
    /// From 1 to 31.
    pub(crate) number: u64,
    pub(crate) name: &'static str,
}

impl Kind {
    /// The refusal of a handle that is not open.
    #[cold]
    pub(crate) fn unknown(self, handle: u64) -> Failure {
        let text = format!("{handle:#x} is no {} that is open", self.name);
        Failure::new(GLEBE_ERROR_BAD_HANDLE, text)
    }
}

/// Locks a mutex; what it guards is changed by single assignments, so a panic leaves it whole.
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

/// All places of a table, locked.
pub(crate) type AllHeld<'a, T> = Vec<RwLockWriteGuard<'a, Entry<T>>>;

/// On a cache line of its own.
#[derive(Debug)]
#[repr(align(64))]
struct Lane<T>(RwLock<Entry<T>>);

impl<T> Default for Lane<T> {
    fn default() -> Self {
        Self(RwLock::new(Entry { generation: 0, value: None }))
    }
}

impl<T> Lane<T> {
    /// A panic under a lock leaves the entry whole: it is changed by single assignments.
    fn read(&self) -> RwLockReadGuard<'_, Entry<T>> {
        self.0.read().unwrap_or_else(PoisonError::into_inner)
    }

    fn write(&self) -> RwLockWriteGuard<'_, Entry<T>> {
        self.0.write().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The lanes of one place.
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

/// The objects of one kind that a process has, each `N` times: a cheap handle for each lane, or, if
/// `N` is 1, the object itself.
#[derive(Debug)]
pub(crate) struct Table<T, const N: usize> {
    kind: Kind,
    process: u32,
    slots: Slots<Place<T, N>>,
}

impl<T, const N: usize> Table<T, N> {
    /// A table of a process with so many ancestors that have tables.
    pub(crate) const fn new(kind: Kind, process: u32) -> Self {
        Self { kind, process, slots: Slots::new() }
    }

    fn handle(&self, index: u32, generation: u32) -> u64 {
        self.kind.number << KIND_SHIFT
            | u64::from(self.process) << PROCESS_SHIFT
            | u64::from(index) << GENERATION_BITS
            | u64::from(generation)
    }

    /// The place of a handle, its index, and its generation.
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

    /// The handle of what `make` makes. A place is had before, so that nothing is made in vain.
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

    /// Calls `call` on the object of a handle, which is not ended meanwhile.
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

    /// The object of a handle, once the calls under way on it have ended. None begins until the
    /// answer is dropped.
    pub(crate) fn hold(&self, handle: u64) -> Result<Held<'_, T, N>, Failure> {
        let (place, index, generation) = self.find(handle)?;
        let entries = place.alone();
        // Not made where it is refused: its drop would give the place back once more.
        if entries[0].generation != generation || entries[0].value.is_none() {
            return Err(self.kind.unknown(handle));
        }
        Ok(Held { table: self, index, entries: Some(entries) })
    }

    /// Ends a handle and its object.
    pub(crate) fn end(&self, handle: u64) -> Result<(), Failure> {
        let mut held = self.hold(handle)?;
        let ended = held.take();
        // The handle's place is given back before its memory: nobody waits for it meanwhile.
        drop(held);
        drop(ended);
        Ok(())
    }

    /// Every place, alone: until the answer is dropped no call is under way on any object.
    pub(crate) fn hold_all(&self) -> AllHeld<'_, T> {
        self.slots.iter().flat_map(Place::alone).collect()
    }

    /// How many objects `is` true of.
    pub(crate) fn count(&self, is: impl Fn(&T) -> bool) -> usize {
        let counted = |place: &&Place<T, N>| place.0[0].read().value.as_ref().is_some_and(&is);
        self.slots.iter().filter(counted).count()
    }
}

/// An object that is held, and can be taken out.
#[derive(Debug)]
pub(crate) struct Held<'a, T, const N: usize> {
    table: &'a Table<T, N>,
    index: u32,
    /// Until it is dropped.
    entries: Option<[RwLockWriteGuard<'a, Entry<T>>; N]>,
}

impl<T, const N: usize> Held<'_, T, N> {
    /// One of its handles; `None` if it was taken.
    pub(crate) fn get(&self) -> Option<&T> {
        self.entries.iter().flatten().find_map(|entry| entry.value())
    }

    /// Ends the handle; `None` if that was done before.
    pub(crate) fn take(&mut self) -> Option<T> {
        let take = |entry: &mut RwLockWriteGuard<'_, Entry<T>>| {
            entry.generation = entry.generation.wrapping_add(1);
            entry.value.take()
        };
        // All but the last handle of an object go here.
        self.entries.iter_mut().flatten().filter_map(take).last()
    }
}

impl<T, const N: usize> Drop for Held<'_, T, N> {
    fn drop(&mut self) {
        let was_taken = self.entries.iter().flatten().all(|entry| entry.value.is_none());
        // Unlocked first: who gets the place next need not wait.
        self.entries = None;
        if was_taken {
            self.table.slots.give(self.index);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

    use glebe::stats::LANES;

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
        // What was refused gave no place back: all that come now have one of their own.
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
