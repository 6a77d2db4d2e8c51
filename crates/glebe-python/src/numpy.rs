//! NumPy's classes. This package imports NumPy only after the program has.

use pyo3::prelude::*;
use pyo3::types::PyBytes;

use crate::buffers::Given;
use crate::Result;

pub(crate) fn is_a(object: &Bound<'_, PyAny>, class: &str) -> bool {
    let find = || -> PyResult<bool> {
        let modules = object.py().import("sys")?.getattr("modules")?;
        object.is_instance(&modules.get_item("numpy")?.getattr(class)?)
    };
    find().unwrap_or(false)
}

/// Returns true for a NumPy array or scalar.
pub(crate) fn is_array(object: &Bound<'_, PyAny>) -> bool {
    is_a(object, "ndarray") || is_a(object, "generic")
}

fn helpers(py: Python<'_>) -> PyResult<Bound<'_, PyModule>> {
    py.import("glebe._arrays")
}

/// Returns the bytes of an array, and the form that [`Room::array`] needs to rebuild it.
///
/// # Errors
/// `TypeError` for arrays of objects, or of a class that cannot be rebuilt.
pub(crate) fn packed<'py>(array: &Bound<'py, PyAny>) -> Result<(Given<'py>, Bound<'py, PyBytes>)> {
    let packed = helpers(array.py())?.getattr("packed")?.call1((array,))?;
    let (flat, form): (Bound<'py, PyAny>, Bound<'py, PyBytes>) = packed.extract()?;
    Ok((Given::new(&flat)?, form))
}

/// Memory for the bytes of an array.
pub(crate) struct Room<'py>(Bound<'py, PyAny>);

impl<'py> Room<'py> {
    /// # Errors
    /// `MemoryError`.
    pub(crate) fn new(py: Python<'py>, len: usize) -> Result<Self> {
        Ok(Self(helpers(py)?.getattr("room")?.call1((len,))?))
    }

    pub(crate) fn buffer(&self) -> &Bound<'py, PyAny> {
        &self.0
    }

    /// Rebuilds the array.
    ///
    /// # Errors
    /// `MemoryError`.
    pub(crate) fn array(self, form: &[u8]) -> Result<Bound<'py, PyAny>> {
        let py = self.0.py();
        Ok(helpers(py)?.getattr("unpacked")?.call1((PyBytes::new(py, form), self.0))?)
    }
}
