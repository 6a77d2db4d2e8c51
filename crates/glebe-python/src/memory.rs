//! [`Memory`]: contiguous memory as a buffer, of which a forked child inherits nothing.
//!
//! Owns the thing that has the memory, and from the first export on what children find at its
//! place: zeros ([`ChildZeros`]), which go first.
//!
//! # Safety
//! The bytes stay until the lease ends ([`lease`](crate::lease)).
#![allow(unsafe_code)]

use std::ffi::c_int;

use glebe::sys::child_zeros::ChildZeros;
use pyo3::ffi;
use pyo3::prelude::*;

use crate::lease::{Bytes, Lease};
use crate::Result;

/// What has contiguous memory.
pub(crate) trait Contiguous: Send {
    /// What errors call it.
    const WHAT: &'static str;

    /// All of its bytes, which stay where they are while it lives.
    ///
    /// # Errors
    /// `Forked` in a child.
    fn bytes(&mut self) -> Result<Bytes>;
}

struct Held<T> {
    zeros: Option<ChildZeros>,
    thing: T,
}

pub(crate) struct Memory<T>(Lease<Held<T>>);

impl<T: Contiguous> Memory<T> {
    pub(crate) fn new(thing: T) -> Self {
        Self(Lease::new(T::WHAT, Held { zeros: None, thing }))
    }

    /// As [`Lease::with`].
    pub(crate) fn with<R>(&self, look: impl FnOnce(&mut T) -> R) -> Result<R> {
        self.0.with(|held| look(&mut held.thing))
    }

    /// As [`Lease::end`].
    pub(crate) fn end(&self, py: Python<'_>) -> Result<()> {
        self.0.end(py)
    }

    /// Lists the memory for children, without the lock: that may wait for a fork.
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

    /// The answer to `__getbuffer__`: as [`Lease::export`].
    ///
    /// # Safety
    /// `view` is null or one to be filled.
    pub(crate) unsafe fn export(
        &self,
        exporter: &Bound<'_, PyAny>,
        view: *mut ffi::Py_buffer,
        flags: c_int,
    ) -> Result<()> {
        self.list_for_children()?;
        // SAFETY: the caller's `view`; the bytes stay, as the file's head says.
        unsafe { self.0.export(exporter, view, flags, |held| held.thing.bytes()) }
    }

    /// The answer to `__releasebuffer__`.
    pub(crate) fn release(&self) {
        self.0.release();
    }
}
