//! The functions of posix_memalign(3).
//!
//! The functions follow the C library: `memalign` rounds alignments up to powers of two,
//! `aligned_alloc` refuses other alignments, and a failing `posix_memalign` keeps errno and the
//! caller's pointer.
//!
//! # Safety
//! Exported for C: callers keep the manual pages' contracts.
#![allow(unsafe_code)]

use core::ffi::{c_int, c_void};

use glebe::internal::sys::errno;
use glebe::internal::sys::page_size;

use crate::entry::{self, misaligned, refused};

/// posix_memalign(3).
///
/// # Safety
/// See posix_memalign(3).
#[no_mangle]
pub unsafe extern "C" fn posix_memalign(to: *mut *mut c_void, align: usize, size: usize) -> c_int {
    if !align.is_power_of_two() || align < size_of::<*mut c_void>() {
        return errno::EINVAL;
    }
    let _kept = errno::keep();
    let at = aligned_alloc(align, size);
    if at.is_null() {
        return errno::ENOMEM;
    }
    // SAFETY: the caller gives a valid pointer.
    unsafe { to.write(at) };
    0
}

/// aligned_alloc(3). The size need not be a multiple of the alignment.
#[no_mangle]
pub extern "C" fn aligned_alloc(align: usize, size: usize) -> *mut c_void {
    if !align.is_power_of_two() {
        return misaligned();
    }
    // SAFETY: the alignment is a power of two.
    unsafe { entry::alloc_aligned(size, align) }
}

/// memalign(3).
#[no_mangle]
pub extern "C" fn memalign(align: usize, size: usize) -> *mut c_void {
    match align.checked_next_power_of_two() {
        Some(align) => aligned_alloc(align, size),
        None => misaligned(),
    }
}

/// valloc(3).
#[no_mangle]
pub extern "C" fn valloc(size: usize) -> *mut c_void {
    aligned_alloc(page(), size)
}

/// pvalloc(3). Rounds the size up to whole pages.
#[no_mangle]
pub extern "C" fn pvalloc(size: usize) -> *mut c_void {
    match size.checked_next_multiple_of(page()) {
        Some(size) => aligned_alloc(page(), size),
        None => refused(),
    }
}

fn page() -> usize {
    page_size().bytes().as_usize()
}
