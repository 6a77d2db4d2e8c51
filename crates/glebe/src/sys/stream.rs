//! Streams of the C library, which a caller passes in. Source: fwrite(3).
//!
//! # Safety
//! A stream is the caller's word.
#![allow(unsafe_code)]

use std::ffi::c_void;

/// Writes `bytes`; whether all were taken.
///
/// # Safety
/// `stream` is an open `FILE *`.
pub unsafe fn write(stream: *mut c_void, bytes: &[u8]) -> bool {
    // SAFETY: the slice's own bytes; the caller's stream.
    unsafe { libc::fwrite(bytes.as_ptr().cast(), 1, bytes.len(), stream.cast()) == bytes.len() }
}
