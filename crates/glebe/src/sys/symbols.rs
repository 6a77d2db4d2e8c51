//! Names of other libraries of the process, for a library that stands in front of them.
//!
//! Cost: the loader's search. The loader may allocate; no caller is inside an allocator.
//! Source: dlsym(3), dlopen(3), dladdr(3).
//!
//! # Safety
//! The loader is given strings and fills this file's own structures; addresses are only returned.
#![allow(unsafe_code)]

use std::ffi::{c_void, CStr};
use std::ptr;

/// The address that `name` has behind the calling library in the loader's order; else in the first
/// of `others` that is loaded and has it, which may be hidden from that order. Else null.
#[must_use]
pub fn behind(name: &CStr, others: &[&CStr]) -> *mut c_void {
    // SAFETY: a string.
    let found = unsafe { libc::dlsym(libc::RTLD_NEXT, name.as_ptr()) };
    if !found.is_null() {
        return found;
    }
    for other in others {
        // SAFETY: strings; nothing is loaded by this, and what is there stays: it is never closed.
        let found = unsafe {
            let library = libc::dlopen(other.as_ptr(), libc::RTLD_LAZY | libc::RTLD_NOLOAD);
            if library.is_null() {
                continue;
            }
            libc::dlsym(library, name.as_ptr())
        };
        if !found.is_null() {
            return found;
        }
    }
    ptr::null_mut()
}

/// Whether two addresses lie in one library or program.
#[must_use]
pub fn are_together(one: *const (), other: *const ()) -> bool {
    let of = |address: *const ()| {
        // SAFETY: fills this function's own structure.
        unsafe {
            let mut info = std::mem::zeroed::<libc::Dl_info>();
            (libc::dladdr(address.cast(), &mut info) != 0).then_some(info.dli_fbase)
        }
    };
    of(one).is_some() && of(one) == of(other)
}
