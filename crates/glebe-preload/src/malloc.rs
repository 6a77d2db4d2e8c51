//! The names of malloc(3), and those of C23 that free.
//!
//! As the C library has them: a size of zero is an object of its own, `realloc(p, 0)` frees, sizes
//! beyond `PTRDIFF_MAX` are refused with ENOMEM, and `free` keeps errno.
//!
//! # Safety
//! Exported for C: each takes what its manual page says, and nothing else is checked; but that free
//! lets memory be which is not the heap's.
#![allow(unsafe_code)]

use core::ffi::c_void;
use core::ptr;

use pages::engine;

use crate::entry::{self, refused, GATE};
use crate::{early, elsewhere};

/// malloc(3).
#[no_mangle]
pub extern "C" fn malloc(size: usize) -> *mut c_void {
    // SAFETY: any size may be asked for.
    unsafe { entry::alloc(size) }
}

/// calloc(3).
#[no_mangle]
pub extern "C" fn calloc(count: usize, size: usize) -> *mut c_void {
    let Some(total) = count.checked_mul(size) else { return refused() };
    // SAFETY: any size may be asked for.
    unsafe { entry::alloc_zeroed(total) }
}

/// free(3). An object of the heap's own goes to mimalloc at once: where that calls the kernel, the
/// heap's hooks keep errno.
///
/// # Safety
/// As there.
#[no_mangle]
pub unsafe extern "C" fn free(at: *mut c_void) {
    if GATE.owns(at.addr()) {
        // SAFETY: the caller's own object.
        return unsafe { engine::mi_free(at) };
    }
    // SAFETY: the caller's, or null.
    unsafe { elsewhere::free(at) }
}

/// realloc(3).
///
/// # Safety
/// As there.
#[no_mangle]
pub unsafe extern "C" fn realloc(at: *mut c_void, size: usize) -> *mut c_void {
    if size == 0 && !at.is_null() {
        // SAFETY: the caller's own object.
        unsafe { free(at) };
        return ptr::null_mut();
    }
    if early::owns(at) {
        // SAFETY: it is, as was just seen.
        return unsafe { moved(at, size) };
    }
    // SAFETY: the caller's own object, or null.
    unsafe { entry::realloc(at, size) }
}

/// An object of another size with the contents of an early one.
///
/// # Safety
/// It is an early one.
#[cold]
#[inline(never)]
unsafe extern "C" fn moved(at: *mut c_void, size: usize) -> *mut c_void {
    // SAFETY: any size may be asked for; both objects are as long as what is copied.
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
/// As there.
#[no_mangle]
pub unsafe extern "C" fn reallocarray(at: *mut c_void, count: usize, size: usize) -> *mut c_void {
    let Some(total) = count.checked_mul(size) else { return refused() };
    // SAFETY: the caller's.
    unsafe { realloc(at, total) }
}

/// cfree(3), an older name of free(3).
///
/// # Safety
/// As there.
#[no_mangle]
pub unsafe extern "C" fn cfree(at: *mut c_void) {
    // SAFETY: the caller's.
    unsafe { free(at) }
}

/// free_sized of C23.
///
/// # Safety
/// As there.
#[no_mangle]
pub unsafe extern "C" fn free_sized(at: *mut c_void, _size: usize) {
    // SAFETY: the caller's.
    unsafe { free(at) }
}

/// free_aligned_sized of C23.
///
/// # Safety
/// As there.
#[no_mangle]
pub unsafe extern "C" fn free_aligned_sized(at: *mut c_void, _align: usize, _size: usize) {
    // SAFETY: the caller's.
    unsafe { free(at) }
}
