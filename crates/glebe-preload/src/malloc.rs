//! The names of malloc(3) and posix_memalign(3).
//!
//! # Safety
//! Exported for C: each takes what its manual page says, and nothing else is checked.
#![allow(unsafe_code)]

use core::ffi::{c_int, c_void};

use pages::{engine, heap};

#[inline]
fn enter() {
    if heap::todo() {
        heap::at_entry();
    }
}

const ENOMEM: c_int = 12;
const EINVAL: c_int = 22;

/// malloc(3).
#[no_mangle]
pub extern "C" fn malloc(size: usize) -> *mut c_void {
    enter();
    // SAFETY: any size may be asked for.
    unsafe { engine::mi_malloc(size) }
}

/// calloc(3).
#[no_mangle]
pub extern "C" fn calloc(count: usize, size: usize) -> *mut c_void {
    enter();
    // SAFETY: any count and size may be asked for.
    unsafe { engine::mi_calloc(count, size) }
}

/// free(3).
///
/// # Safety
/// As there.
#[no_mangle]
pub unsafe extern "C" fn free(at: *mut c_void) {
    // SAFETY: the caller's own object, or null.
    unsafe { engine::mi_free(at) }
}

/// realloc(3).
///
/// # Safety
/// As there.
#[no_mangle]
pub unsafe extern "C" fn realloc(at: *mut c_void, size: usize) -> *mut c_void {
    enter();
    // SAFETY: the caller's own object, or null.
    unsafe { engine::mi_realloc(at, size) }
}

/// posix_memalign(3).
///
/// # Safety
/// As there.
#[no_mangle]
pub unsafe extern "C" fn posix_memalign(to: *mut *mut c_void, align: usize, size: usize) -> c_int {
    if !align.is_power_of_two() || align < size_of::<*mut c_void>() {
        return EINVAL;
    }
    enter();
    // SAFETY: the alignment is a power of two.
    let at = unsafe { engine::mi_malloc_aligned(size, align) };
    if at.is_null() {
        return ENOMEM;
    }
    // SAFETY: the caller's own pointer.
    unsafe { to.write(at) };
    0
}

/// aligned_alloc(3).
#[no_mangle]
pub extern "C" fn aligned_alloc(align: usize, size: usize) -> *mut c_void {
    enter();
    // SAFETY: any size and alignment may be asked for.
    unsafe { engine::mi_malloc_aligned(size, align) }
}

/// memalign(3).
#[no_mangle]
pub extern "C" fn memalign(align: usize, size: usize) -> *mut c_void {
    enter();
    // SAFETY: any size and alignment may be asked for.
    unsafe { engine::mi_malloc_aligned(size, align) }
}

/// malloc_usable_size(3).
///
/// # Safety
/// As there.
#[no_mangle]
pub unsafe extern "C" fn malloc_usable_size(at: *const c_void) -> usize {
    // SAFETY: the caller's own object, or null.
    unsafe { engine::mi_usable_size(at) }
}
