//! [`Exported`] owns a *thing*, whose bytes Python exports. The thing ends only when no export is
//! left.
//!
//! An export has a reference to the Python object, and so keeps the thing alive. Lock: held for a
//! few instructions, but not while the thing is dropped.
//!
//! # Safety
//! Users of this file promise that the exported bytes stay mapped and safe to touch while the thing
//! lives. The thing outlives all exports. In a forked child the bytes may be zeros or a copy.
#![allow(unsafe_code)]

use std::ffi::c_int;
use std::sync::{Mutex, MutexGuard, PoisonError};

use pyo3::ffi;
use pyo3::prelude::*;

use crate::{Failure, Result};

pub(crate) struct Bytes {
    pub(crate) start: *mut u8,
    pub(crate) len: usize,
    pub(crate) readonly: bool,
}

struct State<T> {
    thing: Option<T>,
    exports: usize,
    /// True if the thing ends with the last export.
    is_ending: bool,
}

pub(crate) struct Exported<T> {
    state: Mutex<State<T>>,
    /// Name of the thing in errors.
    what: &'static str,
}

impl<T> Exported<T> {
    pub(crate) fn new(what: &'static str, thing: T) -> Self {
        let state = State { thing: Some(thing), exports: 0, is_ending: false };
        Self { state: Mutex::new(state), what }
    }

    fn lock(&self) -> MutexGuard<'_, State<T>> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Calls `look`, which is short and does not call Python.
    ///
    /// # Errors
    /// `ValueError` if the thing has ended.
    pub(crate) fn with<R>(&self, look: impl FnOnce(&mut T) -> R) -> Result<R> {
        let mut state = self.lock();
        let is_ending = state.is_ending;
        let thing = state.thing.as_mut().filter(|_| !is_ending);
        thing.map(look).ok_or_else(|| Failure::ended(self.what))
    }

    fn check(&self, state: &State<T>) -> Result<()> {
        if state.exports == 0 {
            return Ok(());
        }
        let (exports, what) = (state.exports, self.what);
        Err(Failure::buffer(format!(
            "{exports} arrays or views of the {what} exist: delete or release them first"
        )))
    }

    /// Returns the error that [`Self::end`] would return now.
    pub(crate) fn check_end(&self) -> Result<()> {
        self.check(&self.lock())
    }

    /// Ends the thing.
    ///
    /// # Errors
    /// `BufferError` if bytes are exported.
    pub(crate) fn end(&self, py: Python<'_>) -> Result<()>
    where
        T: Send,
    {
        let mut state = self.lock();
        self.check(&state)?;
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

    /// Answers `__getbuffer__`: fills `view` with what `bytes` returns.
    ///
    /// # Errors
    /// The errors of `bytes`; `ValueError` if the thing has ended; `BufferError` if Python asks for
    /// a writable buffer and the bytes are read-only.
    ///
    /// # Safety
    /// `view` is null or a view to fill.
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
        // Counts under the lock, so nobody ends the thing in between.
        state.exports += 1;
        drop(state);
        // SAFETY: the caller passes a `view` to fill, and the counted export keeps the bytes.
        let filled = unsafe { fill(exporter, view, flags, &bytes) };
        if filled.is_err() {
            self.release();
        }
        filled
    }

    /// Answers `__releasebuffer__`.
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
/// `BufferError`, as in [`Exported::export`].
///
/// # Safety
/// `view` is null or a view to fill; the bytes stay until it is released.
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
    // SAFETY: the view is not null and to be filled; the thread is attached; `exporter` lives.
    let done =
        unsafe { ffi::PyBuffer_FillInfo(view, exporter.as_ptr(), start, len, readonly, flags) };
    if done == 0 {
        return Ok(());
    }
    Err(PyErr::fetch(exporter.py()).into())
}
