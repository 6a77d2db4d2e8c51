//! [`Lease`]: something whose bytes Python exports, and that ends when nobody has them any more.
//!
//! Owns the thing, and how many exports there are. An export holds a reference to the Python object
//! and so to its lease. Lock: for some instructions; the thing is dropped outside.
//!
//! # Safety
//! The bytes that an export points to stay mapped and safe to touch while the thing lives, which
//! is until the last export has ended: that is what the users of this file promise by `bytes`. In
//! a forked child, they are zeros or a copy.
#![allow(unsafe_code)]

use std::ffi::c_int;
use std::sync::{Mutex, MutexGuard, PoisonError};

use pyo3::ffi;
use pyo3::prelude::*;

use crate::{Failure, Result};

/// Bytes to export: where, how many, and whether they may be written.
pub(crate) struct Bytes {
    pub(crate) start: *mut u8,
    pub(crate) len: usize,
    pub(crate) readonly: bool,
}

struct State<T> {
    thing: Option<T>,
    exports: usize,
    /// Whether the thing goes with the last export.
    is_ending: bool,
}

pub(crate) struct Lease<T> {
    state: Mutex<State<T>>,
    /// What errors call it.
    what: &'static str,
}

impl<T> Lease<T> {
    pub(crate) fn new(what: &'static str, thing: T) -> Self {
        let state = State { thing: Some(thing), exports: 0, is_ending: false };
        Self { state: Mutex::new(state), what }
    }

    fn lock(&self) -> MutexGuard<'_, State<T>> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Looks at the thing; `look` is short and calls no Python.
    ///
    /// # Errors
    /// `ValueError` if it has ended.
    pub(crate) fn with<R>(&self, look: impl FnOnce(&mut T) -> R) -> Result<R> {
        let mut state = self.lock();
        let is_ending = state.is_ending;
        let thing = state.thing.as_mut().filter(|_| !is_ending);
        thing.map(look).ok_or_else(|| Failure::ended(self.what))
    }

    /// Ends the thing now.
    ///
    /// # Errors
    /// `BufferError` if some of its bytes are exported.
    pub(crate) fn end(&self, py: Python<'_>) -> Result<()>
    where
        T: Send,
    {
        let mut state = self.lock();
        if state.exports > 0 {
            let (exports, what) = (state.exports, self.what);
            return Err(Failure::buffer(format!(
                "{exports} arrays or views of the {what} exist: delete or release them first"
            )));
        }
        let ended = state.thing.take();
        drop(state);
        py.detach(|| drop(ended));
        Ok(())
    }

    /// Ends the thing now, or with its last export.
    pub(crate) fn end_with_exports(&self) {
        let mut state = self.lock();
        state.is_ending = true;
        let ended = if state.exports == 0 { state.thing.take() } else { None };
        drop(state);
        drop(ended);
    }

    /// Fills `view` with what `bytes` tells of the thing: the answer to `__getbuffer__`.
    ///
    /// # Errors
    /// What `bytes` says; `ValueError` if the thing has ended; `BufferError` if a buffer to be
    /// written is asked for and these are not.
    ///
    /// # Safety
    /// `view` is null or one to be filled.
    pub(crate) unsafe fn export(
        &self,
        exporter: &Bound<'_, PyAny>,
        view: *mut ffi::Py_buffer,
        flags: c_int,
        bytes: impl FnOnce(&mut T) -> Result<Bytes>,
    ) -> Result<()> {
        let mut state = self.lock();
        let is_ending = state.is_ending;
        let thing = state.thing.as_mut().filter(|_| !is_ending);
        let bytes = bytes(thing.ok_or_else(|| Failure::ended(self.what))?)?;
        // Counted under the lock: nobody ends the thing in between.
        state.exports += 1;
        drop(state);
        // SAFETY: the caller's `view`; the bytes stay, as the file's head says.
        let filled = unsafe { fill(exporter, view, flags, &bytes) };
        if filled.is_err() {
            self.release();
        }
        filled
    }

    /// Counts an export that has ended: the answer to `__releasebuffer__`.
    pub(crate) fn release(&self) {
        let mut state = self.lock();
        state.exports -= 1;
        let ends = state.is_ending && state.exports == 0;
        let ended = if ends { state.thing.take() } else { None };
        drop(state);
        drop(ended);
    }
}

/// Fills `view`, which then has a reference to `exporter`.
///
/// # Errors
/// `BufferError`, as [`Lease::export`].
///
/// # Safety
/// `view` is null or one to be filled; the bytes stay until its release.
pub(crate) unsafe fn fill(
    exporter: &Bound<'_, PyAny>,
    view: *mut ffi::Py_buffer,
    flags: c_int,
    bytes: &Bytes,
) -> Result<()> {
    if view.is_null() {
        return Err(Failure::buffer("no view to fill"));
    }
    let len = isize::try_from(bytes.len).unwrap_or(isize::MAX);
    let (start, readonly) = (bytes.start.cast(), bytes.readonly.into());
    // SAFETY: the caller's `view`, attached, an object that lives.
    let done =
        unsafe { ffi::PyBuffer_FillInfo(view, exporter.as_ptr(), start, len, readonly, flags) };
    if done == 0 {
        return Ok(());
    }
    Err(PyErr::fetch(exporter.py()).into())
}
