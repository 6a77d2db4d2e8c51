//! `Store` compresses objects beyond a budget. `Pinned` exports an object as a buffer.
//!
//! # Safety
//! A pinned object stays until its `Exported` ends.
#![allow(unsafe_code)]

use std::ffi::c_int;
use std::path::PathBuf;
use std::sync::Arc;

use glebe::{swap, Bytes};
use pyo3::ffi;
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyDict, PyType};

use crate::buffers::{detached, Given};
use crate::exports::Exported;
use crate::guards::PinnedObject;
use crate::{numbers, Result};

/// The name of one object in one store. No other object ever gets it.
#[pyclass(frozen, eq, hash, module = "glebe.swap")]
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct Key(swap::Key);

#[pymethods]
impl Key {
    fn __repr__(&self) -> String {
        format!("{:?}", self.0)
    }
}

/// Keeps objects of 1 byte to 2 MiB, and compresses objects beyond `budget`.
///
/// `budget`: bytes of objects in memory. `pool_limit`: bytes of compressed objects; by default the
/// budget. `capacity`: bytes of all objects; by default `16 * budget`. `file_in`: a directory for
/// an unnamed file of up to `file_limit` bytes, used when the pool is full. Raises `BadArgument`
/// for a budget of zero, `NoMemory`, `SystemRefused`.
#[pyclass(frozen, module = "glebe.swap")]
pub(crate) struct Store(Arc<swap::Store>);

impl Store {
    fn pinned(
        &self,
        py: Python<'_>,
        key: &Key,
        pin: fn(&Arc<swap::Store>, swap::Key) -> std::result::Result<PinnedObject, swap::SwapError>,
    ) -> Result<Pinned> {
        let (store, key) = (&self.0, key.0);
        let object = py.detach(|| pin(store, key))?;
        Ok(Pinned(Exported::new("pinned object", object)))
    }
}

#[pymethods]
impl Store {
    #[new]
    #[pyo3(signature = (
        budget, *, pool_limit = None, capacity = None, file_in = None, file_limit = 1 << 40
    ))]
    fn new(
        py: Python<'_>,
        budget: u64,
        pool_limit: Option<u64>,
        capacity: Option<u64>,
        file_in: Option<PathBuf>,
        file_limit: u64,
    ) -> Result<Self> {
        let mut options = swap::Store::options();
        if let Some(limit) = pool_limit {
            options = options.pool_limit(Bytes::new(limit));
        }
        if let Some(capacity) = capacity {
            options = options.capacity(Bytes::new(capacity));
        }
        if let Some(dir) = file_in {
            options = options.file_in(dir, Bytes::new(file_limit));
        }
        Ok(Self(Arc::new(py.detach(|| options.build(Bytes::new(budget)))?)))
    }

    /// Stores a copy of a buffer and returns its key.
    ///
    /// Raises `Budget` or `NoMemory` if no room can be made, `BadArgument` for a length other than
    /// 1 byte to 2 MiB.
    fn insert(&self, py: Python<'_>, data: &Bound<'_, PyAny>) -> Result<Key> {
        let data = Given::new(data)?;
        let bytes = data.bytes();
        // Lets other threads run, because making room may take long.
        Ok(Key(py.detach(|| self.0.insert(bytes))?))
    }

    /// Returns the object for reading.
    ///
    /// Raises `Stale` for a key without an object, `Pinned` while the object is pinned for writing,
    /// `Damaged`, and the errors of `insert` if the object must be brought into memory.
    fn pin(&self, py: Python<'_>, key: &Key) -> Result<Pinned> {
        self.pinned(py, key, PinnedObject::read)
    }

    /// Returns the object for reading and writing, with no other pin.
    ///
    /// Raises `Pinned` while the object has another pin, and the other errors of `pin`.
    fn pin_mut(&self, py: Python<'_>, key: &Key) -> Result<Pinned> {
        self.pinned(py, key, PinnedObject::write)
    }

    /// Frees the object and returns its bytes. Raises the errors of `pin_mut` except `Budget`.
    fn take<'py>(&self, py: Python<'py>, key: &Key) -> Result<Bound<'py, PyBytes>> {
        let bytes = py.detach(|| self.0.take(key.0))?;
        Ok(PyBytes::new(py, &bytes))
    }

    /// Frees the object. Raises `Stale` for a key without an object, `Pinned` for a pinned object.
    fn free(&self, key: &Key) -> Result<()> {
        Ok(self.0.free(key.0)?)
    }

    /// Hints that the object is not needed for a while: it is among the next to leave memory.
    ///
    /// Raises `Stale` for a key without an object.
    fn cold(&self, key: &Key) -> Result<()> {
        Ok(self.0.cold(key.0)?)
    }

    /// Brings the object into memory. Raises the errors of `pin` except `Pinned`.
    fn will_need(&self, py: Python<'_>, key: &Key) -> Result<()> {
        Ok(py.detach(|| self.0.will_need(key.0))?)
    }

    /// Frees the object's bytes, now or with the last pin. The key stays until `free`. Raises
    /// `Stale` for a key without an object.
    fn dead(&self, key: &Key) -> Result<()> {
        Ok(self.0.dead(key.0)?)
    }

    /// Returns counters and gauges by name. Each name ends in its unit.
    fn stats<'py>(&self, py: Python<'py>) -> Result<Bound<'py, PyDict>> {
        Ok(numbers(py, detached(py, usize::MAX, || self.0.stats()).lines())?)
    }
}

/// The bytes of an object as a buffer. They stay in memory at one address until `release`.
#[pyclass(frozen, module = "glebe.swap")]
pub(crate) struct Pinned(Exported<PinnedObject>);

#[pymethods]
impl Pinned {
    fn __len__(&self) -> Result<usize> {
        self.0.with(|object| object.bytes().len)
    }

    /// Ends the pin when no array or view uses its bytes. A second call does nothing.
    fn release(&self) {
        self.0.end_with_exports();
    }

    fn __enter__(slf: Bound<'_, Self>) -> Bound<'_, Self> {
        slf
    }

    fn __exit__(
        &self,
        _type: Option<Bound<'_, PyType>>,
        _value: Option<Bound<'_, PyAny>>,
        _traceback: Option<Bound<'_, PyAny>>,
    ) {
        self.release();
    }

    unsafe fn __getbuffer__(
        slf: Bound<'_, Self>,
        view: *mut ffi::Py_buffer,
        flags: c_int,
    ) -> Result<()> {
        // SAFETY: Python passes a view to fill, and the `Exported` keeps the object pinned.
        unsafe { slf.get().0.export(slf.as_any(), view, flags, |object| Ok(object.bytes())) }
    }

    unsafe fn __releasebuffer__(&self, _view: *mut ffi::Py_buffer) {
        self.0.release();
    }
}
