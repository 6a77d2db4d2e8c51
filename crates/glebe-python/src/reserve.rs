//! [`Reserve`] grants [`Block`]s, which are buffers, and [`Promise`]s of blocks.
//!
//! # Safety
//! Python passes the views of buffers that [`memory`](crate::memory) fills.
#![allow(unsafe_code)]

use std::collections::HashMap;
use std::ffi::c_int;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use glebe::reserve::{self, Request};
use glebe::{page_size, Contig, Pages};
use pyo3::ffi;
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyType};

use crate::cache::{Shared, Small};
use crate::contig::{on_nodes, placed, source_of};
use crate::exports::Bytes;
use crate::memory::{Contiguous, Memory};
use crate::registered::Registered;
use crate::{numbers, Failure, Result};

struct State {
    reserve: reserve::Reserve,
    /// One cache per name, because a second cache of a name would miss the first cache's entries.
    caches: HashMap<String, Arc<Shared>>,
    /// Short values of all caches.
    small: Arc<Small>,
}

/// Memory set aside once, as contiguous as the machine allows. Caches use its idle pages.
///
/// `bytes`: its length, rounded up to whole pages of its source. `source`: "auto", "hugetlb-1g",
/// "hugetlb-2m", "thp" or "plain". `room`: bytes that it may grow to. `node`: takes only memory of
/// this NUMA node; `prefer_node`: takes its memory if it has enough, otherwise any; `nodes`: takes
/// only memory of these nodes. Raises `NoMemory` with the available bytes, `BadArgument` for a
/// length of zero, a node that is not online or an empty set, `ValueError` for another source,
/// `SystemRefused`.
#[pyclass(frozen, module = "glebe")]
pub(crate) struct Reserve {
    state: Mutex<Option<State>>,
    registered: Registered,
}

impl Reserve {
    fn lock(&self) -> MutexGuard<'_, Option<State>> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns a handle, so that calls run without the lock.
    fn live(&self) -> Result<reserve::Reserve> {
        let state = self.lock();
        let live = state.as_ref().map(|state| state.reserve.clone());
        live.ok_or_else(|| Failure::ended("reserve"))
    }

    pub(crate) fn shared(&self, name: &str) -> Result<Arc<Shared>> {
        let reserve = self.live()?;
        let small = self.lock().as_ref().map(|state| Arc::clone(&state.small));
        let shared = Arc::new(Shared::new(&reserve, &small.unwrap_or_default(), name)?);
        let mut state = self.lock();
        let state = state.as_mut().ok_or_else(|| Failure::ended("reserve"))?;
        Ok(Arc::clone(state.caches.entry(name.to_owned()).or_insert(shared)))
    }
}

/// Returns whole pages: `pages`, or `bytes` rounded up.
fn length(pages: Option<u64>, bytes: Option<u64>) -> Result<Pages> {
    match (pages, bytes) {
        (Some(pages), None) => Ok(Pages::new(pages)),
        (None, Some(bytes)) => Ok(glebe::Bytes::new(bytes).pages_up(page_size())),
        _ => Err(Failure::argument("a length is given as pages or as bytes=, one of them")),
    }
}

fn request(pages: Pages, align: u64, zeroed: bool, any: bool) -> Request {
    let request = Request::new(pages).align(Pages::new(align));
    let request = if zeroed { request.zeroed() } else { request };
    if any {
        request.any()
    } else {
        request
    }
}

#[pymethods]
impl Reserve {
    #[new]
    #[pyo3(signature = (
        bytes, *, source = "auto", room = 0, node = None, prefer_node = None, nodes = None
    ))]
    fn new(
        py: Python<'_>,
        bytes: u64,
        source: &str,
        room: u64,
        node: Option<u32>,
        prefer_node: Option<u32>,
        nodes: Option<Vec<u32>>,
    ) -> Result<Self> {
        let memory = Contig::options().source(source_of(source)?);
        let memory = placed(memory, node, prefer_node, nodes)?;
        let options = reserve::Reserve::options().memory(memory).room(glebe::Bytes::new(room));
        let reserve = py.detach(|| options.build(glebe::Bytes::new(bytes)))?;
        let state = State { reserve, caches: HashMap::new(), small: Arc::default() };
        Ok(Self { state: Mutex::new(Some(state)), registered: Registered::new("reserve") })
    }

    /// Takes a physically contiguous block of `pages` pages, or of `bytes` rounded up to pages.
    ///
    /// Takes pages from caches if necessary; a call takes microseconds. `align`: pages, a power of
    /// two. The contents are unspecified unless `zeroed`. `any`: allows a block that is contiguous
    /// only in virtual addresses. Raises `NoRun` with the longest free run in pages, `BadArgument`
    /// for a length of zero or another alignment.
    #[pyo3(signature = (pages = None, *, bytes = None, align = 1, zeroed = false, any = false))]
    fn alloc(
        &self,
        py: Python<'_>,
        pages: Option<u64>,
        bytes: Option<u64>,
        align: u64,
        zeroed: bool,
        any: bool,
    ) -> Result<Block> {
        let reserve = self.live()?;
        let request = request(length(pages, bytes)?, align, zeroed, any);
        Ok(Block::new(py.detach(|| reserve.alloc(request))?))
    }

    /// Sets a run aside for one later block. No other block gets the run. Caches may use the run
    /// until `take`.
    ///
    /// The arguments and errors are those of `alloc`.
    #[pyo3(signature = (pages = None, *, bytes = None, align = 1, zeroed = false, any = false))]
    fn promise(
        &self,
        py: Python<'_>,
        pages: Option<u64>,
        bytes: Option<u64>,
        align: u64,
        zeroed: bool,
        any: bool,
    ) -> Result<Promise> {
        let reserve = self.live()?;
        let request = request(length(pages, bytes)?, align, zeroed, any);
        let promise = py.detach(|| reserve.promise(request))?;
        Ok(Promise(Mutex::new(Some(promise))))
    }

    /// Returns the length in pages of the longest block that `alloc` could take now.
    fn largest_run(&self) -> Result<u64> {
        Ok(self.live()?.largest_run()?.get())
    }

    /// Returns the NUMA nodes of the pages: first page, number of pages, and node. Raises
    /// `SystemRefused` if the kernel does not tell them.
    fn nodes(&self, py: Python<'_>) -> Result<Vec<(u64, u64, u32)>> {
        let reserve = self.live()?;
        Ok(on_nodes(py.detach(|| reserve.nodes())?))
    }

    /// Returns counters and gauges by name. Each name ends in its unit; times are nanoseconds.
    fn stats<'py>(&self, py: Python<'py>) -> Result<Bound<'py, PyDict>> {
        Ok(numbers(py, self.live()?.stats().lines())?)
    }

    /// Adds `bytes` bytes of memory, up to the room, and returns the new length in bytes.
    ///
    /// Raises `NoMemory` if the room or the machine has less, `BadArgument` for a reserve without
    /// room, `ValueError` for a reserve that is registered with a device.
    fn grow(&self, py: Python<'_>, bytes: u64) -> Result<usize> {
        let reserve = self.live()?;
        let _resize = self.registered.resize()?;
        py.detach(|| reserve.grow(glebe::Bytes::new(bytes)))?;
        self.__len__()
    }

    /// Gives `bytes` bytes of idle memory back to the system and returns the new length in bytes.
    ///
    /// Raises `NoMemory` if less is idle, `BadArgument` for a reserve without room, `ValueError`
    /// for a reserve that is registered with a device.
    fn shrink(&self, py: Python<'_>, bytes: u64) -> Result<usize> {
        let reserve = self.live()?;
        let _resize = self.registered.resize()?;
        py.detach(|| reserve.shrink(glebe::Bytes::new(bytes)))?;
        self.__len__()
    }

    fn __len__(&self) -> Result<usize> {
        Ok(self.live()?.len().bytes(page_size()).as_usize())
    }

    /// Returns the cache of this name. Two caches of one name have the same entries.
    fn cache<'py>(slf: &Bound<'py, Self>, name: &str) -> Result<Bound<'py, PyAny>> {
        // The package's `Cache` adds the other methods of `MutableMapping`.
        Ok(slf.py().import("glebe")?.getattr("Cache")?.call1((slf, name))?)
    }

    /// The kind of pages, in words.
    #[getter]
    fn source(&self) -> Result<String> {
        Ok(self.live()?.contig().source().to_string())
    }

    /// Notes a registration with a device, which `end()` ends. Returns the address of the memory,
    /// and the parts that have memory as offset and length in bytes.
    fn _register(&self, end: Py<PyAny>) -> Result<(usize, Vec<(u64, u64)>)> {
        let reserve = self.live()?;
        self.registered.begin(end)?;
        let present = reserve.present().inspect_err(|_| self.registered.forget())?;
        let bytes = |pages: u64| Pages::new(pages).bytes(page_size()).get();
        let parts = present.iter().map(|part| (bytes(part.start()), bytes(part.len())));
        Ok((reserve.contig().mapping().addr(), parts.collect()))
    }

    /// Forgets the registration, which has ended.
    fn _unregister(&self) {
        self.registered.forget();
    }

    /// Ends the reserve and its caches, whose calls then raise `ValueError`. Blocks keep their
    /// memory; a second call does nothing.
    ///
    /// First ends a registration with a device, whose errors it raises; the reserve then stays.
    fn close(&self, py: Python<'_>) -> Result<()> {
        self.registered.end(py)?;
        let ended = self.lock().take();
        py.detach(|| {
            let caches = ended.iter().flat_map(|state| state.caches.values());
            caches.for_each(|cache| cache.end());
            drop(ended);
        });
        Ok(())
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

    fn __repr__(&self) -> String {
        match self.live() {
            Ok(reserve) => {
                format!("<glebe.Reserve of {}, {}>", reserve.len(), reserve.contig().source())
            }
            Err(_) => "<glebe.Reserve, closed>".to_owned(),
        }
    }
}

impl Contiguous for reserve::Block {
    const WHAT: &'static str = "block";

    fn bytes(&mut self) -> Result<Bytes> {
        let bytes = self.bytes_mut()?;
        Ok(Bytes { start: bytes.as_mut_ptr(), len: bytes.len(), readonly: false })
    }
}

/// Pages of a reserve for the caller alone, until `free`. The block is a writable buffer.
#[pyclass(frozen, module = "glebe")]
pub(crate) struct Block(Memory<reserve::Block>);

impl Block {
    fn new(block: reserve::Block) -> Self {
        Self(Memory::new(block))
    }
}

#[pymethods]
impl Block {
    fn __len__(&self) -> Result<usize> {
        self.0.with(|block| reserve::Block::bytes(block).map(<[u8]>::len))?.map_err(Failure::from)
    }

    /// The length in pages.
    #[getter]
    fn pages(&self) -> Result<u64> {
        self.0.with(|block| block.pages().get())
    }

    /// The virtual address of the first byte.
    #[getter]
    fn address(&self) -> Result<usize> {
        self.0.with(|block| block.as_ptr() as usize)
    }

    /// The contiguity: `proved`, `within N pages`, or `in virtual addresses only`.
    #[getter]
    fn contiguity(&self) -> Result<String> {
        self.0.with(|block| block.contiguity().to_string())
    }

    /// Returns the page frame number at `offset` (bytes) and the number of contiguous bytes from
    /// there on. The frame number is `None` if the kernel hides frame numbers.
    ///
    /// Raises `ValueError` for an offset beyond the end.
    #[pyo3(signature = (offset = 0))]
    fn locate(&self, offset: u64) -> Result<(Option<u64>, u64)> {
        let place = self.0.with(|block| block.locate(glebe::Bytes::new(offset)))??;
        let place = place.ok_or_else(|| {
            Failure::argument(format!("offset {offset} lies beyond the end of the block"))
        })?;
        Ok((place.pfn.map(|pfn| pfn.get()), place.contiguous.get()))
    }

    /// Frees the pages; a second call does nothing.
    ///
    /// Raises `BufferError` while arrays or views of the block exist.
    fn free(&self, py: Python<'_>) -> Result<()> {
        self.0.end(py)
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
        self.free(py)
    }

    unsafe fn __getbuffer__(
        slf: Bound<'_, Self>,
        view: *mut ffi::Py_buffer,
        flags: c_int,
    ) -> Result<()> {
        // SAFETY: Python passes a view to fill.
        unsafe { slf.get().0.export(slf.as_any(), view, flags) }
    }

    unsafe fn __releasebuffer__(&self, _view: *mut ffi::Py_buffer) {
        self.0.release();
    }

    fn __repr__(&self) -> String {
        match self.0.with(|block| (block.pages(), block.contiguity())) {
            Ok((pages, contiguity)) => {
                format!("<glebe.Block of {pages}, contiguous: {contiguity}>")
            }
            Err(_) => "<glebe.Block, freed>".to_owned(),
        }
    }
}

/// A run set aside for one later block.
#[pyclass(frozen, module = "glebe")]
pub(crate) struct Promise(Mutex<Option<reserve::Promise>>);

impl Promise {
    fn lock(&self) -> MutexGuard<'_, Option<reserve::Promise>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[pymethods]
impl Promise {
    /// The length in pages; 0 after `take` or `give_up`.
    #[getter]
    fn pages(&self) -> u64 {
        self.lock().as_ref().map_or(0, |promise| promise.pages().get())
    }

    /// Returns the block, and never raises `NoRun`. A second call raises `ValueError`.
    fn take(&self, py: Python<'_>) -> Result<Block> {
        let promise = self.lock().take().ok_or_else(|| Failure::ended("promise"))?;
        Ok(Block::new(py.detach(|| promise.take())?))
    }

    /// Releases the run to other blocks; a second call does nothing.
    fn give_up(&self) {
        let given_up = self.lock().take();
        drop(given_up);
    }

    fn __enter__(slf: Bound<'_, Self>) -> Bound<'_, Self> {
        slf
    }

    fn __exit__(
        &self,
        _type: Option<Bound<'_, PyType>>,
        _value: Option<Bound<'_, PyAny>>,
        _traceback: Option<Bound<'_, PyAny>>,
    ) {
        self.give_up();
    }
}
