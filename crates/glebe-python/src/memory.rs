//! [`Memory`] exports contiguous memory as a buffer, which a forked child does not inherit.
//!
//! `Memory` keeps the Rust object that owns the bytes and, from the first export on, a
//! [`ChildZeros`], which maps zeros at the same addresses in children.
//!
//! # Safety
//! The bytes stay until the `Exported` ends ([`exports`](crate::exports)).
#![allow(unsafe_code)]

use std::ffi::c_int;

use glebe::internal::sys::memory::child_zeros::ChildZeros;
use pyo3::ffi;
use pyo3::prelude::*;

use crate::exports::{Bytes, Exported};
use crate::Result;

pub(crate) trait Contiguous: Send {
    /// Name of the thing in errors.
    const WHAT: &'static str;

    /// Returns all bytes, which stay in place while the owner lives.
    ///
    /// # Errors
    /// `Forked` in a child.
    fn bytes(&mut self) -> Result<Bytes>;
}

struct Held<T> {
    zeros: Option<ChildZeros>,
    thing: T,
}

pub(crate) struct Memory<T>(Exported<Held<T>>);

impl<T: Contiguous> Memory<T> {
    pub(crate) fn new(thing: T) -> Self {
        Self(Exported::new(T::WHAT, Held { zeros: None, thing }))
    }

    pub(crate) fn with<R>(&self, look: impl FnOnce(&mut T) -> R) -> Result<R> {
        self.0.with(|held| look(&mut held.thing))
    }

    /// Returns the error that [`Self::end`] would return now.
    pub(crate) fn check_end(&self) -> Result<()> {
        self.0.check_end()
    }

    pub(crate) fn end(&self, py: Python<'_>) -> Result<()> {
        self.0.end(py)
    }

    /// Adds the [`ChildZeros`]. Creates it without a lock, because creation may wait for a fork.
    fn list_for_children(&self) -> Result<()> {
        let place = self.0.with(|held| match held.zeros {
            Some(_) => Ok(None),
            None => held.thing.bytes().map(Some),
        })??;
        if let Some(bytes) = place {
            let zeros = ChildZeros::new(bytes.start as usize, glebe::Bytes::new(bytes.len as u64))?;
            let late = self.0.with(|held| held.zeros.replace(zeros))?;
            drop(late);
        }
        Ok(())
    }

    /// Answers `__getbuffer__`, as [`Exported::export`] does.
    ///
    /// # Safety
    /// `view` is null or a view to fill.
    pub(crate) unsafe fn export(
        &self,
        exporter: &Bound<'_, PyAny>,
        view: *mut ffi::Py_buffer,
        flags: c_int,
    ) -> Result<()> {
        self.list_for_children()?;
        // SAFETY: the caller passes a `view` to fill, and the `Exported` keeps the bytes.
        unsafe { self.0.export(exporter, view, flags, |held| held.thing.bytes()) }
    }

    pub(crate) fn release(&self) {
        self.0.release();
    }
}
