//! A value that handles share and a forked child cannot reach.
//!
//! It is what `Arc` is, with two differences: the value lives in the tables' mapping, among the
//! words that a call needs anyway, and the kernel wipes that mapping in a forked child. So the
//! count of handles is the fork check too: it is zero in a child and nowhere else.
//!
//! # Safety
//! The value is alive while the count is above zero; a handle holds one count; [`Shared::get`]
//! looks at the count first, so nobody reads a wiped value. Fork is no concurrent write: the
//! child has one thread, which is in no call.
#![allow(unsafe_code)]

use std::ops::Deref;
use std::ptr::NonNull;
use std::sync::Arc;

use super::error::Error;
use super::table::Slot;
use crate::mapping::Mapping;
use crate::sync::{fence, MappedWord, Ordering};

#[derive(Debug)]
pub(super) struct Root<T> {
    handles: MappedWord,
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
        let mapping = Arc::clone(slot.mapping());
        Self(slot.fill(Root { handles: MappedWord::new(1), mapping, value }))
    }

    #[inline]
    fn handles(&self) -> &MappedWord {
        // SAFETY: mapped while this handle lives; a wiped count is a zero.
        unsafe { &(*self.0.as_ptr()).handles }
    }

    /// The value.
    ///
    /// # Errors
    /// [`Error::Forked`].
    #[inline]
    pub(crate) fn get(&self) -> Result<&T, Error> {
        if self.handles().load(Ordering::Relaxed) == 0 {
            return Err(Error::Forked);
        }
        // SAFETY: a count above zero: the value is alive, and this handle keeps it so.
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
        // In a child the count stays zero: a clone of what is lost is as lost.
        if self.handles().load(Ordering::Relaxed) != 0 {
            self.handles().fetch_add(1, Ordering::Relaxed);
        }
        Self(self.0)
    }
}

impl<T> Drop for Shared<T> {
    #[inline]
    fn drop(&mut self) {
        let handles = self.handles();
        if handles.load(Ordering::Relaxed) != 0 && handles.fetch_sub(1, Ordering::Release) == 1 {
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
    pub(super) fn upgrade(&self) -> Option<Alive<T>> {
        // SAFETY: the mapping is kept.
        let handles = unsafe { &(*self.root.as_ptr()).handles };
        let mut old = handles.load(Ordering::Relaxed);
        while old != 0 {
            match handles.compare_exchange_weak(old, old + 1, Ordering::Acquire, Ordering::Relaxed)
            {
                Ok(_) => return Some(Alive(Shared(self.root))),
                Err(other) => old = other,
            }
        }
        None
    }
}

/// A handle of a thread that no child has.
#[derive(Debug)]
pub(super) struct Alive<T>(Shared<T>);

impl<T> Deref for Alive<T> {
    type Target = T;

    fn deref(&self) -> &T {
        // SAFETY: made from a count above zero, and only the process that made it runs this.
        unsafe { &(*self.0 .0.as_ptr()).value }
    }
}
