//! The functions of malloc(3), and C23's functions that free.
//!
//! The functions follow the C library: size zero makes an object, `realloc(p, 0)` frees, sizes
//! above `PTRDIFF_MAX` fail with ENOMEM, `free` keeps errno.
//!
//! # Safety
//! Exported for C: callers keep the manual pages' contracts. `free` ignores objects of other
//! allocators.
#![allow(unsafe_code)]

use core::ffi::c_void;
use core::ptr;

use pages::engine;

use crate::entry::{self, refused, GATE};
use crate::{early, elsewhere};

/// malloc(3).
#[no_mangle]
pub extern "C" fn malloc(size: usize) -> *mut c_void {
    // SAFETY: any size is valid.
    unsafe { entry::alloc(size) }
}

/// calloc(3).
#[no_mangle]
pub extern "C" fn calloc(count: usize, size: usize) -> *mut c_void {
    let Some(total) = count.checked_mul(size) else { return refused() };
    // SAFETY: any size is valid.
    unsafe { entry::alloc_zeroed(total) }
}

/// free(3). Need not save errno, because `elsewhere::free` and the hooks of `mi_free` keep errno.
///
/// # Safety
/// See free(3).
#[no_mangle]
pub unsafe extern "C" fn free(at: *mut c_void) {
    if GATE.owns(at.addr()) {
        // SAFETY: the object is the caller's.
        return unsafe { engine::mi_free(at) };
    }
    // SAFETY: the object is the caller's, or null.
    unsafe { elsewhere::free(at) }
}

/// realloc(3).
///
/// # Safety
/// See realloc(3).
#[no_mangle]
pub unsafe extern "C" fn realloc(at: *mut c_void, size: usize) -> *mut c_void {
    if size == 0 && !at.is_null() {
        // SAFETY: the object is the caller's.
        unsafe { free(at) };
        return ptr::null_mut();
    }
    if early::owns(at) {
        // SAFETY: the object is from `early`.
        return unsafe { moved(at, size) };
    }
    // SAFETY: the object is the caller's, or null.
    unsafe { entry::realloc(at, size) }
}

/// Copies an object of [`early`] to a new one of `size` bytes.
///
/// # Safety
/// The object is from [`early`].
#[cold]
#[inline(never)]
unsafe extern "C" fn moved(at: *mut c_void, size: usize) -> *mut c_void {
    // SAFETY: any size is valid; both objects have at least `len` bytes.
    unsafe {
        let to = entry::alloc(size);
        if !to.is_null() {
            let len = size.min(early::size_of(at));
            ptr::copy_nonoverlapping(at.cast::<u8>(), to.cast(), len);
        }
        to
    }
}

/// reallocarray(3).
///
/// # Safety
/// See reallocarray(3).
#[no_mangle]
pub unsafe extern "C" fn reallocarray(at: *mut c_void, count: usize, size: usize) -> *mut c_void {
    let Some(total) = count.checked_mul(size) else { return refused() };
    // SAFETY: the caller keeps the contract.
    unsafe { realloc(at, total) }
}

/// cfree(3), an older name of free(3).
///
/// # Safety
/// See free(3).
#[no_mangle]
pub unsafe extern "C" fn cfree(at: *mut c_void) {
    // SAFETY: the caller keeps the contract.
    unsafe { free(at) }
}

/// C23's free_sized.
///
/// # Safety
/// See free(3).
#[no_mangle]
pub unsafe extern "C" fn free_sized(at: *mut c_void, _size: usize) {
    // SAFETY: the caller keeps the contract.
    unsafe { free(at) }
}

/// C23's free_aligned_sized.
///
/// # Safety
/// See free(3).
#[no_mangle]
pub unsafe extern "C" fn free_aligned_sized(at: *mut c_void, _align: usize, _size: usize) {
    // SAFETY: the caller keeps the contract.
    unsafe { free(at) }
}
