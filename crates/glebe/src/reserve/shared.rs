//! [`Shared`] is a handle like `Arc` to a value that a forked child cannot reach.
//!
//! A handle finds the count of handles zero only in a forked child, where the kernel wipes the
//! mapping of count and value. If the kernel cannot wipe the mapping, a [`ForkGuard`] detects the
//! child.
//!
//! # Safety
//! The value is alive while the count is above zero. Each handle holds one count. [`Shared::get`]
//! checks the count first, so nobody reads a wiped value. A forked child has one thread, which is
//! in no call.
#![allow(unsafe_code)]

use std::ptr::NonNull;
use std::sync::Arc;

use super::error::ReserveError;
use super::table::Slot;
use glebe_os::internal::mapping::Mapping;
use glebe_os::internal::sync::{fence, MappedWord, Ordering};
use glebe_os::internal::sys::processes::fork::ForkGuard;

#[derive(Debug)]
pub(super) struct Root<T> {
    handles: MappedWord,
    guard: Option<ForkGuard>,
    mapping: Arc<Mapping>,
    value: T,
}

#[derive(Debug)]
pub(crate) struct Shared<T>(NonNull<Root<T>>);

// SAFETY: as with Arc, handles give shared references, and the last one drops the value.
unsafe impl<T: Send + Sync> Send for Shared<T> {}
// SAFETY: as above.
unsafe impl<T: Send + Sync> Sync for Shared<T> {}

impl<T> Shared<T> {
    pub(super) fn new(slot: Slot<Root<T>>, value: T) -> Self {
        let (guard, mapping) = (slot.guard(), Arc::clone(slot.mapping()));
        Self(slot.fill(Root { handles: MappedWord::new(1), guard, mapping, value }))
    }

    #[inline]
    fn handles(&self) -> &MappedWord {
        // SAFETY: this handle keeps the count mapped; a wiped count is zero.
        unsafe { &(*self.0.as_ptr()).handles }
    }

    #[inline]
    fn is_lost(&self) -> bool {
        if self.handles().load(Ordering::Relaxed) == 0 {
            return true;
        }
        // SAFETY: the count is above zero, so nothing was wiped.
        let guard = unsafe { &(*self.0.as_ptr()).guard };
        guard.as_ref().is_some_and(ForkGuard::is_child)
    }

    #[inline]
    pub(crate) fn get(&self) -> Result<&T, ReserveError> {
        if self.is_lost() {
            return Err(ReserveError::Forked);
        }
        // SAFETY: the value is not lost, so it is alive, and this handle keeps it alive.
        Ok(unsafe { &(*self.0.as_ptr()).value })
    }

    pub(super) fn downgrade(&self) -> Result<Weak<T>, ReserveError> {
        self.get()?;
        // SAFETY: `get` found the value alive.
        let mapping = unsafe { Arc::clone(&(*self.0.as_ptr()).mapping) };
        Ok(Weak { root: self.0, _mapping: mapping })
    }
}

impl<T> Clone for Shared<T> {
    #[inline]
    fn clone(&self) -> Self {
        if !self.is_lost() {
            self.handles().fetch_add(1, Ordering::Relaxed);
        }
        Self(self.0)
    }
}

impl<T> Drop for Shared<T> {
    #[inline]
    fn drop(&mut self) {
        if !self.is_lost() && self.handles().fetch_sub(1, Ordering::Release) == 1 {
            fence(Ordering::Acquire);
            // SAFETY: this was the last handle and `Weak::upgrade` sees zero, so nobody reads the
            // value again. The moved-out root holds the mapping until the value is dropped.
            end(unsafe { self.0.as_ptr().read() });
        }
    }
}

#[cold]
fn end<T>(root: Root<T>) {
    let Root { mapping, value, .. } = root;
    drop(value);
    drop(mapping);
}

#[derive(Debug)]
pub(super) struct Weak<T> {
    root: NonNull<Root<T>>,
    _mapping: Arc<Mapping>,
}

// SAFETY: a `Weak` reads only the count, which it keeps mapped, and gives a `Shared`.
unsafe impl<T: Send + Sync> Send for Weak<T> {}

impl<T> Weak<T> {
    pub(super) fn upgrade(&self) -> Option<Shared<T>> {
        // SAFETY: `_mapping` keeps the count mapped.
        let handles = unsafe { &(*self.root.as_ptr()).handles };
        let mut old = handles.load(Ordering::Relaxed);
        while old != 0 {
            match handles.compare_exchange_weak(old, old + 1, Ordering::Acquire, Ordering::Relaxed)
            {
                Ok(_) => return Some(Shared(self.root)),
                Err(other) => old = other,
            }
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use super::super::table::Tables;
    use super::*;
    use glebe_os::units::Bytes;
    use glebe_testing::child::in_child;

    struct Value<'a>(&'a MappedWord);

    impl Drop for Value<'_> {
        fn drop(&mut self) {
            self.0.fetch_add(1, Ordering::Relaxed);
        }
    }

    #[test]
    fn a_child_reaches_and_drops_nothing_wiped_or_not() {
        for mut tables in
            [Tables::new(Bytes::mib(2)).unwrap(), Tables::copied(Bytes::mib(2)).unwrap()]
        {
            let drops = MappedWord::new(0);
            let shared = Shared::new(tables.slot().unwrap(), Value(&drops));
            let weak = shared.downgrade().unwrap();
            let mut inherited = Some(shared.clone());
            let lost = || {
                let Some(mine) = inherited.take() else { return false };
                let lost = mine.get().is_err() && mine.clone().get().is_err();
                drop((mine, shared.clone()));
                lost && drops.load(Ordering::Relaxed) == 0
            };
            // SAFETY: `lost` allocates nothing, takes no lock and does not panic.
            assert!(unsafe { in_child(lost) });
            drop((inherited, tables));
            assert!(shared.get().is_ok() && weak.upgrade().is_some());
            drop(shared);
            assert_eq!(drops.load(Ordering::Relaxed), 1);
            assert!(weak.upgrade().is_none());
        }
    }
}
