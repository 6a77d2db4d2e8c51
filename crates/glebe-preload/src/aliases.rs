//! Exports the second names that the C library gives its allocator's functions. Programs that
//! replace the first names call the second.
//!
//! # Safety
//! Each function calls the function of the first name.
#![allow(unsafe_code)]

use core::ffi::c_void;

use crate::{aligned, malloc};

/// malloc(3).
#[no_mangle]
pub extern "C" fn __libc_malloc(size: usize) -> *mut c_void {
    malloc::malloc(size)
}

/// calloc(3).
#[no_mangle]
pub extern "C" fn __libc_calloc(count: usize, size: usize) -> *mut c_void {
    malloc::calloc(count, size)
}

/// free(3).
///
/// # Safety
/// See free(3).
#[no_mangle]
pub unsafe extern "C" fn __libc_free(at: *mut c_void) {
    // SAFETY: the caller keeps the contract.
    unsafe { malloc::free(at) }
}

/// realloc(3).
///
/// # Safety
/// See realloc(3).
#[no_mangle]
pub unsafe extern "C" fn __libc_realloc(at: *mut c_void, size: usize) -> *mut c_void {
    // SAFETY: the caller keeps the contract.
    unsafe { malloc::realloc(at, size) }
}

/// memalign(3).
#[no_mangle]
pub extern "C" fn __libc_memalign(align: usize, size: usize) -> *mut c_void {
    aligned::memalign(align, size)
}

/// valloc(3).
#[no_mangle]
pub extern "C" fn __libc_valloc(size: usize) -> *mut c_void {
    aligned::valloc(size)
}

/// pvalloc(3).
#[no_mangle]
pub extern "C" fn __libc_pvalloc(size: usize) -> *mut c_void {
    aligned::pvalloc(size)
}
