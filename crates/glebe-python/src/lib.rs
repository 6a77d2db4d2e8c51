//! The module `glebe._glebe`: the library's objects for Python, wrapped by the package `glebe` in
//! `python/`. help() shows the comments of classes and of members in `#[pymethods]`.
//!
//! A call lets other threads run if it takes longer than about a microsecond. Lengths and offsets
//! are in bytes, runs in base pages. The module has two policies: which entries a [`cache`] keeps,
//! and that volatile memory is no buffer while the kernel may take it ([`volatile`]).
//!
//! Each object has a lock, held for a few instructions. A holder neither calls Python nor lets
//! other threads run, so a forked child finds the lock free. A reserve's cache may be locked at a
//! fork, so a child's call fails before it takes the lock.
//!
//! A forked child reads zeros in exported memory that it does not inherit (`ChildZeros`); the
//! package warns of that.
#![deny(unsafe_code)]

mod buffers;
mod cache;
mod contig;
mod exports;
mod failure;
mod forks;
mod guards;
mod key;
mod lease;
mod memory;
mod numpy;
mod registered;
mod reserve;
mod shared_cache;
mod swap;
mod volatile;

use pyo3::prelude::*;
use pyo3::types::PyDict;

use failure::Failure;

/// The alignment of Python's objects in bytes.
const ALIGNED: usize = 16;

/// Checks that no class needs a larger alignment.
macro_rules! aligned {
    ($($class:ty)*) => { $(const _: () = assert!(align_of::<$class>() <= ALIGNED);)* };
}

aligned! {
    cache::Cache cache::Keys contig::Contig lease::Lease reserve::Block reserve::Promise
    reserve::Reserve swap::Key swap::Pinned swap::Store volatile::Held volatile::VolatileBuffer
    volatile::values::Value volatile::values::Values
}

type Result<T> = std::result::Result<T, Failure>;

fn numbers(py: Python<'_>, lines: Vec<glebe::stats::Line>) -> PyResult<Bound<'_, PyDict>> {
    let numbers = PyDict::new(py);
    lines.into_iter().try_for_each(|line| numbers.set_item(line.name, line.value))?;
    Ok(numbers)
}

/// Returns the number of exported ranges that a forked child would find as zeros.
#[pyfunction]
fn ranges_not_inherited() -> usize {
    glebe::internal::sys::memory::child_zeros::ChildZeros::count()
}

#[pymodule(gil_used = false)]
fn _glebe(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add("__version__", env!("CARGO_PKG_VERSION"))?;
    module.add("PAGE_BYTES", glebe::page_size().bytes().get())?;
    module.add_class::<reserve::Reserve>()?;
    module.add_class::<reserve::Block>()?;
    module.add_class::<reserve::Promise>()?;
    module.add_class::<cache::Cache>()?;
    module.add_class::<contig::Contig>()?;
    module.add_class::<lease::Lease>()?;
    module.add_class::<volatile::VolatileBuffer>()?;
    module.add_class::<volatile::Held>()?;
    module.add_class::<volatile::values::Values>()?;
    module.add_class::<volatile::values::Value>()?;
    module.add_class::<shared_cache::SharedCache>()?;
    module.add_class::<swap::Store>()?;
    module.add_class::<swap::Key>()?;
    module.add_class::<swap::Pinned>()?;
    module.add_function(wrap_pyfunction!(contig::contig, module)?)?;
    module.add_function(wrap_pyfunction!(lease::lease, module)?)?;
    module.add_function(wrap_pyfunction!(shared_cache::shared_cache, module)?)?;
    module.add_function(wrap_pyfunction!(ranges_not_inherited, module)?)
}
