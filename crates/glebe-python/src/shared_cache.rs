//! `SharedCache`: values by key that all processes of a user share.

use std::path::PathBuf;
use std::sync::Arc;

use glebe::Bytes;
use pyo3::exceptions::PyKeyError;
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyDict, PyString};

use crate::buffers::{detached, new_bytes, Given};
use crate::key::{encode, wanted, with_wanted};
use crate::lease::bytes_of;
use crate::{numbers, Result};

/// A cache that all processes of the user find by its name.
///
/// Keys are those of `Cache`; values are bytes and C-contiguous buffers, and come back as `bytes`.
/// Any value may vanish. Forked children use the same cache, and a pickled one is opened again.
#[pyclass(frozen, module = "glebe")]
pub(crate) struct SharedCache {
    cache: Arc<glebe::cache::SharedCache>,
    socket: Option<PathBuf>,
}

/// Opens the user's cache `name`, or makes it.
///
/// The cache uses the idle memory of the daemon that `glebe serve --leases` runs, until a lease
/// needs it. Where no daemon runs, a volatile file in memory serves, which `glebe reclaim` can
/// purge. `name`: 1 to 32 bytes. `size`: bytes, or a text such as "2G"; 256 MiB by default. A size
/// beyond the daemon's reserve becomes the reserve's, and an existing cache keeps its size
/// (`nbytes`). `socket`: path of the daemon's socket; with it, no file serves.
///
/// Raises `BadArgument` for an empty or too long name and a size of zero, `NoMemory` with the limit
/// if the user has too many caches, `SystemRefused`, also for a `socket` without a daemon.
#[pyfunction]
#[pyo3(signature = (name, size = None, *, socket = None))]
pub(crate) fn shared_cache(
    py: Python<'_>,
    name: &str,
    size: Option<&Bound<'_, PyAny>>,
    socket: Option<PathBuf>,
) -> Result<SharedCache> {
    let mut options = glebe::cache::SharedCache::options();
    if let Some(size) = size {
        options = options.size(Bytes::new(bytes_of("size", size)?));
    }
    if let Some(socket) = &socket {
        options = options.socket(socket);
    }
    let cache = py.detach(|| options.open(name))?;
    Ok(SharedCache { cache: Arc::new(cache), socket })
}

impl SharedCache {
    fn found<'py>(
        &self,
        py: Python<'py>,
        key: &Bound<'py, PyAny>,
    ) -> Result<Option<Bound<'py, PyBytes>>> {
        with_wanted(key, |key| {
            let found = self.cache.lookup(key, |found| {
                new_bytes(py, found.len(), |out| Ok(found.copy(out))).transpose()
            });
            found.transpose()
        })
    }
}

#[pymethods]
impl SharedCache {
    /// Stores a copy of a value, as `cache[key] = value` does. A full cache drops older values.
    /// Returns false if there is no memory at all; the key then has no value.
    ///
    /// Raises `BadArgument` if key and value are longer than `limit`; the key then has no value.
    /// Raises the errors of `Cache.put`.
    fn put(&self, key: &Bound<'_, PyAny>, value: &Bound<'_, PyAny>) -> Result<bool> {
        let (py, key, value) = (key.py(), encode(key)?, Given::new(value)?);
        let bytes = value.bytes();
        Ok(detached(py, bytes.len(), || self.cache.put(&key, bytes))?)
    }

    fn __setitem__(&self, key: &Bound<'_, PyAny>, value: &Bound<'_, PyAny>) -> Result<()> {
        self.put(key, value).map(drop)
    }

    fn __getitem__<'py>(&self, key: &Bound<'py, PyAny>) -> Result<Bound<'py, PyBytes>> {
        let found = self.found(key.py(), key)?;
        found.ok_or_else(|| PyKeyError::new_err(key.clone().unbind()).into())
    }

    /// Returns the value of a key, or `default`.
    #[pyo3(signature = (key, default = None))]
    fn get<'py>(
        &self,
        key: &Bound<'py, PyAny>,
        default: Option<Bound<'py, PyAny>>,
    ) -> Result<Option<Bound<'py, PyAny>>> {
        Ok(self.found(key.py(), key)?.map(Bound::into_any).or(default))
    }

    fn __delitem__(&self, key: &Bound<'_, PyAny>) -> Result<()> {
        match self.cache.remove(&wanted(key)?) {
            true => Ok(()),
            false => Err(PyKeyError::new_err(key.clone().unbind()).into()),
        }
    }

    /// Removes a value. Returns true if there was one.
    fn remove(&self, key: &Bound<'_, PyAny>) -> Result<bool> {
        Ok(self.cache.remove(&wanted(key)?))
    }

    fn __contains__(&self, key: &Bound<'_, PyAny>) -> Result<bool> {
        Ok(self.cache.lookup(&wanted(key)?, |_| Some(())).is_some())
    }

    /// The cache's name.
    #[getter]
    fn name(&self) -> &str {
        self.cache.name()
    }

    /// The size in bytes. Parts of it may have no memory at a time.
    #[getter]
    fn nbytes(&self) -> u64 {
        self.cache.size().get()
    }

    /// The most bytes of a key with its value. A key takes up to 5 bytes more than its length.
    #[getter]
    fn limit(&self) -> usize {
        self.cache.limit()
    }

    /// True if the memory is the daemon's, false if it is a file's.
    #[getter]
    fn of_daemon(&self) -> bool {
        self.cache.is_of_daemon()
    }

    /// Returns this object's counters by name.
    fn stats<'py>(&self, py: Python<'py>) -> Result<Bound<'py, PyDict>> {
        Ok(numbers(py, self.cache.stats().lines())?)
    }

    /// Ends the cache for all processes of the user. Those that have it open find it empty.
    fn end(&self, py: Python<'_>) -> Result<()> {
        Ok(py.detach(|| self.cache.end())?)
    }

    /// Without it, `list` would ask for the keys 0, 1 and so on.
    #[classattr]
    #[pyo3(name = "__iter__")]
    const NO_ITERATOR: Option<bool> = None;

    fn __repr__(&self, py: Python<'_>) -> Result<String> {
        let (name, size) = (PyString::new(py, self.cache.name()).repr()?, self.cache.size());
        Ok(format!("<glebe.SharedCache {name}, {size}>"))
    }

    fn __reduce__(&self, py: Python<'_>) -> Result<(Py<PyAny>, (String, u64))> {
        let mut open = py.import("glebe")?.getattr("shared_cache")?;
        if let Some(socket) = &self.socket {
            let options = PyDict::new(py);
            options.set_item("socket", socket)?;
            open = py.import("functools")?.getattr("partial")?.call((open,), Some(&options))?;
        }
        Ok((open.unbind(), (self.cache.name().to_owned(), self.cache.size().get())))
    }
}
