//! Encodes and decodes a cache's keys. Equal keys have equal bytes.
//!
//! ```text
//! bytes    b LEN bytes     integer           i 8 bytes     None    n
//! str      s LEN UTF-8     2**63 and above   u 8 bytes     tuple   t COUNT items
//! ```
//!
//! LEN and COUNT have 4 bytes. Numbers are little-endian. As in a `dict`, `True` and NumPy's
//! integers are integers.

use pyo3::exceptions::{PyOverflowError, PyTypeError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyInt, PyString, PyTuple};

use crate::{numpy, Failure, Result};

/// Maximum bytes of a key.
const LEN_MAX: usize = 1 << 20;
/// Bytes before those of a text or bytes.
const HEAD: usize = 5;
/// Most bytes of a key that is encoded without memory.
const SHORT_MAX: usize = 123;
/// Maximum depth of nested tuples.
const DEPTH_MAX: usize = 32;

/// Encodes `bytes`, `str`, an integer, or a `tuple` of these, `None` and tuples.
///
/// # Errors
/// `TypeError` for another type; `ValueError` for a key that is too long or too deep;
/// `OverflowError` for an integer beyond 64 bits; `UnicodeEncodeError` for lone surrogates.
pub(crate) fn encode(key: &Bound<'_, PyAny>) -> Result<Box<[u8]>> {
    if key.is_none() {
        return Err(wrong_type(key));
    }
    let mut out = Vec::with_capacity(64);
    add(key, &mut out, 0)?;
    Ok(out.into_boxed_slice())
}

/// Calls `work` with what [`wanted`] returns. A short text or bytes need no memory.
pub(crate) fn with_wanted<R>(
    key: &Bound<'_, PyAny>,
    work: impl FnOnce(&[u8]) -> Result<R>,
) -> Result<R> {
    let (tag, part) = match (key.cast::<PyBytes>(), key.cast::<PyString>()) {
        (Ok(bytes), _) => (b'b', bytes.as_bytes()),
        (_, Ok(text)) => (b's', text.to_str().map_or(&[][..], str::as_bytes)),
        _ => (0, &[][..]),
    };
    if tag == 0 || part.is_empty() || part.len() > SHORT_MAX {
        return work(&wanted(key)?);
    }
    let mut encoded = [0; HEAD + SHORT_MAX];
    encoded[0] = tag;
    encoded[1..HEAD].copy_from_slice(&(part.len() as u32).to_le_bytes());
    encoded[HEAD..HEAD + part.len()].copy_from_slice(part);
    work(&encoded[..HEAD + part.len()])
}

/// Encodes a key to look up. For a key that no cache can have, returns empty bytes, which encode no
/// key.
pub(crate) fn wanted(key: &Bound<'_, PyAny>) -> Result<Box<[u8]>> {
    let py = key.py();
    encode(key).or_else(|refused| match refused {
        Failure::Python(error)
            if error.is_instance_of::<PyTypeError>(py)
                || error.is_instance_of::<PyOverflowError>(py)
                || error.is_instance_of::<PyValueError>(py) =>
        {
            Ok(Box::default())
        }
        other => Err(other),
    })
}

fn wrong_type(object: &Bound<'_, PyAny>) -> Failure {
    let name = object.get_type().name().map_or_else(|_| "?".into(), |name| name.to_string());
    let rule = "a key is bytes, str, an integer, or a tuple of these, of None and of tuples";
    PyTypeError::new_err(format!("{rule}, not {name}")).into()
}

fn add_integer(part: &Bound<'_, PyAny>, out: &mut Vec<u8>) -> Result<()> {
    if let Ok(number) = part.extract::<i64>() {
        out.push(b'i');
        out.extend(number.to_le_bytes());
        return Ok(());
    }
    let number = part.extract::<u64>().map_err(|_| {
        PyOverflowError::new_err("an integer of a key is between -2**63 and 2**64 - 1")
    })?;
    out.push(b'u');
    out.extend(number.to_le_bytes());
    Ok(())
}

fn add(part: &Bound<'_, PyAny>, out: &mut Vec<u8>, depth: usize) -> Result<()> {
    if let Ok(text) = part.cast::<PyString>() {
        add_bytes(b's', text.to_str()?.as_bytes(), out)
    } else if let Ok(bytes) = part.cast::<PyBytes>() {
        add_bytes(b'b', bytes.as_bytes(), out)
    } else if part.is_none() {
        out.push(b'n');
        Ok(())
    } else if part.is_instance_of::<PyInt>() {
        add_integer(part, out)
    } else if let Ok(parts) = part.cast::<PyTuple>() {
        if depth == DEPTH_MAX {
            return Err(Failure::argument(format!("a key has at most {DEPTH_MAX} levels")));
        }
        add_len(b't', parts.len(), out)?;
        parts.iter().try_for_each(|part| add(&part, out, depth + 1))
    } else if numpy::is_a(part, "integer") && !numpy::is_a(part, "timedelta64") {
        add_integer(&part.call_method0("__index__")?, out)
    } else {
        Err(wrong_type(part))
    }
}

fn add_len(tag: u8, len: usize, out: &mut Vec<u8>) -> Result<()> {
    if len > LEN_MAX || out.len() > LEN_MAX {
        return Err(Failure::argument(format!("a key has at most {LEN_MAX} bytes")));
    }
    out.push(tag);
    out.extend((len as u32).to_le_bytes());
    Ok(())
}

fn add_bytes(tag: u8, bytes: &[u8], out: &mut Vec<u8>) -> Result<()> {
    add_len(tag, bytes.len(), out)?;
    out.extend(bytes);
    Ok(())
}

/// Returns the key that was encoded.
///
/// # Errors
/// `MemoryError`.
pub(crate) fn decode<'py>(py: Python<'py>, mut bytes: &[u8]) -> Result<Bound<'py, PyAny>> {
    next(py, &mut bytes)
}

fn next<'py>(py: Python<'py>, rest: &mut &[u8]) -> Result<Bound<'py, PyAny>> {
    Ok(match take::<1>(rest) {
        [b's'] => {
            let len = u32::from_le_bytes(take(rest)) as usize;
            PyString::new(py, &String::from_utf8_lossy(cut(rest, len))).into_any()
        }
        [b'b'] => {
            let len = u32::from_le_bytes(take(rest)) as usize;
            PyBytes::new(py, cut(rest, len)).into_any()
        }
        [b'i'] => i64::from_le_bytes(take(rest)).into_pyobject(py).map_err(PyErr::from)?.into_any(),
        [b'u'] => u64::from_le_bytes(take(rest)).into_pyobject(py).map_err(PyErr::from)?.into_any(),
        [b't'] => {
            let count = u32::from_le_bytes(take(rest));
            let parts: Result<Vec<_>> = (0..count).map(|_| next(py, rest)).collect();
            PyTuple::new(py, parts?)?.into_any()
        }
        _ => py.None().into_bound(py),
    })
}

fn cut<'a>(rest: &mut &'a [u8], len: usize) -> &'a [u8] {
    let (part, behind) = rest.split_at(len);
    *rest = behind;
    part
}

fn take<const N: usize>(rest: &mut &[u8]) -> [u8; N] {
    cut(rest, N).try_into().expect("as many as were cut")
}
