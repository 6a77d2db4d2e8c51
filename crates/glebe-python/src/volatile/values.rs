//! `Values`: results by number in volatile memory, the base of `glebe.volatile.volatile_cache`.
//!
//! The kernel cannot take a result that has a [`Value`], a read-only buffer.
//!
//! # Safety
//! A pinned value stays until its `Exported` ends.
#![allow(unsafe_code)]

use std::convert::Infallible;
use std::ffi::c_int;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::Arc;

use glebe::volatile::{BuildError, Cache, Refills};
use glebe::Bytes;
use pyo3::exceptions::{PyMemoryError, PyValueError};
use pyo3::ffi;
use pyo3::prelude::*;
use pyo3::types::PyDict;

use crate::buffers::Given;
use crate::exports::Exported;
use crate::guards::{self, PinnedValue};
use crate::{numbers, Failure, Result};

/// Results by number that the kernel may take.
#[pyclass(frozen, module = "glebe._glebe")]
pub(crate) struct Values {
    values: Arc<guards::Values>,
    /// Calls that found a result, and calls that did not. Counted here, not in Python, because
    /// Python's `+=` loses counts without the GIL.
    hits: AtomicU64,
    misses: AtomicU64,
}

#[pymethods]
impl Values {
    #[new]
    #[pyo3(signature = (addresses, hot = None))]
    fn new(py: Python<'_>, addresses: u64, hot: Option<u64>) -> Result<Self> {
        let options = Cache::options().refills(Refills::default());
        let options = match hot {
            Some(hot) => options.hot(Bytes::new(hot)),
            None => options,
        };
        let values = Arc::new(py.detach(|| options.build(Bytes::new(addresses)))?);
        Ok(Self { values, hits: AtomicU64::new(0), misses: AtomicU64::new(0) })
    }

    /// Returns the result of a number; `None` if it is missing or the kernel took a part.
    fn get(&self, py: Python<'_>, number: u64) -> Option<Value> {
        let found = py.detach(|| {
            PinnedValue::found(&self.values, |values| Ok::<_, Infallible>(values.get(&number)))
        });
        let Ok(value) = found;
        value.map(Value::new)
    }

    /// Copies `result` into the cache and returns it as a value. Without room, returns a value that
    /// `get` will not find.
    ///
    /// Raises `MemoryError` if ordinary memory for the result is short, `ValueError` if the result
    /// exceeds the cache's address range.
    fn keep(&self, py: Python<'_>, number: u64, result: &Bound<'_, PyAny>) -> Result<Value> {
        let given = Given::new(result)?;
        let bytes = given.bytes();
        let build = |room: &mut [u8]| {
            room.copy_from_slice(bytes);
            Ok(())
        };
        let kept = py.detach(|| {
            PinnedValue::found(&self.values, |values| {
                values.get_or_build::<Infallible>(number, bytes.len(), build).map(Some)
            })
        });
        match kept.map_err(refused)? {
            Some(value) => Ok(Value::new(value)),
            None => Err(Failure::argument("a value that was not kept")),
        }
    }

    fn remove(&self, number: u64) -> bool {
        self.values.remove(&number)
    }

    fn clear(&self, py: Python<'_>) {
        py.detach(|| self.values.clear());
    }

    /// Marks and drops all results that no `Value` pins, as the kernel would. Returns the number of
    /// bytes dropped.
    fn drop_unused(&self, py: Python<'_>) -> Result<u64> {
        let dropped = py.detach(|| {
            self.values.offer_all();
            self.values.drop_marked()
        });
        Ok(dropped?.get())
    }

    fn stats<'py>(&self, py: Python<'py>) -> Result<Bound<'py, PyDict>> {
        let stats = numbers(py, self.values.stats().lines())?;
        stats.set_item("hits", self.hits.load(Ordering::Relaxed))?;
        stats.set_item("misses", self.misses.load(Ordering::Relaxed))?;
        Ok(stats)
    }

    fn count(&self, is_hit: bool) {
        let count = if is_hit { &self.hits } else { &self.misses };
        count.fetch_add(1, Ordering::Relaxed);
    }

    fn __len__(&self) -> usize {
        self.values.len()
    }
}

fn refused(error: BuildError<Infallible>) -> Failure {
    Failure::Python(match &error {
        BuildError::NoMemory { .. } => PyMemoryError::new_err(error.to_string()),
        _ => PyValueError::new_err(error.to_string()),
    })
}

/// A result that stays in memory while this object exists.
#[pyclass(frozen, module = "glebe._glebe")]
pub(crate) struct Value(Exported<PinnedValue>);

impl Value {
    fn new(value: PinnedValue) -> Self {
        Self(Exported::new("value", value))
    }
}

#[pymethods]
impl Value {
    /// True if the cache keeps the value.
    #[getter]
    fn is_kept(&self) -> Result<bool> {
        self.0.with(|value| value.is_kept())
    }

    unsafe fn __getbuffer__(
        slf: Bound<'_, Self>,
        view: *mut ffi::Py_buffer,
        flags: c_int,
    ) -> Result<()> {
        // SAFETY: Python passes a view to fill, and the `Exported` keeps the value pinned.
        unsafe { slf.get().0.export(slf.as_any(), view, flags, |value| Ok(value.bytes())) }
    }

    unsafe fn __releasebuffer__(&self, _view: *mut ffi::Py_buffer) {
        self.0.release();
    }
}
