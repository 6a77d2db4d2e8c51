//! [`Part`] is a part of a mapping that other processes write too.
//!
//! # Safety
//! A part borrows its mapping, so the bytes stay mapped. It lends words as atomics alone.
#![allow(unsafe_code)]

use std::fs::File;
use std::io;
use std::marker::PhantomData;
use std::ptr;

use super::{racy, Mapping};
use crate::error::OsError;
use crate::internal::sync::MappedWord;
use crate::internal::sys::memory::mmap::{map_file_over, try_file};
use crate::internal::sys::processes::sigbus::fill;
use crate::units::Bytes;

/// Offsets are bytes from the part's start.
#[derive(Clone, Copy, Debug)]
pub struct Part<'a> {
    addr: usize,
    len: usize,
    mapping: PhantomData<&'a Mapping>,
}

impl Mapping {
    /// Panics beyond the end, or in a child without the mapping.
    #[must_use]
    #[inline]
    pub fn part(&self, offset: Bytes, len: Bytes) -> Part<'_> {
        let addr = self.checked(offset, len.as_usize()).addr();
        Part { addr, len: len.as_usize(), mapping: PhantomData }
    }

    /// Panics like [`Part::word`].
    #[must_use]
    #[inline]
    pub fn word(&self, at: usize) -> &MappedWord {
        let addr = self.checked(Bytes::new(at as u64), size_of::<MappedWord>()).addr();
        assert!(addr % size_of::<MappedWord>() == 0, "the word at {at} is not aligned");
        // SAFETY: the word is aligned, and mapped while `self` lives; any bits are an atomic.
        unsafe { &*ptr::with_exposed_provenance(addr) }
    }

    /// Maps the beginning of a file over `len` bytes, both whole pages of the file. A concurrent
    /// reader finds the old bytes or the new ones. After an error the range has zeros.
    pub fn lay(&self, offset: Bytes, file: &File, len: Bytes) -> Result<(), OsError> {
        let at = self.checked(offset, len.as_usize()).addr();
        let laid = try_file(file, Bytes::ZERO, len).and_then(|()| {
            // SAFETY: the mapping owns the range, and lends no references but to atomics, whose
            // bytes stay mapped.
            unsafe { map_file_over(file, Bytes::ZERO, len, at) }
        });
        laid.or_else(|error| self.forget(offset, len).and(Err(error)))
    }
}

impl Mapping {
    /// Maps new zeros over whole pages.
    pub fn forget(&self, offset: Bytes, len: Bytes) -> Result<(), OsError> {
        let at = self.checked(offset, len.as_usize()).addr();
        // SAFETY: as in `lay`.
        unsafe { fill::replace(at, len.as_usize()) }.map_err(|errno| {
            OsError::new("mmap", len.to_string(), io::Error::from_raw_os_error(errno))
        })
    }
}

impl<'a> Part<'a> {
    #[must_use]
    #[inline]
    pub fn len(&self) -> usize {
        self.len
    }

    /// Panics if the word is unaligned or beyond the end.
    #[must_use]
    #[inline]
    pub fn word(&self, at: usize) -> &'a MappedWord {
        let addr = self.checked(at, size_of::<MappedWord>());
        assert!(addr % size_of::<MappedWord>() == 0, "the word at {at} is not aligned");
        // SAFETY: the word is aligned and mapped while the part lives; any bits are an atomic.
        unsafe { &*ptr::with_exposed_provenance(addr) }
    }

    /// Copies bytes out, even while others change them. Panics beyond the end.
    #[inline]
    pub fn read(&self, at: usize, bytes: &mut [u8]) {
        let from = ptr::with_exposed_provenance(self.checked(at, bytes.len()));
        // SAFETY: `checked` found the bytes in the part.
        unsafe { racy::copy(bytes.as_mut_ptr(), from, bytes.len()) }
    }

    /// Copies bytes in. Panics beyond the end.
    #[inline]
    pub fn write(&self, at: usize, bytes: &[u8]) {
        let to = ptr::with_exposed_provenance_mut(self.checked(at, bytes.len()));
        // SAFETY: `checked` found the bytes in the part.
        unsafe { racy::copy(to, bytes.as_ptr(), bytes.len()) }
    }

    #[inline]
    fn checked(&self, at: usize, count: usize) -> usize {
        let fits = at.checked_add(count).is_some_and(|end| end <= self.len);
        assert!(fits, "{count} bytes at {at} of a part of {}", self.len);
        self.addr + at
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::more_than_the_pool;
    use super::super::Visibility;
    use super::*;
    use crate::internal::sync::{MappedWord, Ordering};
    use crate::internal::sys::memory::brick::Brick;
    use crate::internal::sys::page_size;
    use glebe_testing::child::map_at;

    const REFUSALS: u64 = 2000;

    #[test]
    fn no_address_is_free_while_a_file_is_refused() {
        let Some((len, huge)) = more_than_the_pool() else { return };
        let Ok(file) = Brick::new(len, huge) else {
            return println!("skipped: no file of huge pages");
        };
        let mapping = Mapping::aligned(len, huge, Visibility::PRIVATE).unwrap();
        let (done, taken) = (MappedWord::new(0), MappedWord::new(0));
        let mut refusals = 0;
        std::thread::scope(|scope| {
            scope.spawn(|| {
                while done.load(Ordering::Relaxed) < REFUSALS {
                    if map_at(mapping.as_ptr(), page_size().bytes().as_usize()) {
                        taken.fetch_add(1, Ordering::Relaxed);
                    }
                }
            });
            for _ in 0..REFUSALS {
                let is_refused = mapping.lay(Bytes::ZERO, file.file(), len).is_err();
                refusals += u64::from(is_refused);
                done.fetch_add(1, Ordering::Relaxed);
            }
        });
        if refusals == 0 {
            return println!("skipped: the pool has {len}");
        }
        assert_eq!(taken.load(Ordering::Relaxed), 0, "another thread had the addresses");
        let mut byte = [1];
        mapping.read(len - Bytes::new(1), &mut byte);
        assert_eq!(byte, [0]);
    }
}
