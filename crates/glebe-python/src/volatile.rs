//! `VolatileBuffer`: memory that the kernel may take while it is marked.
//!
//! Arrays can use the memory only while no page is marked, and no page can be marked while arrays
//! use the memory, so no array points to memory that may vanish. [`Held`] unmarks all pages for a
//! `with` block. If arrays remain at the end of the block, the mark waits for the last array.
//!
//! Lock: the state's, for a few instructions. A mark or an unmark sets `is_busy` and works without
//! the lock; other threads sleep and look again. The region follows fork(2), so a child never finds
//! half a mark or unmark.
//!
//! # Safety
//! The region is unmapped with the object, which each export keeps alive. A forked child inherits a
//! copy.
#![allow(unsafe_code)]

mod state;
pub(crate) mod values;

use std::ffi::c_int;
use std::ops::Range;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use glebe::volatile::{Error, Priority, Region};
use glebe::{page_size, Bytes, Pages};
use pyo3::ffi;
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyDict, PyType};

use crate::buffers::{detached, new_bytes, Given};
use crate::{exports, forks, numbers, Failure, Result};
use state::State;

/// Runs of lost pages: first page, number of pages.
type Lost = Vec<(u64, u64)>;

/// The pause between looks at `is_busy`.
const NAP: Duration = Duration::from_micros(50);

/// `bytes` bytes of zeros, rounded up to pages. The kernel may take marked pages.
///
/// The memory is a writable buffer while no page is marked. Otherwise an export raises
/// `BufferError`, because no array may point to memory that vanishes. A forked child has a copy;
/// lost pages are lost in the copy too. Raises `BadArgument` for a length of zero, `Unsupported` if
/// the process locks its memory or the kernel has no volatile memory.
#[pyclass(frozen, module = "glebe.volatile")]
pub(crate) struct VolatileBuffer {
    /// Boxed, because Python aligns objects to less.
    region: Box<Region>,
    state: Mutex<State>,
}

impl VolatileBuffer {
    fn lock(&self) -> MutexGuard<'_, State> {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        state.follow_fork();
        state
    }

    /// Waits until no other thread marks or unmarks.
    fn idle<'a>(&'a self, py: Python<'_>) -> MutexGuard<'a, State> {
        loop {
            let state = self.lock();
            if !state.is_busy {
                return state;
            }
            drop(state);
            py.detach(|| std::thread::sleep(NAP));
        }
    }

    /// Calls `work` without the GIL, with `is_busy` set. If `work` succeeds, calls `then`.
    fn busy<T: Send>(
        &self,
        py: Python<'_>,
        mut state: MutexGuard<'_, State>,
        work: impl FnOnce() -> std::result::Result<T, Error> + Send,
        then: impl FnOnce(&mut State),
    ) -> Result<T> {
        state.is_busy = true;
        drop(state);
        let done = py.detach(work);
        let mut state = self.lock();
        state.is_busy = false;
        let done = done?;
        then(&mut state);
        Ok(done)
    }

    /// Returns the range in bytes and in pages, if the region accepts it.
    fn range(&self, start: u64, stop: Option<u64>) -> Result<(Range<Bytes>, Range<usize>)> {
        let (len, granule) = (self.region.len(), self.region.granule());
        let range = Bytes::new(start)..stop.map_or(len, Bytes::new);
        if let Some(offset) =
            [range.start, range.end].into_iter().find(|at| at.get() % granule.get() != 0)
        {
            return Err(Error::Unaligned { offset, granule }.into());
        }
        if range.end > len {
            return Err(Error::Beyond { end: range.end, limit: len }.into());
        }
        if range.start >= range.end {
            return Err(Error::Empty.into());
        }
        let page = |at: Bytes| at.pages_down(page_size()).as_usize();
        let pages = page(range.start)..page(range.end);
        Ok((range, pages))
    }

    fn mark_range(
        &self,
        py: Python<'_>,
        mut state: MutexGuard<'_, State>,
        (range, pages): (Range<Bytes>, Range<usize>),
    ) -> Result<()> {
        // Changes the state first, because a mark that fails may have marked some pages.
        state.set(pages, true);
        self.busy(py, state, || self.region.mark(range, Priority::NORMAL), |_| ())
    }

    fn unmark_range(
        &self,
        py: Python<'_>,
        mut state: MutexGuard<'_, State>,
        (range, pages): (Range<Bytes>, Range<usize>),
    ) -> Result<Lost> {
        state.marks_later = false;
        let unmark = || self.region.unmark(range);
        let lost = self.busy(py, state, unmark, |state| state.set(pages, false))?;
        Ok(lost.runs().iter().map(|run| (run.start(), run.len())).collect())
    }

    /// Unmarks all of the memory for a `with` block.
    fn hold(&self, py: Python<'_>) -> Result<Lost> {
        let mut state = self.idle(py);
        // Records the hold first, so that no other thread can mark.
        state.holds.push(forks::thread());
        if state.holds.len() > 1 {
            return Ok(Vec::new());
        }
        let all = self.range(0, None)?;
        self.unmark_range(py, state, all).inspect_err(|_| _ = self.lock().end_hold())
    }

    /// Ends a `with` block. The last block marks all pages, or leaves this to the end of the last
    /// export.
    fn let_go(&self, py: Python<'_>) -> Result<()> {
        let mut state = self.idle(py);
        if !state.end_hold() || !state.holds.is_empty() {
            return Ok(());
        }
        if state.exports > 0 {
            state.marks_later = true;
            return Ok(());
        }
        let all = self.range(0, None)?;
        self.mark_range(py, state, all)
    }

    /// Marks all pages after the last export, unless the memory is in use again.
    fn mark_later(&self, py: Python<'_>) -> Result<()> {
        let mut state = self.idle(py);
        if state.exports > 0 || !state.holds.is_empty() || !std::mem::take(&mut state.marks_later) {
            return Ok(());
        }
        let all = self.range(0, None)?;
        self.mark_range(py, state, all)
    }
}

#[pymethods]
impl VolatileBuffer {
    #[new]
    fn new(py: Python<'_>, bytes: u64) -> Result<Self> {
        let region = py.detach(|| -> Result<_> {
            forks::follow()?;
            Ok(Region::new(Bytes::new(bytes))?)
        })?;
        let pages = region.len().pages_down(page_size()).as_usize();
        let state = Mutex::new(State::new(pages));
        Ok(Self { region: Box::new(region), state })
    }

    /// Lets the kernel take the bytes from `start` to `stop`, whole pages, when memory is short.
    ///
    /// Raises `BufferError` while arrays, views or held blocks exist, `BadArgument` if the range is
    /// not whole pages of the memory.
    #[pyo3(signature = (start = 0, stop = None))]
    fn mark(&self, py: Python<'_>, start: u64, stop: Option<u64>) -> Result<()> {
        let range = self.range(start, stop)?;
        let state = self.idle(py);
        state.may_mark()?;
        self.mark_range(py, state, range)
    }

    /// Unmarks the bytes from `start` to `stop`. Returns first page and number of pages of each
    /// lost run, which is now zeros.
    ///
    /// All other pages are intact. Raises `BadArgument` if the range is not whole pages of the
    /// memory.
    #[pyo3(signature = (start = 0, stop = None))]
    fn unmark(&self, py: Python<'_>, start: u64, stop: Option<u64>) -> Result<Lost> {
        let range = self.range(start, stop)?;
        self.unmark_range(py, self.idle(py), range)
    }

    /// Returns a context for `with`. No page is marked inside, and all pages are marked afterwards.
    /// `as` gives the runs that were lost.
    ///
    /// If arrays outlive the block, the memory is marked when the last array is gone. If blocks
    /// overlap, the first block gets the lost runs.
    fn held(slf: Bound<'_, Self>) -> Held {
        Held(slf.unbind())
    }

    /// Drops the marked pages from byte `start` to `stop`, as the kernel does under pressure.
    /// Returns the number of bytes dropped.
    ///
    /// Raises `BadArgument` if the range is not whole pages of the memory.
    #[pyo3(signature = (start = 0, stop = None))]
    fn drop_marked(&self, py: Python<'_>, start: u64, stop: Option<u64>) -> Result<u64> {
        let (range, _) = self.range(start, stop)?;
        let state = self.idle(py);
        Ok(self.busy(py, state, || self.region.drop_now(range), |_| ())?.get())
    }

    /// Returns `length` bytes from `offset` on, marked or not; `None` if one of their pages is
    /// lost.
    ///
    /// Raises `BadArgument` beyond the end.
    fn read<'py>(
        &self,
        py: Python<'py>,
        offset: u64,
        length: usize,
    ) -> Result<Option<Bound<'py, PyBytes>>> {
        let limit = self.region.len();
        let end = offset.saturating_add(length as u64);
        if end > limit.get() {
            return Err(Error::Beyond { end: Bytes::new(end), limit }.into());
        }
        let fill = |out: &mut [u8]| match self.region.try_read(Bytes::new(offset), out) {
            Err(Error::Purged { .. }) => Ok(false),
            read => Ok(read.map(|()| true)?),
        };
        new_bytes(py, length, fill)
    }

    /// Copies a buffer to the memory from byte `offset` on.
    ///
    /// Raises `BadArgument` if some of the range is marked or beyond the end.
    fn write(&self, py: Python<'_>, offset: u64, data: &Bound<'_, PyAny>) -> Result<()> {
        let data = Given::new(data)?;
        let (given, len) = (data.bytes().as_ptr_range(), data.bytes().len());
        let to = self.region.as_ptr().addr().saturating_add(offset as usize);
        let is_inside = offset.saturating_add(len as u64) <= self.region.len().get();
        // A view of the bytes to write to would change during the write.
        let copy = match is_inside && given.start.addr() < to + len && to < given.end.addr() {
            true => Some(PyBytes::new_with(py, len, |copy| {
                copy.copy_from_slice(data.bytes());
                Ok(())
            })?),
            false => None,
        };
        let bytes = copy.as_ref().map_or(data.bytes(), |copy| copy.as_bytes());
        Ok(detached(py, bytes.len(), || self.region.write(Bytes::new(offset), bytes))?)
    }

    /// Returns counters and gauges by name. Each name ends in its unit.
    fn stats<'py>(&self, py: Python<'py>) -> Result<Bound<'py, PyDict>> {
        let stats = py.detach(|| self.region.stats());
        Ok(numbers(py, stats.lines())?)
    }

    fn __len__(&self) -> usize {
        self.region.len().as_usize()
    }

    /// The detection of losses: `scan` or `tag`.
    #[getter]
    fn engine(&self) -> String {
        self.region.engine().to_string()
    }

    /// The number of marked bytes.
    #[getter]
    fn marked(&self) -> u64 {
        Pages::new(self.lock().marked as u64).bytes(page_size()).get()
    }

    unsafe fn __getbuffer__(
        slf: Bound<'_, Self>,
        view: *mut ffi::Py_buffer,
        flags: c_int,
    ) -> Result<()> {
        let this = slf.get();
        let mut state = this.idle(slf.py());
        if state.marked > 0 {
            let marked = Pages::new(state.marked as u64);
            return Err(Failure::buffer(format!(
                "{marked} of the memory are marked and may vanish: unmark() or held() it first"
            )));
        }
        state.exports += 1;
        drop(state);
        let (start, len) = (this.region.as_ptr(), this.region.len().as_usize());
        let bytes = exports::Bytes { start, len, readonly: false };
        // SAFETY: Python passes a view to fill, and the export keeps the memory alive.
        let filled = unsafe { exports::fill(slf.as_any(), view, flags, &bytes) };
        if filled.is_err() {
            this.lock().exports -= 1;
        }
        filled
    }

    unsafe fn __releasebuffer__(slf: Bound<'_, Self>, _view: *mut ffi::Py_buffer) {
        let this = slf.get();
        let mut state = this.lock();
        state.exports -= 1;
        if state.exports > 0 || !state.holds.is_empty() || !state.marks_later {
            return;
        }
        drop(state);
        let marked = this.mark_later(slf.py());
        if let Err(error) = marked {
            PyErr::from(error).write_unraisable(slf.py(), Some(slf.as_any()));
        }
    }
}

/// A `with` block without marked pages in a `VolatileBuffer`.
#[pyclass(frozen, module = "glebe.volatile")]
pub(crate) struct Held(Py<VolatileBuffer>);

#[pymethods]
impl Held {
    /// Returns first page and number of pages of each run that was lost.
    fn __enter__(&self, py: Python<'_>) -> Result<Lost> {
        self.0.get().hold(py)
    }

    fn __exit__(
        &self,
        py: Python<'_>,
        _type: Option<Bound<'_, PyType>>,
        _value: Option<Bound<'_, PyAny>>,
        _traceback: Option<Bound<'_, PyAny>>,
    ) -> Result<()> {
        self.0.get().let_go(py)
    }
}
