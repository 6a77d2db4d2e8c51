//! The module `glebe._glebe`: the library's objects as Python's. The package `glebe` around it, in
//! `python/`, has the names that programs use. The comments of classes and of what `#[pymethods]`
//! has are what help() shows of them.
//!
//! A call checks its arguments, lets other threads run while it works longer than about a
//! microsecond, calls the library, and names its error by class. Lengths and offsets are bytes;
//! runs are in base pages. No policy is here but two: which entries a [`cache`] knows, and
//! that memory which may vanish is no buffer while it may ([`volatile`]).
//!
//! Locks: each object's own, for some instructions. No call of Python and no call that lets other
//! threads run is made under one, so a forked child finds all of them free; but for those of
//! a reserve's caches, which a child is refused before it takes one.
//!
//! A forked child reads zeros where its parent had exported memory that is not inherited
//! (`ChildZeros`); the package warns there.
#![deny(unsafe_code)]

mod buffers;
mod cache;
mod contig;
mod failure;
mod forks;
mod guards;
mod key;
mod lease;
mod memory;
mod numpy;
mod reserve;
mod swap;
mod volatile;

use pyo3::prelude::*;
use pyo3::types::PyDict;

use failure::Failure;

/// Bytes that the address of every object of Python is a multiple of.
const ALIGNED: usize = 16;

/// Nothing is aligned to more in an object of Python.
macro_rules! aligned {
    ($($class:ty)*) => { $(const _: () = assert!(align_of::<$class>() <= ALIGNED);)* };
}

aligned! {
    cache::Cache cache::Keys contig::Contig reserve::Block reserve::Promise reserve::Reserve
    swap::Key swap::Pinned swap::Store volatile::Held volatile::VolatileBuffer
    volatile::values::Value volatile::values::Values
}

type Result<T> = std::result::Result<T, Failure>;

/// Numbers by name, as `stats()` returns them.
fn numbers(py: Python<'_>, lines: Vec<glebe::stats::Line>) -> PyResult<Bound<'_, PyDict>> {
    let numbers = PyDict::new(py);
    lines.into_iter().try_for_each(|line| numbers.set_item(line.name, line.value))?;
    Ok(numbers)
}

/// How many exported ranges a forked child would find zeros at.
#[pyfunction]
fn ranges_not_inherited() -> usize {
    glebe::sys::child_zeros::ChildZeros::count()
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
    module.add_class::<volatile::VolatileBuffer>()?;
    module.add_class::<volatile::Held>()?;
    module.add_class::<volatile::values::Values>()?;
    module.add_class::<volatile::values::Value>()?;
    module.add_class::<swap::Store>()?;
    module.add_class::<swap::Key>()?;
    module.add_class::<swap::Pinned>()?;
    module.add_function(wrap_pyfunction!(contig::contig, module)?)?;
    module.add_function(wrap_pyfunction!(ranges_not_inherited, module)?)
}
