//! NumPy's classes, where the program has imported NumPy: this package never does so for others.

use pyo3::prelude::*;
use pyo3::types::PyBytes;

use crate::buffers::Given;
use crate::Result;

/// Whether an object is of one of NumPy's classes.
pub(crate) fn is_a(object: &Bound<'_, PyAny>, class: &str) -> bool {
    let find = || -> PyResult<bool> {
        let modules = object.py().import("sys")?.getattr("modules")?;
        object.is_instance(&modules.get_item("numpy")?.getattr(class)?)
    };
    find().unwrap_or(false)
}

/// An array or a scalar of NumPy.
pub(crate) fn is_array(object: &Bound<'_, PyAny>) -> bool {
    is_a(object, "ndarray") || is_a(object, "generic")
}

fn helpers(py: Python<'_>) -> PyResult<Bound<'_, PyModule>> {
    py.import("glebe._arrays")
}

/// The bytes of an array, and the form by which [`Room::array`] makes an array of them.
///
/// # Errors
/// `TypeError` for objects, and for a class that would not come back.
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

    /// A buffer of the bytes.
    pub(crate) fn buffer(&self) -> &Bound<'py, PyAny> {
        &self.0
    }

    /// An array of this form that has the bytes.
    ///
    /// # Errors
    /// `MemoryError`.
    pub(crate) fn array(self, form: &[u8]) -> Result<Bound<'py, PyAny>> {
        let py = self.0.py();
        Ok(helpers(py)?.getattr("unpacked")?.call1((PyBytes::new(py, form), self.0))?)
    }
}
