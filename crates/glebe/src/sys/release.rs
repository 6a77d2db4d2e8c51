//! The release of the running kernel. Source: uname(2).
//!
//! # Safety
//! The call fills the structure that it is given.
#![allow(unsafe_code)]

use std::ffi::CStr;
use std::mem::MaybeUninit;

/// As `uname -r` shows it; empty where the kernel does not say.
pub(crate) fn release() -> String {
    let mut name = MaybeUninit::<libc::utsname>::zeroed();
    // SAFETY: the kernel fills one `utsname`; zeros are a value of it where it does not.
    let name = unsafe {
        libc::uname(name.as_mut_ptr());
        name.assume_init()
    };
    // SAFETY: the kernel ends the field with a zero, or all of it is zeros.
    let release = unsafe { CStr::from_ptr(name.release.as_ptr()) };
    release.to_string_lossy().into_owned()
}
