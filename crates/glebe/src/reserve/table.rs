//! [`Tables`] puts a reserve's metadata in a few huge pages, to save TLB misses.
//!
//! A forked child gets zeros, so that the parent's later writes need no copy on write. If the
//! kernel cannot wipe the mapping, a [`ForkGuard`] detects the child.
//!
//! # Safety
//! A [`Table`] keeps its mapping alive. Its elements were written, or zero is their valid value
//! ([`Zeros`]). Elements need no drop. Tables do not overlap.
#![allow(unsafe_code)]

use std::ops::Deref;
use std::ptr::NonNull;
use std::sync::Arc;

use glebe_os::error::OsError;
use glebe_os::internal::mapping::{Mapping, Visibility};
use glebe_os::internal::sync::AtomicU64;
use glebe_os::internal::sys::processes::fork::ForkGuard;
use glebe_os::units::Bytes;

/// Alignment: bytes that processors fetch together.
const ALIGN_BYTES: usize = 128;
const CHUNK: Bytes = Bytes::mib(2);

#[derive(Debug)]
pub(crate) struct Tables {
    mapping: Arc<Mapping>,
    used: usize,
    guard: Option<ForkGuard>,
}

impl Tables {
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

    #[cfg(test)]
    pub(super) fn copied(len: Bytes) -> Result<Self, OsError> {
        use std::io::ErrorKind::Unsupported;
        Self::wiped(len, |_| Err(OsError::new("madvise", "wipe on fork", Unsupported.into())))
    }

    pub(crate) fn slot<T>(&mut self) -> Result<Slot<T>, OsError> {
        const { assert!(align_of::<T>() <= ALIGN_BYTES) };
        let start = self.start_of::<T>(1)?;
        Ok(Slot { start, mapping: Arc::clone(&self.mapping), guard: self.guard })
    }

    fn start_of<T>(&mut self, len: usize) -> Result<NonNull<T>, OsError> {
        let bytes = len.saturating_mul(size_of::<T>()).saturating_add(ALIGN_BYTES);
        if bytes > self.mapping.len().as_usize() - self.used {
            *self = Self::new(Bytes::new(bytes as u64))?;
        }
        let start = self.mapping.as_ptr().wrapping_add(self.used).cast::<T>();
        self.used = (self.used + len * size_of::<T>()).next_multiple_of(ALIGN_BYTES);
        Ok(NonNull::new(start).expect("no mapping is at address zero"))
    }

    pub(crate) fn table<T>(
        &mut self,
        len: usize,
        mut element: impl FnMut(usize) -> T,
    ) -> Result<Table<T>, OsError> {
        const { assert!(!std::mem::needs_drop::<T>() && align_of::<T>() <= ALIGN_BYTES) };
        let start = self.start_of::<T>(len)?;
        for place in 0..len {
            // SAFETY: `start_of` made room for `len` elements in a writable mapping. They are
            // aligned, because tables begin at multiples of ALIGN_BYTES.
            unsafe { start.add(place).write(element(place)) };
        }
        Ok(Table { start, len, _mapping: Arc::clone(&self.mapping) })
    }

    /// Writes nothing, because new memory is zero and each part is used once.
    pub(crate) fn zeros<T: Zeros>(&mut self, len: usize) -> Result<Table<T>, OsError> {
        const { assert!(!std::mem::needs_drop::<T>() && align_of::<T>() <= ALIGN_BYTES) };
        let start = self.start_of::<T>(len)?;
        Ok(Table { start, len, _mapping: Arc::clone(&self.mapping) })
    }
}

/// # Safety
/// All-zero bytes must be a value of the type.
pub(crate) unsafe trait Zeros {}

// SAFETY: zero is a value of a word.
unsafe impl Zeros for AtomicU64 {}
// SAFETY: zero is a value of each word.
unsafe impl<const N: usize> Zeros for [AtomicU64; N] {}

#[derive(Debug)]
pub(crate) struct Slot<T> {
    start: NonNull<T>,
    mapping: Arc<Mapping>,
    guard: Option<ForkGuard>,
}

impl<T> Slot<T> {
    pub(crate) fn mapping(&self) -> &Arc<Mapping> {
        &self.mapping
    }

    pub(crate) fn guard(&self) -> Option<ForkGuard> {
        self.guard
    }

    /// The caller must keep the mapping and drop the value.
    pub(crate) fn fill(self, value: T) -> NonNull<T> {
        // SAFETY: `start` has room for one aligned `T`, which only this slot may use.
        unsafe { self.start.as_ptr().write(value) };
        self.start
    }
}

#[derive(Debug)]
pub(crate) struct Table<T> {
    start: NonNull<T>,
    len: usize,
    _mapping: Arc<Mapping>,
}

// SAFETY: a table owns its elements like a boxed slice.
unsafe impl<T: Send> Send for Table<T> {}
// SAFETY: a table gives only shared references.
unsafe impl<T: Sync> Sync for Table<T> {}

impl<T> Deref for Table<T> {
    type Target = [T];

    #[inline]
    fn deref(&self) -> &[T] {
        // SAFETY: `_mapping` keeps `len` elements, written or zero. Zeros, as in a forked child,
        // are valid because all elements are words or bytes.
        unsafe { std::slice::from_raw_parts(self.start.as_ptr(), self.len) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use glebe_os::internal::sync::MappedWord;

    #[test]
    fn tables_do_not_overlap_and_outlive_their_maker() {
        let mut tables = Tables::new(Bytes::mib(2)).unwrap();
        let made: Vec<_> = (0..40)
            .map(|n| tables.table(10_000, |i| MappedWord::new((n * 10_000 + i) as u64)).unwrap())
            .collect();
        drop(tables);
        let words = made.iter().flat_map(|table| table.iter());
        let values = words.map(|word| word.load(glebe_os::internal::sync::Ordering::Relaxed));
        assert!(values.eq(0..400_000));
        assert!(made.iter().all(|table| table.as_ptr().addr() % ALIGN_BYTES == 0));
    }
}
