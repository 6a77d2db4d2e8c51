//! Whether this machine has swap. Source: sysinfo(2).
//!
//! # Safety
//! The call fills the structure that it is given.
#![allow(unsafe_code)]

use std::mem::MaybeUninit;

use crate::sys::fault::point;

/// Whether there is any swap; yes where the kernel does not say.
pub(crate) fn exists() -> bool {
    if point("sysinfo").is_err() {
        return true;
    }
    let mut info = MaybeUninit::<libc::sysinfo>::zeroed();
    // SAFETY: the kernel fills one `sysinfo`; zeros are a value of it where it does not.
    let (refused, info) = unsafe { (libc::sysinfo(info.as_mut_ptr()) != 0, info.assume_init()) };
    refused || info.totalswap > 0
}
