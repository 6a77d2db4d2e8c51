//! Where the words of a reserve live: in few huge pages side by side, so that a call which comes
//! after a long sleep misses the page tables once and not for every word it needs.
//!
//! A forked child finds zeros there: fork copies none of it, and the parent meets no copy on
//! write afterwards. Where the kernel refuses that, a child has copies, and a [`ForkGuard`] tells
//! it what it is. Either way every call in a child is refused before it looks.
//!
//! # Safety
//! A [`Table`] keeps its mapping alive, its elements were all written when it was made, or may be
//! zero, and have no destructor, and no two tables overlap.
#![allow(unsafe_code)]

use std::ops::Deref;
use std::ptr::NonNull;
use std::sync::Arc;

use crate::error::OsError;
use crate::mapping::{Mapping, Visibility};
use crate::sync::AtomicU64;
use crate::sys::fork::ForkGuard;
use crate::units::Bytes;

/// Tables begin at multiples of this: what processors fetch together.
const ALIGN_BYTES: usize = 128;
/// The least that is mapped for tables that follow.
const CHUNK: Bytes = Bytes::mib(2);

/// Memory for tables, taken from its start to its end.
#[derive(Debug)]
pub(crate) struct Tables {
    mapping: Arc<Mapping>,
    used: usize,
    /// Where a child finds copies instead of zeros.
    guard: Option<ForkGuard>,
}

impl Tables {
    /// Room for `len`, which may be exceeded: what no longer fits is mapped elsewhere.
    pub(crate) fn new(len: Bytes) -> Result<Self, OsError> {
        Self::wiped(len, Mapping::wipe_on_fork)
    }

    fn wiped(
        len: Bytes,
        wipe_on_fork: impl Fn(&Mapping) -> Result<(), OsError>,
    ) -> Result<Self, OsError> {
        let mapping = Mapping::anonymous(len.max(CHUNK), Visibility::ORDINARY)?;
        let guard = wipe_on_fork(&mapping).is_err().then(ForkGuard::new);
        Ok(Self { mapping: Arc::new(mapping), used: 0, guard })
    }

    /// As [`Tables::new`] where the kernel wipes nothing.
    #[cfg(test)]
    pub(super) fn copied(len: Bytes) -> Result<Self, OsError> {
        use std::io::ErrorKind::Unsupported;
        Self::wiped(len, |_| Err(OsError::new("madvise", "wipe on fork", Unsupported.into())))
    }

    /// A place for one value that is made later.
    pub(crate) fn slot<T>(&mut self) -> Result<Slot<T>, OsError> {
        const { assert!(align_of::<T>() <= ALIGN_BYTES) };
        let start = self.start_of::<T>(1)?;
        Ok(Slot { start, mapping: Arc::clone(&self.mapping), guard: self.guard })
    }

    /// Room for `len` elements.
    fn start_of<T>(&mut self, len: usize) -> Result<NonNull<T>, OsError> {
        let bytes = len.saturating_mul(size_of::<T>()).saturating_add(ALIGN_BYTES);
        if bytes > self.mapping.len().as_usize() - self.used {
            *self = Self::new(Bytes::new(bytes as u64))?;
        }
        let start = self.mapping.as_ptr().wrapping_add(self.used).cast::<T>();
        self.used = (self.used + len * size_of::<T>()).next_multiple_of(ALIGN_BYTES);
        Ok(NonNull::new(start).expect("no mapping is at address zero"))
    }

    /// A table of `len` elements made by `element` from their places.
    pub(crate) fn table<T>(
        &mut self,
        len: usize,
        mut element: impl FnMut(usize) -> T,
    ) -> Result<Table<T>, OsError> {
        const { assert!(!std::mem::needs_drop::<T>() && align_of::<T>() <= ALIGN_BYTES) };
        let start = self.start_of::<T>(len)?;
        for place in 0..len {
            // SAFETY: `start_of` made room for `len` elements in a writable mapping, aligned since
            // mappings begin at a page and what is in them at a multiple of ALIGN_BYTES.
            unsafe { start.add(place).write(element(place)) };
        }
        Ok(Table { start, len, _mapping: Arc::clone(&self.mapping) })
    }

    /// A table of `len` elements that are zero. Nothing is written: pages come as they are used.
    pub(crate) fn zeros<T: Zeros>(&mut self, len: usize) -> Result<Table<T>, OsError> {
        const { assert!(!std::mem::needs_drop::<T>() && align_of::<T>() <= ALIGN_BYTES) };
        // New memory is zero, and each part of it is given out once.
        let start = self.start_of::<T>(len)?;
        Ok(Table { start, len, _mapping: Arc::clone(&self.mapping) })
    }
}

/// What may be zero.
///
/// # Safety
/// Bytes that are all zero are a value of the type.
pub(crate) unsafe trait Zeros {}

// SAFETY: zero is a value of a word, and the models' own tables make theirs.
unsafe impl Zeros for AtomicU64 {}
// SAFETY: as of each word.
unsafe impl<const N: usize> Zeros for [AtomicU64; N] {}

/// Room for one value.
#[derive(Debug)]
pub(crate) struct Slot<T> {
    start: NonNull<T>,
    mapping: Arc<Mapping>,
    guard: Option<ForkGuard>,
}

impl<T> Slot<T> {
    /// Where it is.
    pub(crate) fn mapping(&self) -> &Arc<Mapping> {
        &self.mapping
    }

    /// What tells a child that finds a copy here that it is one.
    pub(crate) fn guard(&self) -> Option<ForkGuard> {
        self.guard
    }

    /// Writes the value, which the caller keeps mapped from now on and drops.
    pub(crate) fn fill(self, value: T) -> NonNull<T> {
        // SAFETY: room for one `T`, aligned, which nobody else has.
        unsafe { self.start.as_ptr().write(value) };
        self.start
    }
}

/// A slice in a mapping that it keeps.
#[derive(Debug)]
pub(crate) struct Table<T> {
    start: NonNull<T>,
    len: usize,
    _mapping: Arc<Mapping>,
}

// SAFETY: a table owns its elements as a boxed slice does.
unsafe impl<T: Send> Send for Table<T> {}
// SAFETY: it hands out shared references only.
unsafe impl<T: Sync> Sync for Table<T> {}

impl<T> Deref for Table<T> {
    type Target = [T];

    #[inline]
    fn deref(&self) -> &[T] {
        // SAFETY: `len` elements were written at `start`, and the mapping is kept; in a forked
        // child they are zeros, which every element here may be: they are words.
        unsafe { std::slice::from_raw_parts(self.start.as_ptr(), self.len) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sync::MappedWord;

    #[test]
    fn tables_do_not_overlap_and_outlive_their_maker() {
        let mut tables = Tables::new(Bytes::mib(2)).unwrap();
        let made: Vec<_> = (0..40)
            .map(|n| tables.table(10_000, |i| MappedWord::new((n * 10_000 + i) as u64)).unwrap())
            .collect();
        drop(tables);
        let words = made.iter().flat_map(|table| table.iter());
        let values = words.map(|word| word.load(crate::sync::Ordering::Relaxed));
        assert!(values.eq(0..400_000));
        assert!(made.iter().all(|table| table.as_ptr().addr() % ALIGN_BYTES == 0));
    }
}
