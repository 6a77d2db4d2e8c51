//! `Store`: objects of which no more than a budget is in memory, and `Pinned` ones as buffers.
//!
//! # Safety
//! A pinned object stays until its lease ends.
#![allow(unsafe_code)]

use std::ffi::c_int;
use std::path::PathBuf;
use std::sync::Arc;

use glebe::{swap, Bytes};
use pyo3::ffi;
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyDict, PyType};

use crate::buffers::{detached, Given};
use crate::guards::PinnedObject;
use crate::lease::Lease;
use crate::{numbers, Result};

/// The name of one object in one store; never that of another.
#[pyclass(frozen, eq, hash, module = "glebe.swap")]
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct Key(swap::Key);

#[pymethods]
impl Key {
    fn __repr__(&self) -> String {
        format!("{:?}", self.0)
    }
}

/// Objects of 1 byte to 2 MiB, of which no more than a budget is in memory; the rest is compressed.
///
/// `budget`: bytes of objects in memory. `pool_limit`: bytes of what is compressed, as much as the
/// budget unless given. `capacity`: bytes of all objects, 16 budgets unless given. `file_in`: a
/// directory for a file without a name, of up to `file_limit` bytes, for what the pool has no room
/// for. Raises `BadArgument` for a budget of zero, `NoMemory`, `SystemRefused`.
#[pyclass(frozen, module = "glebe.swap")]
pub(crate) struct Store(Arc<swap::Store>);

impl Store {
    fn pinned(
        &self,
        py: Python<'_>,
        key: &Key,
        pin: fn(&Arc<swap::Store>, swap::Key) -> std::result::Result<PinnedObject, swap::Error>,
    ) -> Result<Pinned> {
        let (store, key) = (&self.0, key.0);
        let object = py.detach(|| pin(store, key))?;
        Ok(Pinned(Lease::new("pinned object", object)))
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
    /// Raises `Budget` or `NoMemory` where no room can be made, `BadArgument` for another length
    /// than 1 byte to 2 MiB.
    fn insert(&self, py: Python<'_>, data: &Bound<'_, PyAny>) -> Result<Key> {
        let data = Given::new(data)?;
        let bytes = data.bytes();
        // Room may have to be made, of whatever length the object is.
        Ok(Key(py.detach(|| self.0.insert(bytes))?))
    }

    /// Returns the object, to read.
    ///
    /// Raises `Stale` for a key that names nothing, `Pinned` while it is pinned to be written,
    /// `Damaged`, and as `insert` where it has to come to memory.
    fn pin(&self, py: Python<'_>, key: &Key) -> Result<Pinned> {
        self.pinned(py, key, PinnedObject::read)
    }

    /// Returns the object, to read and write, alone.
    ///
    /// Raises `Pinned` while it is pinned by others, else as `pin`.
    fn pin_mut(&self, py: Python<'_>, key: &Key) -> Result<Pinned> {
        self.pinned(py, key, PinnedObject::write)
    }

    /// Frees the object and returns its bytes; raises as `pin_mut`.
    fn take<'py>(&self, py: Python<'py>, key: &Key) -> Result<Bound<'py, PyBytes>> {
        let bytes = py.detach(|| self.0.take(key.0))?;
        Ok(PyBytes::new(py, &bytes))
    }

    /// Frees the object. Raises `Stale` for a key that names nothing, `Pinned` while it is pinned.
    fn free(&self, key: &Key) -> Result<()> {
        Ok(self.0.free(key.0)?)
    }

    /// Says that the object is not needed for a while: it is among the next to leave memory.
    ///
    /// Raises `Stale` for a key that names nothing.
    fn cold(&self, key: &Key) -> Result<()> {
        Ok(self.0.cold(key.0)?)
    }

    /// Brings the object to memory; raises as `pin`.
    fn will_need(&self, py: Python<'_>, key: &Key) -> Result<()> {
        Ok(py.detach(|| self.0.will_need(key.0))?)
    }

    /// Says that the bytes are wanted no more; the key stays until it is freed.
    ///
    /// Raises `Stale` for a key that names nothing, `Pinned` while it is pinned.
    fn dead(&self, key: &Key) -> Result<()> {
        Ok(self.0.dead(key.0)?)
    }

    /// Returns counters and gauges by name, which ends in the unit.
    fn stats<'py>(&self, py: Python<'py>) -> Result<Bound<'py, PyDict>> {
        Ok(numbers(py, detached(py, usize::MAX, || self.0.stats()).lines())?)
    }
}

/// An object's bytes, a buffer, which stay in memory at one address until this is released.
#[pyclass(frozen, module = "glebe.swap")]
pub(crate) struct Pinned(Lease<PinnedObject>);

#[pymethods]
impl Pinned {
    fn __len__(&self) -> Result<usize> {
        self.0.with(|object| object.bytes().len)
    }

    /// Ends the pin, now or with the last array of it; a second call does nothing.
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
        // SAFETY: Python's view; the bytes are as the file's head says.
        unsafe { slf.get().0.export(slf.as_any(), view, flags, |object| Ok(object.bytes())) }
    }

    unsafe fn __releasebuffer__(&self, _view: *mut ffi::Py_buffer) {
        self.0.release();
    }
}
