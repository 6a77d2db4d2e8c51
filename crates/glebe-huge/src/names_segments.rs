//! The C library's names for System V segments.
//!
//! # Safety
//! Exported for C: see the manual page of each.
#![allow(unsafe_code)]

use std::ffi::{c_int, c_void};

use crate::names::{number, pointer};
use crate::segments;

/// shmget(2).
#[no_mangle]
pub extern "C" fn shmget(key: c_int, size: usize, flags: c_int) -> c_int {
    number(segments::shmget(key, size, flags))
}

/// shmat(2).
///
/// # Safety
/// See shmat(2).
#[no_mangle]
pub unsafe extern "C" fn shmat(id: c_int, addr: *const c_void, flags: c_int) -> *mut c_void {
    // SAFETY: the caller keeps the contract.
    pointer(unsafe { segments::shmat(id, addr.expose_provenance(), flags) })
}

/// shmdt(2).
///
/// # Safety
/// See shmdt(2).
#[no_mangle]
pub unsafe extern "C" fn shmdt(addr: *const c_void) -> c_int {
    // SAFETY: the caller keeps the contract.
    number(unsafe { segments::shmdt(addr.expose_provenance()) })
}

/// shmctl(2).
///
/// # Safety
/// See shmctl(2).
#[no_mangle]
pub unsafe extern "C" fn shmctl(id: c_int, command: c_int, buffer: *mut c_void) -> c_int {
    // SAFETY: the caller keeps the contract.
    number(unsafe { segments::shmctl(id, command, buffer.expose_provenance()) })
}
