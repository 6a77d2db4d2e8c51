//! Tables of model words, which must lie in ordinary memory.
//!
//! # Safety
//! Only the name of what is unsafe elsewhere.
#![allow(unsafe_code)]

use std::ops::Deref;

use crate::error::OsError;
use crate::sync::AtomicU64;

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

/// As in the library; nothing here relies on it.
///
/// # Safety
/// None.
pub(crate) unsafe trait Zeros {}

// SAFETY: the trait asks for nothing.
unsafe impl Zeros for AtomicU64 {}
// SAFETY: likewise.
unsafe impl<const N: usize> Zeros for [AtomicU64; N] {}

#[derive(Debug)]
pub(crate) struct Table<T>(Box<[T]>);

impl<T> Deref for Table<T> {
    type Target = [T];

    fn deref(&self) -> &[T] {
        &self.0
    }
}
