//! Pressure stall information: a trigger that polls as ready when memory stalls.
//!
//! A trigger lives as long as the descriptor it was written to, one a descriptor. Times are in
//! microseconds. Without CAP_SYS_RESOURCE the window must be a multiple of [`WINDOW_STEP_US`].
//! Source: `Documentation/accounting/psi.rst`, `kernel/sched/psi.c`.

use std::fs::{File, OpenOptions};
use std::io;
use std::path::Path;

use crate::sys::file;

/// What an unprivileged window must be a multiple of.
pub(crate) const WINDOW_STEP_US: u64 = 2_000_000;

/// Arms a trigger on the pressure file at `path`: `stall_us` of some task's stall within
/// `window_us`. Dropping the file disarms it.
pub(crate) fn arm(path: &Path, stall_us: u64, window_us: u64) -> io::Result<File> {
    let mut file = file::open(path, OpenOptions::new().read(true).write(true))?;
    // The kernel parses one write as one trigger and wants the terminating zero inside it.
    file::write(&mut file, format!("some {stall_us} {window_us}\0").as_bytes())?;
    Ok(file)
}
