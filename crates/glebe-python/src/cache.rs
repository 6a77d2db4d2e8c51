//! `Cache`: values of any length by key, in the idle pages of a reserve.
//!
//! Converts keys and values; [`Shared`] has the entries. A value is bytes, or a NumPy array with
//! the form that rebuilds it.

mod entries;
mod small;

use std::sync::{Arc, Mutex, PoisonError};

use pyo3::exceptions::PyKeyError;
use pyo3::prelude::*;
use pyo3::types::PyBytes;

use crate::buffers::{detached, new_bytes, Given, Wanted};
use crate::key::{decode, encode, wanted};
use crate::reserve::Reserve;
use crate::{numpy, Failure, Result};
pub(crate) use entries::Shared;
use entries::{Found, Got};
pub(crate) use small::Small;

/// Tries of a get while other threads put its key.
const TRIES: u32 = 8;

/// A mapping of keys to values in the idle pages of a reserve. The package's subclass adds the rest
/// of a mapping.
#[pyclass(frozen, subclass, module = "glebe._glebe")]
pub(crate) struct Cache(Arc<Shared>);

impl Cache {
    /// Returns the value that `get` makes; `None` if the entry is missing, lost, or changes during
    /// every try.
    fn look<T>(
        &self,
        key: &[u8],
        mut get: impl FnMut(&Found) -> Result<(Got, T)>,
    ) -> Result<Option<T>> {
        for _ in 0..TRIES {
            let Some(found) = self.0.find(key)? else { break };
            match get(&found)? {
                (Got::Whole, value) => return Ok(Some(value)),
                (Got::Lost, _) => break,
                (Got::Changed, _) => {}
            }
        }
        Ok(None)
    }

    /// Rebuilds an array; `None` if the value is not whole.
    fn array<'py>(
        &self,
        py: Python<'py>,
        key: &[u8],
        found: &Found,
        form: &[u8],
    ) -> Result<(Got, Option<Bound<'py, PyAny>>)> {
        let len = found.entry.len;
        let room = numpy::Room::new(py, len)?;
        let mut buffer = Wanted::new(room.buffer())?;
        let out = buffer.bytes();
        let got = detached(py, len, || self.0.copy(key, found, out))?;
        drop(buffer);
        let array = matches!(got, Got::Whole).then(|| room.array(form)).transpose()?;
        Ok((got, array))
    }
}

#[pymethods]
impl Cache {
    #[new]
    fn new(reserve: &Bound<'_, Reserve>, name: &str) -> Result<Self> {
        Ok(Self(reserve.get().shared(name)?))
    }

    /// Stores a copy of a value, as `cache[key] = value` does, and returns true if the cache kept
    /// it.
    ///
    /// Otherwise the key has no value. The cache keeps no value that is longer than the reserve's
    /// memory outside of allocated blocks. Raises `TypeError` for a key or a value of another type,
    /// `ValueError` for a key of more than 1 MiB, `OverflowError` for an integer beyond 64 bits,
    /// `BufferError` for a buffer that is not C-contiguous.
    fn put(&self, key: &Bound<'_, PyAny>, value: &Bound<'_, PyAny>) -> Result<bool> {
        let (py, encoded) = (key.py(), encode(key)?);
        let (value, form) = match value.is_instance_of::<PyBytes>() {
            false if numpy::is_array(value) => {
                let (value, form) = numpy::packed(value)?;
                (value, Some(form))
            }
            _ => (Given::new(value)?, None),
        };
        let bytes = value.bytes();
        let form = form.as_ref().map(|form| form.as_bytes());
        detached(py, bytes.len(), || self.0.put(encoded, bytes, form))
    }

    fn __setitem__(&self, key: &Bound<'_, PyAny>, value: &Bound<'_, PyAny>) -> Result<()> {
        self.put(key, value).map(drop)
    }

    fn __getitem__<'py>(&self, key: &Bound<'py, PyAny>) -> Result<Bound<'py, PyAny>> {
        let (py, encoded) = (key.py(), wanted(key)?);
        let value = self.look(&encoded, |found| {
            if let Some(form) = &found.entry.form {
                return self.array(py, &encoded, found, form);
            }
            let mut got = Got::Lost;
            let bytes = new_bytes(py, found.entry.len, |out| {
                got = self.0.copy(&encoded, found, out)?;
                Ok(matches!(got, Got::Whole))
            })?;
            Ok((got, bytes.map(Bound::into_any)))
        })?;
        value.flatten().ok_or_else(|| PyKeyError::new_err(key.clone().unbind()).into())
    }

    /// Copies the bytes of a value into a writable buffer and returns their number, or `None` if
    /// the cache has no value for the key.
    ///
    /// Raises `ValueError` if the buffer is too short, `BufferError` if it is read-only or not
    /// C-contiguous. After a miss the contents of `out` are unspecified.
    fn get_into(&self, key: &Bound<'_, PyAny>, out: &Bound<'_, PyAny>) -> Result<Option<usize>> {
        let (encoded, mut out) = (wanted(key)?, Wanted::new(out)?);
        let room = out.bytes();
        self.look(&encoded, |found| {
            let len = found.entry.len;
            let Some(part) = room.get_mut(..len) else {
                let room = room.len();
                let text = format!("the value has {len} bytes, the buffer has room for {room}");
                return Err(Failure::argument(text));
            };
            let got = detached(key.py(), len, || self.0.copy(&encoded, found, part))?;
            Ok((got, len))
        })
    }

    fn __delitem__(&self, key: &Bound<'_, PyAny>) -> Result<()> {
        if self.0.remove(&wanted(key)?)? {
            return Ok(());
        }
        Err(PyKeyError::new_err(key.clone().unbind()).into())
    }

    fn __contains__(&self, key: &Bound<'_, PyAny>) -> Result<bool> {
        Ok(self.0.find(&wanted(key)?)?.is_some())
    }

    fn __len__(&self) -> Result<usize> {
        self.0.len()
    }

    fn __iter__(&self) -> Result<Keys> {
        let left = self.0.keys()?.into_iter();
        Ok(Keys { shared: Arc::clone(&self.0), left: Mutex::new(left) })
    }

    /// Removes all entries.
    fn clear(&self, py: Python<'_>) -> Result<()> {
        py.detach(|| self.0.clear())
    }

    /// The number of entries that were found lost.
    #[getter]
    fn lost(&self) -> Result<u64> {
        self.0.lost()
    }
}

/// An iterator over the keys of a cache. It skips keys whose value is lost at their turn.
#[pyclass(frozen, module = "glebe._glebe")]
pub(crate) struct Keys {
    shared: Arc<Shared>,
    left: Mutex<std::vec::IntoIter<Box<[u8]>>>,
}

#[pymethods]
impl Keys {
    fn __iter__(slf: Bound<'_, Self>) -> Bound<'_, Self> {
        slf
    }

    fn __next__<'py>(&self, py: Python<'py>) -> Result<Option<Bound<'py, PyAny>>> {
        loop {
            let next = self.left.lock().unwrap_or_else(PoisonError::into_inner).next();
            let Some(key) = next else { return Ok(None) };
            for _ in 0..TRIES {
                let Some(found) = self.shared.find(&key)? else { break };
                match detached(py, found.entry.len, || self.shared.look_at(&key, &found))? {
                    Got::Whole => return decode(py, &key).map(Some),
                    Got::Lost => break,
                    Got::Changed => {}
                }
            }
        }
    }
}
