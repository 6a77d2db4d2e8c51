//! `Reserve`, its `Block`s, which are buffers, and its `Promise`s.
//!
//! # Safety
//! Python's views are passed on; [`memory`](crate::memory) fills them.
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
use crate::contig::source_of;
use crate::lease::Bytes;
use crate::memory::{Contiguous, Memory};
use crate::{numbers, Failure, Result};

struct State {
    reserve: reserve::Reserve,
    /// One for each name: two that knew different entries of a name would lose them for each other.
    caches: HashMap<String, Arc<Shared>>,
    /// The short values of all of them.
    small: Arc<Small>,
}

/// Memory set aside once, as contiguous as the machine allows, whose idle pages work as a cache.
///
/// `bytes`: its length, rounded up to whole pages of its source. `source`: "auto", "hugetlb-1g",
/// "hugetlb-2m", "thp" or "plain". `room`: bytes that it may grow to. Raises `NoMemory` with what
/// is available in bytes, `BadArgument` for a length of zero, `SystemRefused`.
#[pyclass(frozen, module = "glebe")]
pub(crate) struct Reserve(Mutex<Option<State>>);

impl Reserve {
    fn lock(&self) -> MutexGuard<'_, Option<State>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A handle of the reserve: calls are made without the lock.
    fn live(&self) -> Result<reserve::Reserve> {
        let state = self.lock();
        let live = state.as_ref().map(|state| state.reserve.clone());
        live.ok_or_else(|| Failure::ended("reserve"))
    }

    /// What the caches of this name share.
    pub(crate) fn shared(&self, name: &str) -> Result<Arc<Shared>> {
        let reserve = self.live()?;
        let small = self.lock().as_ref().map(|state| Arc::clone(&state.small));
        let shared = Arc::new(Shared::new(&reserve, &small.unwrap_or_default(), name)?);
        let mut state = self.lock();
        let state = state.as_mut().ok_or_else(|| Failure::ended("reserve"))?;
        Ok(Arc::clone(state.caches.entry(name.to_owned()).or_insert(shared)))
    }
}

/// So many whole pages: `pages`, or `bytes` rounded up.
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
    #[pyo3(signature = (bytes, *, source = "auto", room = 0))]
    fn new(py: Python<'_>, bytes: u64, source: &str, room: u64) -> Result<Self> {
        let memory = Contig::options().source(source_of(source)?);
        let options = reserve::Reserve::options().memory(memory).room(glebe::Bytes::new(room));
        let reserve = py.detach(|| options.build(glebe::Bytes::new(bytes)))?;
        let (caches, small) = (HashMap::new(), Arc::default());
        Ok(Self(Mutex::new(Some(State { reserve, caches, small }))))
    }

    /// Takes a physically contiguous block of `pages`, or of `bytes` rounded up to pages.
    ///
    /// Takes the pages of caches where it needs them and never waits for them: microseconds.
    /// `align`: pages, a power of two. The contents are anything unless `zeroed`. `any`: contiguous
    /// in virtual addresses only, if need be. Raises `NoRun` with the longest free run in pages,
    /// `BadArgument` for a length of zero or another alignment.
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

    /// Sets the run of one later block aside: caches use it until then, other blocks cannot.
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

    /// Returns the pages of the longest block that could be had now.
    fn largest_run(&self) -> Result<u64> {
        Ok(self.live()?.largest_run()?.get())
    }

    /// Returns counters and gauges by name, which ends in the unit; times are nanoseconds.
    fn stats<'py>(&self, py: Python<'py>) -> Result<Bound<'py, PyDict>> {
        Ok(numbers(py, self.live()?.stats().lines())?)
    }

    /// Adds `bytes` of memory, up to the room, and returns the new length in bytes.
    ///
    /// Raises `NoMemory` where the room or the machine has less, `BadArgument` for a reserve
    /// without room.
    fn grow(&self, py: Python<'_>, bytes: u64) -> Result<usize> {
        let reserve = self.live()?;
        py.detach(|| reserve.grow(glebe::Bytes::new(bytes)))?;
        self.__len__()
    }

    /// Gives `bytes` of idle memory back to the system and returns the new length in bytes.
    ///
    /// Raises `NoMemory` where less is idle, `BadArgument` for a reserve without room.
    fn shrink(&self, py: Python<'_>, bytes: u64) -> Result<usize> {
        let reserve = self.live()?;
        py.detach(|| reserve.shrink(glebe::Bytes::new(bytes)))?;
        self.__len__()
    }

    fn __len__(&self) -> Result<usize> {
        Ok(self.live()?.len().bytes(page_size()).as_usize())
    }

    /// Returns the cache of this name; two of one name are the same entries.
    fn cache<'py>(slf: &Bound<'py, Self>, name: &str) -> Result<Bound<'py, PyAny>> {
        // The class is the package's, which adds what mappings have.
        Ok(slf.py().import("glebe")?.getattr("Cache")?.call1((slf, name))?)
    }

    /// What the memory is made of: the kind of pages, in words.
    #[getter]
    fn source(&self) -> Result<String> {
        Ok(self.live()?.contig().source().to_string())
    }

    /// Ends the reserve and its caches. Blocks keep their memory; a second call does nothing.
    fn close(&self, py: Python<'_>) {
        let ended = self.lock().take();
        py.detach(|| drop(ended));
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
    ) {
        self.close(py);
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

/// Contiguous pages of a reserve, the caller's alone until they are freed; a writable buffer.
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

    /// Its length in pages.
    #[getter]
    fn pages(&self) -> Result<u64> {
        self.0.with(|block| block.pages().get())
    }

    /// The virtual address of the first byte.
    #[getter]
    fn address(&self) -> Result<usize> {
        self.0.with(|block| block.as_ptr() as usize)
    }

    /// How contiguous it is: `proved`, `within N pages`, or `in virtual addresses only`.
    #[getter]
    fn contiguity(&self) -> Result<String> {
        self.0.with(|block| block.contiguity().to_string())
    }

    /// Returns the page frame number of the byte at `offset`, `None` where it cannot be read, and
    /// how many bytes from there on are contiguous.
    ///
    /// Raises `ValueError` for an offset in bytes beyond the end.
    #[pyo3(signature = (offset = 0))]
    fn locate(&self, offset: u64) -> Result<(Option<u64>, u64)> {
        let place = self.0.with(|block| block.locate(glebe::Bytes::new(offset)))??;
        let place = place.ok_or_else(|| {
            Failure::argument(format!("offset {offset} lies beyond the end of the block"))
        })?;
        Ok((place.pfn.map(|pfn| pfn.get()), place.contiguous.get()))
    }

    /// Gives the pages back; a second call does nothing.
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
        // SAFETY: Python's view.
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
    /// Its length in pages; 0 once it was taken or given up.
    #[getter]
    fn pages(&self) -> u64 {
        self.lock().as_ref().map_or(0, |promise| promise.pages().get())
    }

    /// Returns the block, which cannot fail for want of room. A second call raises `ValueError`.
    fn take(&self, py: Python<'_>) -> Result<Block> {
        let promise = self.lock().take().ok_or_else(|| Failure::ended("promise"))?;
        Ok(Block::new(py.detach(|| promise.take())?))
    }

    /// Lets other blocks have the run; a second call does nothing.
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
