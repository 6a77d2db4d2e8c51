//! [`behind`] looks up functions for a library that precedes others in the loader's order.
//!
//! The loader may allocate, so no allocator calls this module. Source: dlsym(3), dlopen(3),
//! dladdr(3).
#![allow(unsafe_code)]

use std::ffi::{c_void, CStr};
use std::ptr;

/// Returns the address of `name` in the next libraries of the loader's order, or in a loaded
/// library of `others`, else null.
#[must_use]
pub fn behind(name: &CStr, others: &[&CStr]) -> *mut c_void {
    // SAFETY: the name is a terminated string.
    let found = unsafe { libc::dlsym(libc::RTLD_NEXT, name.as_ptr()) };
    if !found.is_null() {
        return found;
    }
    for other in others {
        // SAFETY: the strings are terminated, and nobody closes the library.
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

#[must_use]
pub fn are_together(one: *const (), other: *const ()) -> bool {
    let of = |address: *const ()| {
        // SAFETY: the call fills a local.
        unsafe {
            let mut info = std::mem::zeroed::<libc::Dl_info>();
            (libc::dladdr(address.cast(), &mut info) != 0).then_some(info.dli_fbase)
        }
    };
    of(one).is_some() && of(one) == of(other)
}
