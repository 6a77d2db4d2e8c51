//! [`Lent`] is a buffer that a Python caller lends for one call; [`new_bytes`] makes new `bytes`.
//!
//! # Safety
//! A [`Lent`] keeps its C-contiguous buffer exported until the drop, so that the bytes stay in
//! place. The library copies the bytes and reads each only once, so a concurrent writer only makes
//! the copy a mixture of old and new bytes.
#![allow(unsafe_code)]

use std::ffi::{c_char, CStr};
use std::slice;

use pyo3::ffi;
use pyo3::prelude::*;
use pyo3::types::PyBytes;

use crate::{Failure, Result};

/// A call on this number of bytes takes longer than a microsecond.
const LONG: usize = 16 << 10;

/// Calls `work`, which handles `len` bytes. Lets other threads run meanwhile if `len` is large.
pub(crate) fn detached<T: Send>(py: Python<'_>, len: usize, work: impl FnOnce() -> T + Send) -> T {
    if len < LONG {
        return work();
    }
    py.detach(work)
}

/// A lent buffer of any dimensions, 0 included.
pub(crate) struct Lent(Box<ffi::Py_buffer>);

impl Lent {
    /// # Errors
    /// `TypeError` for no buffer; `BufferError` for one that is not C-contiguous or holds objects.
    fn new(object: &Bound<'_, PyAny>) -> Result<Self> {
        let mut view = Box::new(ffi::Py_buffer::new());
        // SAFETY: attached; the boxed view stays in place.
        let done =
            unsafe { ffi::PyObject_GetBuffer(object.as_ptr(), &raw mut *view, ffi::PyBUF_FULL_RO) };
        if done != 0 {
            return Err(PyErr::fetch(object.py()).into());
        }
        let lent = Self(view);
        // SAFETY: the view was filled.
        if unsafe { ffi::PyBuffer_IsContiguous(&raw const *lent.0, b'C' as c_char) } == 0 {
            return Err(Failure::buffer("a C-contiguous buffer is needed; this one is not"));
        }
        if lent.has_objects() {
            return Err(Failure::buffer("a buffer of Python objects cannot be copied as bytes"));
        }
        Ok(lent)
    }

    /// Returns true if elements hold objects, so that the bytes are addresses. Colons enclose the
    /// names of fields.
    fn has_objects(&self) -> bool {
        if self.0.format.is_null() {
            return false;
        }
        // SAFETY: the exporter's text lives as long as the view.
        let format = unsafe { CStr::from_ptr(self.0.format) }.to_bytes();
        format.split(|byte| *byte == b':').step_by(2).any(|codes| codes.contains(&b'O'))
    }

    fn len(&self) -> usize {
        self.0.len.unsigned_abs()
    }
}

impl Drop for Lent {
    fn drop(&mut self) {
        // SAFETY: attached; the filled view is released once.
        Python::attach(|_| unsafe { ffi::PyBuffer_Release(&raw mut *self.0) });
    }
}

pub(crate) enum Given<'py> {
    Bytes(Bound<'py, PyBytes>),
    Buffer(Lent),
}

impl<'py> Given<'py> {
    /// # Errors
    /// The errors of [`Lent::new`].
    pub(crate) fn new(object: &Bound<'py, PyAny>) -> Result<Self> {
        if let Ok(bytes) = object.cast::<PyBytes>() {
            return Ok(Self::Bytes(bytes.clone()));
        }
        Lent::new(object).map(Self::Buffer)
    }

    pub(crate) fn bytes(&self) -> &[u8] {
        match self {
            Self::Bytes(bytes) => bytes.as_bytes(),
            // SAFETY: the view keeps `len` contiguous bytes in place.
            Self::Buffer(lent) if lent.len() > 0 => unsafe {
                slice::from_raw_parts(lent.0.buf.cast(), lent.len())
            },
            Self::Buffer(_) => &[],
        }
    }
}

pub(crate) struct Wanted(Lent);

impl Wanted {
    /// # Errors
    /// The errors of [`Given::new`]; `BufferError` for a read-only buffer.
    pub(crate) fn new(object: &Bound<'_, PyAny>) -> Result<Self> {
        let lent = Lent::new(object)?;
        if lent.0.readonly != 0 {
            return Err(Failure::buffer("a buffer to write to is needed; this one is read-only"));
        }
        Ok(Self(lent))
    }

    pub(crate) fn bytes(&mut self) -> &mut [u8] {
        if self.0.len() == 0 {
            return &mut [];
        }
        // SAFETY: the view keeps `len` contiguous, writable bytes in place.
        unsafe { slice::from_raw_parts_mut(self.0 .0.buf.cast(), self.0.len()) }
    }
}

/// Returns new `bytes`; `None` if `fill` returns false. `fill` only writes, and returns true only
/// if it set every byte.
///
/// # Errors
/// The errors of `fill`, and `MemoryError`.
pub(crate) fn new_bytes<'py>(
    py: Python<'py>,
    len: usize,
    fill: impl FnOnce(&mut [u8]) -> Result<bool> + Send,
) -> Result<Option<Bound<'py, PyBytes>>> {
    let size = isize::try_from(len).unwrap_or(isize::MAX);
    // SAFETY: `py` shows that the thread is attached. The new bytes are unset, but `fill` only
    // writes, and other code gets the bytes only after `fill` has set all.
    let (bytes, room) = unsafe {
        let made = ffi::PyBytes_FromStringAndSize(std::ptr::null(), size);
        let made = Bound::from_owned_ptr_or_err(py, made)?;
        let start: *mut u8 = ffi::PyBytes_AsString(made.as_ptr()).cast();
        (made.cast_into_unchecked::<PyBytes>(), slice::from_raw_parts_mut(start, len))
    };
    let is_filled = detached(py, len, || fill(room))?;
    Ok(is_filled.then_some(bytes))
}
