//! The process and its boot: who runs, on which kernel, since which start of the machine.
//!
//! # Safety
//! The calls here take and give no memory.
#![allow(unsafe_code)]

use crate::error::OsError;
use crate::sys::file;

/// The kernel's name of this boot.
///
/// # Errors
/// If it cannot be read.
pub fn boot_id() -> Result<String, OsError> {
    Ok(file::text("/proc/sys/kernel/random/boot_id")?.trim().to_owned())
}

/// The release of the running kernel, as `uname -r` shows it; empty where it cannot be read.
pub(crate) fn release() -> String {
    let text = file::text("/proc/sys/kernel/osrelease").unwrap_or_default();
    text.trim().to_owned()
}

/// The effective user.
#[must_use]
pub fn effective_user() -> u32 {
    // SAFETY: always succeeds, takes nothing.
    unsafe { libc::geteuid() }
}
