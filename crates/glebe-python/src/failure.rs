//! [`Failure`] turns the library's errors into exceptions of `glebe.errors`.
//!
//! The text is the library's, and the class is the kind of error. Attributes other than `errno`
//! count pages in `NoRun`, and bytes in other classes.

use std::io::ErrorKind;

use glebe::internal::sys::errno::{EAGAIN, EDQUOT, EINVAL, ENOMEM};
use glebe::{cache::CacheError, contig, error::OsError, lease, reserve, swap, volatile, zpool};
use pyo3::exceptions::{PyBufferError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::PyTuple;

#[derive(Debug)]
pub(crate) enum Failure {
    Reserve(reserve::ReserveError),
    Contig(contig::Error),
    Lease(lease::LeaseError),
    Shared(CacheError),
    Volatile(volatile::Error),
    Swap(swap::SwapError),
    Pool(zpool::Error),
    /// The text of a size is none.
    BadSize(String),
    /// An exception that already exists.
    Python(PyErr),
}

macro_rules! from {
    ($($variant:ident($error:ty))*) => {
        $(impl From<$error> for Failure {
            fn from(error: $error) -> Self {
                Self::$variant(error)
            }
        })*
    };
}

from! {
    Reserve(reserve::ReserveError) Contig(contig::Error) Lease(lease::LeaseError)
    Shared(CacheError) Volatile(volatile::Error) Swap(swap::SwapError) Pool(zpool::Error)
}

impl From<PyErr> for Failure {
    fn from(error: PyErr) -> Self {
        Self::Python(error)
    }
}

impl From<OsError> for Failure {
    fn from(error: OsError) -> Self {
        Self::Reserve(error.into())
    }
}

impl Failure {
    /// Makes a `BufferError`: a buffer prevents the call, or is unsuitable.
    pub(crate) fn buffer(text: impl Into<String>) -> Self {
        Self::Python(PyBufferError::new_err(text.into()))
    }

    pub(crate) fn argument(text: impl Into<String>) -> Self {
        Self::Python(PyValueError::new_err(text.into()))
    }

    pub(crate) fn ended(what: &str) -> Self {
        Self::argument(format!("the {what} was closed or freed before"))
    }
}

/// A class of `glebe.errors`, and the attributes of the exception.
type Kind = (&'static str, Vec<(&'static str, u64)>);

fn kind_of_os(error: &OsError) -> Kind {
    let errno = error.errno().map(|errno| ("errno", errno.unsigned_abs().into()));
    let class = match error.kind() {
        ErrorKind::OutOfMemory | ErrorKind::StorageFull => "NoMemory",
        _ => "SystemRefused",
    };
    (class, errno.into_iter().collect())
}

fn kind_of_reserve(error: &reserve::ReserveError) -> Kind {
    use reserve::ReserveError as E;
    match error {
        E::NoRun { asked, largest } | E::NoAlignedRun { asked, largest, .. } => {
            ("NoRun", vec![("asked", asked.get()), ("longest", largest.get())])
        }
        E::Forked => ("Forked", Vec::new()),
        E::WouldWait => ("WouldWait", Vec::new()),
        E::NoRoom { left: free, .. } | E::NotGiven { free, .. } => {
            ("NoMemory", vec![("available", free.get())])
        }
        E::Contig(error) => kind_of_contig(error),
        E::Os(error) => kind_of_os(error),
        _ => ("BadArgument", Vec::new()),
    }
}

fn kind_of_contig(error: &contig::Error) -> Kind {
    use contig::Error as E;
    let bytes = |available: glebe::Bytes| ("NoMemory", vec![("available", available.get())]);
    match error {
        E::TooLarge { available, .. } => bytes(*available),
        E::CgroupLimit { limit, usage, .. } => bytes(limit.saturating_sub(*usage)),
        E::NotContiguous { longest, .. } => bytes(*longest),
        E::NotHuge { huge, .. } => bytes(*huge),
        E::Os(error) => kind_of_os(error),
        E::ZeroLength | E::BadAlign { .. } | E::NoHeap { .. } => ("BadArgument", Vec::new()),
        E::NoSuchNode { .. } | E::EmptyNode { .. } | E::NoNodes { .. } => {
            ("BadArgument", Vec::new())
        }
        _ => ("NoMemory", Vec::new()),
    }
}

fn kind_of_lease(error: &lease::LeaseError) -> Kind {
    use lease::LeaseError as E;
    match error {
        E::NoDaemon { source, .. } | E::Connection(source) => {
            let errno = source.raw_os_error().map(|errno| ("errno", errno.unsigned_abs().into()));
            ("SystemRefused", errno.into_iter().collect())
        }
        E::Silent { .. } => ("SystemRefused", vec![("errno", EAGAIN.unsigned_abs().into())]),
        E::Refused { errno, limit, .. } => kind_of_refusal(*errno, limit.get()),
        E::Revoked => ("Purged", Vec::new()),
        E::Forked => ("Forked", Vec::new()),
        E::Beyond { .. } => ("BadArgument", Vec::new()),
        E::HandlerCovered => ("Unsupported", Vec::new()),
        E::Os(error) => kind_of_os(error),
        _ => ("SystemRefused", Vec::new()),
    }
}

fn kind_of_cache(error: &CacheError) -> Kind {
    use CacheError as E;
    match error {
        E::TooLong { limit, .. } => ("BadArgument", vec![("limit", *limit as u64)]),
        E::Lease(error) => kind_of_lease(error),
        E::File { source, .. } => kind_of_volatile(source),
        E::Directory { source, .. } => kind_of_os(source),
        _ => ("BadArgument", Vec::new()),
    }
}

fn kind_of_refusal(errno: i32, limit: u64) -> Kind {
    let mut values = vec![("errno", errno.unsigned_abs().into())];
    let class = match errno {
        ENOMEM => {
            values.push(("available", limit));
            "NoMemory"
        }
        EDQUOT => "NoMemory",
        EAGAIN => "WouldWait",
        EINVAL => "BadArgument",
        _ => return ("SystemRefused", values),
    };
    values.push(("limit", limit));
    (class, values)
}

fn kind_of_volatile(error: &volatile::Error) -> Kind {
    use volatile::Error as E;
    match error {
        E::Purged { offset } => ("Purged", vec![("offset", offset.get())]),
        E::Cloned | E::Forked => ("Forked", Vec::new()),
        E::Os(error) => kind_of_os(error),
        E::Unaligned { .. } | E::Empty | E::Beyond { .. } | E::ZeroCap | E::Marked { .. } => {
            ("BadArgument", Vec::new())
        }
        _ => ("Unsupported", Vec::new()),
    }
}

fn kind_of_swap(error: &swap::SwapError) -> Kind {
    use swap::SwapError as E;
    match error {
        E::Budget { pinned, budget, .. } => {
            ("Budget", vec![("pinned", pinned.get()), ("budget", budget.get())])
        }
        E::Full { held, limit } | E::FileFull { held, limit } => {
            ("NoMemory", vec![("available", limit.saturating_sub(*held).get())])
        }
        E::Addresses { largest, .. } => ("NoMemory", vec![("available", largest.get())]),
        E::Stale | E::Foreign | E::Dead => ("Stale", Vec::new()),
        E::Pinned | E::TooManyPins { .. } => ("Pinned", Vec::new()),
        E::Damaged { .. } => ("Damaged", Vec::new()),
        E::Forked => ("Forked", Vec::new()),
        E::Os(error) => kind_of_os(error),
        _ => ("BadArgument", Vec::new()),
    }
}

fn kind_of_pool(error: &zpool::Error) -> Kind {
    use zpool::Error as E;
    match error {
        E::Forked => ("Forked", Vec::new()),
        E::Stale | E::Foreign => ("Stale", Vec::new()),
        E::Full { held, limit, .. } => {
            ("NoMemory", vec![("available", limit.saturating_sub(*held).get())])
        }
        E::Os(error) => kind_of_os(error),
        _ => ("BadArgument", Vec::new()),
    }
}

fn exception(py: Python<'_>, (class, values): Kind, text: String) -> PyResult<PyErr> {
    let class = py.import("glebe.errors")?.getattr(class)?;
    let made = class.call1(PyTuple::new(py, [text])?)?;
    values.into_iter().try_for_each(|(name, value)| made.setattr(name, value))?;
    Ok(PyErr::from_value(made))
}

impl From<Failure> for PyErr {
    fn from(failure: Failure) -> Self {
        let (kind, text) = match &failure {
            Failure::Reserve(error) => (kind_of_reserve(error), error.to_string()),
            Failure::Contig(error) => (kind_of_contig(error), error.to_string()),
            Failure::Lease(error) => (kind_of_lease(error), error.to_string()),
            Failure::Shared(error) => (kind_of_cache(error), error.to_string()),
            Failure::Volatile(error) => (kind_of_volatile(error), error.to_string()),
            Failure::Swap(error) => (kind_of_swap(error), error.to_string()),
            Failure::Pool(error) => (kind_of_pool(error), error.to_string()),
            Failure::BadSize(text) => (("BadArgument", Vec::new()), text.clone()),
            Failure::Python(_) => {
                let Failure::Python(error) = failure else { unreachable!("matched above") };
                return error;
            }
        };
        Python::attach(|py| exception(py, kind, text).unwrap_or_else(|error| error))
    }
}
