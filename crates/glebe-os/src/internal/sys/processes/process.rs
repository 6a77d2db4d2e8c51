//! Identifies the process's user, the kernel and the current boot.
#![allow(unsafe_code)]

use crate::error::OsError;
use crate::internal::sys::files::file;

pub fn boot_id() -> Result<String, OsError> {
    Ok(file::text("/proc/sys/kernel/random/boot_id")?.trim().to_owned())
}

pub fn release() -> String {
    let text = file::text("/proc/sys/kernel/osrelease").unwrap_or_default();
    text.trim().to_owned()
}

#[must_use]
pub fn effective_user() -> u32 {
    // SAFETY: the call takes no argument.
    unsafe { libc::geteuid() }
}
