//! [`Table`] replaces a mapped table in loom's models.
//!
//! # Safety
//! [`Zeros`] asks nothing of its types.
#![allow(unsafe_code)]

use std::ops::Deref;

use glebe_os::error::OsError;
use glebe_os::internal::sync::AtomicU64;

pub(crate) struct Tables;

impl Tables {
    pub(crate) fn table<T>(
        &mut self,
        len: usize,
        element: impl FnMut(usize) -> T,
    ) -> Result<Table<T>, OsError> {
        Ok(Table((0..len).map(element).collect()))
    }

    pub(crate) fn zeros<T: Zeros + Default>(&mut self, len: usize) -> Result<Table<T>, OsError> {
        Ok(Table((0..len).map(|_| T::default()).collect()))
    }
}

/// No code relies on `Zeros`.
///
/// # Safety
/// None.
pub(crate) unsafe trait Zeros {}

// SAFETY: the trait asks for nothing.
unsafe impl Zeros for AtomicU64 {}
// SAFETY: the trait asks for nothing.
unsafe impl<const N: usize> Zeros for [AtomicU64; N] {}

#[derive(Debug)]
pub(crate) struct Table<T>(Box<[T]>);

impl<T> Deref for Table<T> {
    type Target = [T];

    fn deref(&self) -> &[T] {
        &self.0
    }
}
