//! `Contig`: contiguous memory as a buffer.
//!
//! # Safety
//! Python owns each `Py_buffer`; [`memory`](crate::memory) fills it.
#![allow(unsafe_code)]

use std::ffi::c_int;
use std::sync::Arc;

use glebe::contig::{Node, Options, Source};
use glebe::extent::Extent;
use pyo3::ffi;
use pyo3::prelude::*;
use pyo3::types::PyType;

use crate::exports::Bytes;
use crate::memory::{Contiguous, Memory};
use crate::registered::Registered;
use crate::{Failure, Result};

/// Returns `None` for `auto`, the best available source.
pub(crate) fn source_of(name: &str) -> Result<Option<Source>> {
    Ok(Some(match name {
        "auto" => return Ok(None),
        "hugetlb-1g" => Source::HUGETLB_1G,
        "hugetlb-2m" => Source::HUGETLB_2M,
        "thp" => Source::Thp,
        "plain" => Source::Plain,
        _ => {
            let names = "auto, hugetlb-1g, hugetlb-2m, thp, plain";
            return Err(Failure::argument(format!("source {name:?}: it is one of {names}")));
        }
    }))
}

pub(crate) fn placed(
    options: Options,
    node: Option<u32>,
    prefer_node: Option<u32>,
    nodes: Option<Vec<u32>>,
) -> Result<Options> {
    match (node, prefer_node, nodes) {
        (None, None, None) => Ok(options),
        (Some(node), None, None) => Ok(options.node(Node(node))),
        (None, Some(node), None) => Ok(options.prefer_node(Node(node))),
        (None, None, Some(nodes)) => Ok(options.nodes(nodes.into_iter().map(Node))),
        _ => Err(Failure::argument("of node=, prefer_node= and nodes=, give one")),
    }
}

/// Returns first page, number of pages, and node of each entry.
pub(crate) fn on_nodes(nodes: Vec<(Extent, Node)>) -> Vec<(u64, u64, u32)> {
    let on = |(pages, node): (Extent, Node)| (pages.start(), pages.len(), node.0);
    nodes.into_iter().map(on).collect()
}

/// # Errors
/// `Forked` in a child, which has no memory at these addresses, or zeros.
fn own(memory: &Arc<glebe::Contig>) -> Result<&Arc<glebe::Contig>> {
    if memory.mapping().is_lost_by_fork() {
        return Err(glebe::reserve::ReserveError::Forked.into());
    }
    Ok(memory)
}

impl Contiguous for Arc<glebe::Contig> {
    const WHAT: &'static str = "contiguous memory";

    fn bytes(&mut self) -> Result<Bytes> {
        let mapping = own(self)?.mapping();
        Ok(Bytes { start: mapping.as_ptr(), len: mapping.len().as_usize(), readonly: false })
    }
}

/// Physically contiguous memory, populated and kept in place; a writable buffer of bytes.
#[pyclass(frozen, module = "glebe")]
pub(crate) struct Contig {
    memory: Memory<Arc<glebe::Contig>>,
    registered: Registered,
}

impl Contig {
    /// Returns a handle, so that calls run without the lock. Refuses a forked child.
    fn own(&self) -> Result<Arc<glebe::Contig>> {
        self.memory.with(|memory| own(memory).map(Arc::clone))?
    }
}

/// Returns contiguous memory of `bytes` bytes, rounded up to whole pages of its source.
///
/// `source`: "auto", "hugetlb-1g", "hugetlb-2m", "thp" or "plain". `require_run`: bytes that must
/// be contiguous. `node`: takes only memory of this NUMA node; `prefer_node`: takes its memory if
/// it has enough, otherwise any; `nodes`: takes only memory of these nodes. Raises `NoMemory` with
/// the bytes of the longest run or of available memory; `BadArgument` for a length of zero, a node
/// that is not online or has no memory, or an empty set; `ValueError` for another source.
#[pyfunction]
#[pyo3(signature = (
    bytes, *, source = "auto", require_run = None, node = None, prefer_node = None, nodes = None
))]
pub(crate) fn contig(
    py: Python<'_>,
    bytes: u64,
    source: &str,
    require_run: Option<u64>,
    node: Option<u32>,
    prefer_node: Option<u32>,
    nodes: Option<Vec<u32>>,
) -> Result<Contig> {
    let options = glebe::Contig::options().source(source_of(source)?);
    let options = placed(options, node, prefer_node, nodes)?;
    let options = match require_run {
        Some(run) => options.require_run(glebe::Bytes::new(run)),
        None => options,
    };
    let memory = py.detach(|| options.build(glebe::Bytes::new(bytes)))?;
    let memory = Memory::new(Arc::new(memory));
    Ok(Contig { memory, registered: Registered::new("contiguous memory") })
}

#[pymethods]
impl Contig {
    fn __len__(&self) -> Result<usize> {
        self.memory.with(|memory| memory.len().as_usize())
    }

    /// Returns each physical run as first page, number of pages, and first page frame or `None`.
    ///
    /// If page frames are hidden, each proved huge page is one run; other pages are in no run.
    fn runs(&self) -> Result<Vec<(u64, u64, Option<u64>)>> {
        let run = |run: &glebe::contig::Run| {
            (run.pages.start(), run.pages.len(), run.pfn.map(|pfn| pfn.get()))
        };
        Ok(self.own()?.runs().iter().map(run).collect())
    }

    /// Returns the NUMA nodes of the pages: first page, number of pages, and node. Raises
    /// `SystemRefused` if the kernel does not tell them.
    fn nodes(&self, py: Python<'_>) -> Result<Vec<(u64, u64, u32)>> {
        let memory = self.own()?;
        let nodes = py.detach(|| memory.nodes());
        Ok(on_nodes(nodes.map_err(glebe::contig::Error::from)?))
    }

    /// The length of the longest run in pages.
    #[getter]
    fn longest_run(&self) -> Result<u64> {
        self.memory.with(|memory| memory.longest_run().get())
    }

    /// The evidence for the runs, in words.
    #[getter]
    fn proof(&self) -> Result<String> {
        self.memory.with(|memory| memory.proof().to_string())
    }

    /// The kind of pages, in words.
    #[getter]
    fn source(&self) -> Result<String> {
        self.memory.with(|memory| memory.source().to_string())
    }

    /// The mechanism that keeps the pages in their frames.
    #[getter]
    fn held_by(&self) -> Result<&'static str> {
        self.memory.with(|memory| memory.held_by().as_str())
    }

    /// The virtual address of the first byte.
    #[getter]
    fn address(&self) -> Result<usize> {
        self.memory.with(|memory| memory.mapping().addr())
    }

    /// Returns first page and number of pages of each run that has moved to other page frames.
    ///
    /// Raises `SystemRefused` if the page frames can no longer be read.
    fn verify(&self, py: Python<'_>) -> Result<Vec<(u64, u64)>> {
        let memory = self.own()?;
        let drifts = py.detach(|| memory.verify())?;
        Ok(drifts.iter().map(|drift| (drift.pages.start(), drift.pages.len())).collect())
    }

    /// Notes a registration with a device, which `end()` ends. Returns the address of the memory,
    /// and the parts that have memory as offset and length in bytes.
    fn _register(&self, end: Py<PyAny>) -> Result<(usize, Vec<(u64, u64)>)> {
        let memory = self.own()?;
        let mapping = memory.mapping();
        self.registered.begin(end)?;
        Ok((mapping.addr(), vec![(0, mapping.len().get())]))
    }

    /// Forgets the registration, which has ended.
    fn _unregister(&self) {
        self.registered.forget();
    }

    /// Frees the memory; a second call does nothing.
    ///
    /// First ends a registration with a device, whose errors it raises. Raises `BufferError` while
    /// arrays or views of the memory exist. After an error the memory stays.
    fn close(&self, py: Python<'_>) -> Result<()> {
        self.memory.check_end()?;
        self.registered.end(py)?;
        self.memory.end(py).inspect_err(|_| self.registered.stays())
    }

    fn __enter__(slf: Bound<'_, Self>) -> Bound<'_, Self> {
        slf
    }

    fn __exit__(
        &self,
        py: Python<'_>,
        _type: Option<Bound<'_, PyType>>,
        _value: Option<Bound<'_, PyAny>>,
        _traceback: Option<Bound<'_, PyAny>>,
    ) -> Result<()> {
        self.close(py)
    }

    unsafe fn __getbuffer__(
        slf: Bound<'_, Self>,
        view: *mut ffi::Py_buffer,
        flags: c_int,
    ) -> Result<()> {
        // SAFETY: Python passes a view to fill.
        unsafe { slf.get().memory.export(slf.as_any(), view, flags) }
    }

    unsafe fn __releasebuffer__(&self, _view: *mut ffi::Py_buffer) {
        self.memory.release();
    }
}
