//! `write` writes to C library streams.
#![allow(unsafe_code)]

use std::ffi::c_void;

/// Returns true if the stream took all of `bytes`.
///
/// # Safety
/// `stream` is an open `FILE *`.
pub unsafe fn write(stream: *mut c_void, bytes: &[u8]) -> bool {
    // SAFETY: `bytes` is a slice, and the caller guarantees the stream.
    unsafe { libc::fwrite(bytes.as_ptr().cast(), 1, bytes.len(), stream.cast()) == bytes.len() }
}
