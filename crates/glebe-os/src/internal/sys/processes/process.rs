//! Identifies the process's user, the kernel and the current boot.
//!
//! # Safety
//! The calls take no pointer.
#![allow(unsafe_code)]

use crate::error::OsError;
use crate::internal::sys::files::file;

pub fn boot_id() -> Result<String, OsError> {
    Ok(file::text("/proc/sys/kernel/random/boot_id")?.trim().to_owned())
}

/// Returns the kernel's release; empty if it cannot be read.
pub fn release() -> String {
    let text = file::text("/proc/sys/kernel/osrelease").unwrap_or_default();
    text.trim().to_owned()
}

#[must_use]
pub fn effective_user() -> u32 {
    // SAFETY: no argument.
    unsafe { libc::geteuid() }
}
