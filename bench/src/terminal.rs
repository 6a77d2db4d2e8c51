//! The width of the terminal that output goes to.
//!
//! # Safety
//! The call is given a local of the type that it writes.
#![allow(unsafe_code)]

use std::mem;

/// Where it is no terminal, or does not tell.
const COLUMNS: usize = 80;

/// Columns of the terminal on standard output; what `COLUMNS` says, or 80, where it is none.
#[must_use]
pub fn columns() -> usize {
    // SAFETY: plain data, for which all zeros is a value; the call writes it or fails.
    let told = unsafe {
        let mut size: libc::winsize = mem::zeroed();
        let rc = libc::ioctl(libc::STDOUT_FILENO, libc::TIOCGWINSZ, &raw mut size);
        usize::from(if rc == 0 { size.ws_col } else { 0 })
    };
    let named = || std::env::var("COLUMNS").ok()?.parse().ok();
    Some(told).filter(|columns| *columns > 0).or_else(named).unwrap_or(COLUMNS)
}
