//! A value that handles share and a forked child cannot reach.
//!
//! It is what `Arc` is, with two differences: the value lives in the tables' mapping, among the
//! words that a call needs anyway, and the kernel wipes that mapping in a forked child. So the
//! count of handles is the fork check too: it is zero in a child and nowhere else. Where the
//! kernel wipes nothing, a guard beside the count is asked as well.
//!
//! # Safety
//! The value is alive while the count is above zero; a handle holds one count; [`Shared::get`]
//! looks at the count first, so nobody reads a wiped value. Fork is no concurrent write: the
//! child has one thread, which is in no call.
#![allow(unsafe_code)]

use std::ptr::NonNull;
use std::sync::Arc;

use super::error::Error;
use super::table::Slot;
use crate::mapping::Mapping;
use crate::sync::{fence, MappedWord, Ordering};
use crate::sys::fork::ForkGuard;

#[derive(Debug)]
pub(super) struct Root<T> {
    handles: MappedWord,
    /// Where a child has copies of both.
    guard: Option<ForkGuard>,
    mapping: Arc<Mapping>,
    value: T,
}

/// A handle.
#[derive(Debug)]
pub(crate) struct Shared<T>(NonNull<Root<T>>);

// SAFETY: as for Arc: handles give shared references, and the last one drops the value.
unsafe impl<T: Send + Sync> Send for Shared<T> {}
// SAFETY: likewise.
unsafe impl<T: Send + Sync> Sync for Shared<T> {}

impl<T> Shared<T> {
    /// Puts a value into the place kept for it.
    pub(super) fn new(slot: Slot<Root<T>>, value: T) -> Self {
        let (guard, mapping) = (slot.guard(), Arc::clone(slot.mapping()));
        Self(slot.fill(Root { handles: MappedWord::new(1), guard, mapping, value }))
    }

    #[inline]
    fn handles(&self) -> &MappedWord {
        // SAFETY: mapped while this handle lives; a wiped count is a zero.
        unsafe { &(*self.0.as_ptr()).handles }
    }

    /// Whether this is a forked child, in which there is no value.
    #[inline]
    fn is_lost(&self) -> bool {
        if self.handles().load(Ordering::Relaxed) == 0 {
            return true;
        }
        // SAFETY: a count above zero: nothing was wiped.
        let guard = unsafe { &(*self.0.as_ptr()).guard };
        guard.as_ref().is_some_and(ForkGuard::is_child)
    }

    /// The value.
    ///
    /// # Errors
    /// [`Error::Forked`].
    #[inline]
    pub(crate) fn get(&self) -> Result<&T, Error> {
        if self.is_lost() {
            return Err(Error::Forked);
        }
        // SAFETY: not lost: the value is alive, and this handle keeps it so.
        Ok(unsafe { &(*self.0.as_ptr()).value })
    }

    /// A handle that does not keep the value alive.
    pub(super) fn downgrade(&self) -> Result<Weak<T>, Error> {
        self.get()?;
        // SAFETY: alive, checked above.
        let mapping = unsafe { Arc::clone(&(*self.0.as_ptr()).mapping) };
        Ok(Weak { root: self.0, _mapping: mapping })
    }
}

impl<T> Clone for Shared<T> {
    #[inline]
    fn clone(&self) -> Self {
        // A clone of what is lost is as lost, and counts for nothing.
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
            // What others did with the value comes before its end.
            fence(Ordering::Acquire);
            // SAFETY: the last handle is gone and weak ones see a count of zero: nobody else
            // reads the value again. The mapping is kept by what was moved out, until the end.
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

/// See [`Shared::downgrade`].
#[derive(Debug)]
pub(super) struct Weak<T> {
    root: NonNull<Root<T>>,
    _mapping: Arc<Mapping>,
}

// SAFETY: it gives nothing but a `Shared`, and keeps the count mapped.
unsafe impl<T: Send + Sync> Send for Weak<T> {}

impl<T> Weak<T> {
    /// A full handle, if the value is still alive.
    pub(super) fn upgrade(&self) -> Option<Shared<T>> {
        // SAFETY: the mapping is kept.
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
    use crate::sys::child::in_child;
    use crate::units::Bytes;

    /// Says whether it was dropped.
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
            // SAFETY: no allocation, no lock, and nothing that panics.
            assert!(unsafe { in_child(lost) });
            drop((inherited, tables));
            assert!(shared.get().is_ok() && weak.upgrade().is_some());
            drop(shared);
            assert_eq!(drops.load(Ordering::Relaxed), 1);
            assert!(weak.upgrade().is_none());
        }
    }
}
