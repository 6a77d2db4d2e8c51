//! `Lease`: memory of the daemon as a buffer, which forked children share.
//!
//! Each lease has its own connection, so it ends with its object, whatever the others do.
//!
//! # Safety
//! Python owns each `Py_buffer`; [`Exported`] fills it. The memory stays mapped while it is
//! exported. If the daemon takes the memory back, a touch finds zeros.
#![allow(unsafe_code)]

use std::ffi::c_int;
use std::os::fd::AsRawFd;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use glebe::internal::size;
use glebe::internal::sys::errno::EAGAIN;
use glebe::lease::wire::Name;
use glebe::lease::{socket_path, Client, Flags, LeaseError, Wish};
use glebe::page_size;
use pyo3::ffi;
use pyo3::prelude::*;
use pyo3::types::{PyString, PyType};

use crate::exports::{Bytes, Exported};
use crate::{Failure, Result};

/// Longest wait for a daemon that does not answer.
const LIMIT: Duration = Duration::from_secs(10);
/// The longest wait before a look for signals and for `close`.
const SLICE: Duration = Duration::from_millis(100);

/// Memory that a daemon lends until `close`; a writable buffer of bytes.
///
/// The memory is zeroed at first. Forked children share it, and read zeros in it after the parent's
/// `close`. If the daemon takes a revocable lease back, the memory reads as zeros.
#[pyclass(frozen, module = "glebe")]
pub(crate) struct Lease(Exported<Arc<glebe::lease::Lease>>);

pub(crate) fn bytes_of(what: &str, size: &Bound<'_, PyAny>) -> Result<u64> {
    if !size.is_instance_of::<PyString>() {
        return Ok(size.extract()?);
    }
    let text: String = size.extract()?;
    let parsed = size::parse(&text).map(glebe::Bytes::get);
    parsed.map_err(|why| Failure::BadSize(format!("{what} {text:?}: {why}")))
}

/// Returns the name of the program for lists.
fn program(py: Python<'_>) -> String {
    let find = || py.import("sys")?.getattr("argv")?.get_item(0)?.extract::<PathBuf>();
    let path = find().unwrap_or_default();
    path.file_name().map_or_else(|| "python".into(), |name| name.to_string_lossy().into_owned())
}

/// Leases `size` bytes of huge pages from the daemon that `glebe serve --leases` runs.
///
/// `size`: bytes, or a text such as "2G"; rounded up to whole huge pages. `contiguous`: only memory
/// in one physical run. `align`: alignment of the first physical byte, a power of two.
/// `revocable`: the daemon may take the memory back (`Lease.recalled`). `one_file`: one file, to
/// pass it on. `name`: the name in lists, by default the program's. `socket`: path of the daemon's
/// socket. `node`: NUMA node. `wait`: seconds for which the call asks again while the daemon takes
/// memory back, or adds some.
///
/// Raises `SystemRefused` if no daemon answers; `NoMemory` with the longest free run, or with the
/// user's `limit`; `WouldWait` if memory is still on its way after `wait` seconds;
/// `BadArgument` for a size of zero, another alignment or node. `errno` has the daemon's reason.
#[pyfunction]
#[pyo3(signature = (
    size, *, contiguous = false, align = None, revocable = false, one_file = false, name = None,
    socket = None, node = None, wait = 2.0
), text_signature = "(size, *, contiguous=False, align=0, revocable=False, one_file=False, \
name=None, socket=None, node=None, wait=2.0)")]
#[allow(clippy::too_many_arguments)] // Python passes them by name.
pub(crate) fn lease(
    py: Python<'_>,
    size: &Bound<'_, PyAny>,
    contiguous: bool,
    align: Option<&Bound<'_, PyAny>>,
    revocable: bool,
    one_file: bool,
    name: Option<&str>,
    socket: Option<PathBuf>,
    node: Option<u32>,
    wait: f64,
) -> Result<Lease> {
    let wait = seconds("wait", wait)?;
    let align = align.map_or(Ok(0), |align| bytes_of("align", align))?;
    let wish = Wish {
        bytes: bytes_of("size", size)?,
        align,
        node,
        flags: Flags { contiguous, one_file, revocable },
        name: Name::new(name.unwrap_or_default()),
    };
    let (program, socket) = (program(py), socket.unwrap_or_else(socket_path));
    let client = py.detach(|| Client::connect_within(&socket, &program, LIMIT))?;
    let lease = granted(py, &client, wish, wait)?;
    Ok(Lease(Exported::new("lease", Arc::new(lease))))
}

fn seconds(what: &str, seconds: f64) -> Result<Duration> {
    let wait = Duration::try_from_secs_f64(seconds.max(0.0));
    wait.map_err(|why| Failure::argument(format!("{what}: {why}")))
}

/// Asks again for memory on its way, and looks for signals meanwhile.
fn granted(
    py: Python<'_>,
    client: &Client,
    wish: Wish,
    wait: Duration,
) -> Result<glebe::lease::Lease> {
    let begin = Instant::now();
    loop {
        let left = wait.saturating_sub(begin.elapsed());
        let client = client.clone().patience(left.min(SLICE));
        match py.detach(|| client.lease(wish)) {
            Err(LeaseError::Refused { errno: EAGAIN, .. }) if left > SLICE => py.check_signals()?,
            other => return Ok(other?),
        }
    }
}

#[pymethods]
impl Lease {
    fn __len__(&self) -> Result<usize> {
        self.0.with(|lease| lease.len().as_usize())
    }

    /// The length in bytes.
    #[getter]
    fn nbytes(&self) -> Result<usize> {
        self.__len__()
    }

    /// The lease's number in lists.
    #[getter]
    fn number(&self) -> Result<u64> {
        self.0.with(|lease| lease.number())
    }

    /// The virtual address of the first byte.
    #[getter]
    fn address(&self) -> Result<usize> {
        self.0.with(|lease| lease.as_ptr().addr())
    }

    /// The physical address of the first byte, or `None` if the daemon does not see it.
    #[getter]
    fn physical(&self) -> Result<Option<u64>> {
        self.0.with(|lease| lease.runs().first().and_then(|run| run.physical))
    }

    /// Returns each physical run: first page, number of pages, and first page frame or `None`.
    fn runs(&self) -> Result<Vec<(u64, u64, Option<u64>)>> {
        let page = page_size().bytes().get();
        let runs = self.0.with(|lease| lease.runs())?;
        let run = |run: &glebe::lease::LeaseRun| {
            let frame = run.physical.map(|physical| physical / page);
            (run.offset.get() / page, run.len.get() / page, frame)
        };
        Ok(runs.iter().map(run).collect())
    }

    /// Returns the descriptor of the lease's file, open until `close`.
    ///
    /// Raises `ValueError` for a lease of several files: `one_file=True` asks for one.
    fn fileno(&self) -> Result<i32> {
        match self.files()?[..] {
            [file] => Ok(file),
            ref files => Err(Failure::argument(format!(
                "a lease of {} files: one_file=True asks for one",
                files.len()
            ))),
        }
    }

    /// Returns the descriptors of the lease's files in order, open until `close`. All files have
    /// the same length.
    fn files(&self) -> Result<Vec<i32>> {
        self.0.with(|lease| lease.files().map(|file| file.as_raw_fd()).collect())
    }

    /// Waits until the daemon asks for a revocable lease, at most `timeout` seconds; without limit
    /// if it is `None`. Returns the seconds until the daemon takes the memory, or `None` if it did
    /// not ask. It asks once.
    ///
    /// Raises `Purged` after the daemon took the memory: since some moment the memory reads as
    /// zeros. Raises `SystemRefused` if the daemon ended.
    #[pyo3(signature = (timeout = Some(0.0)), text_signature = "($self, timeout=0.0)")]
    fn recalled(&self, py: Python<'_>, timeout: Option<f64>) -> Result<Option<f64>> {
        let wait = timeout.map(|timeout| seconds("timeout", timeout)).transpose()?;
        let until = wait.and_then(|wait| Instant::now().checked_add(wait));
        loop {
            let lease = self.0.with(|lease| Arc::clone(lease))?;
            let left = until.map(|until| until.saturating_duration_since(Instant::now()));
            let now = left.map_or(SLICE, |left| left.min(SLICE));
            let asked = py.detach(move || match lease.recalled(now)? {
                // The daemon may have taken the memory since it asked.
                Some(left) => lease.recalled(Duration::ZERO).map(|_| Some(left)),
                None => Ok(None),
            })?;
            if asked.is_some() || left.is_some_and(|left| left <= SLICE) {
                return Ok(asked.map(|left| left.as_secs_f64()));
            }
            py.check_signals()?;
        }
    }

    /// Gives the memory back; a second call does nothing.
    ///
    /// Raises `BufferError` while arrays or views of it exist.
    fn close(&self, py: Python<'_>) -> Result<()> {
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
        self.close(py)
    }

    unsafe fn __getbuffer__(
        slf: Bound<'_, Self>,
        view: *mut ffi::Py_buffer,
        flags: c_int,
    ) -> Result<()> {
        let bytes = |lease: &mut Arc<glebe::lease::Lease>| {
            Ok(Bytes { start: lease.as_ptr(), len: lease.len().as_usize(), readonly: false })
        };
        // SAFETY: Python passes a view to fill, and the `Exported` keeps the lease.
        unsafe { slf.get().0.export(slf.as_any(), view, flags, bytes) }
    }

    unsafe fn __releasebuffer__(&self, _view: *mut ffi::Py_buffer) {
        self.0.release();
    }
}
