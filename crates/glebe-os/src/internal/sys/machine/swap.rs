//! [`exists`] detects swap on this machine.
#![allow(unsafe_code)]

use std::mem::MaybeUninit;

use crate::internal::sys::fault::point;

/// Returns true if the machine has swap, or if the kernel does not answer.
pub fn exists() -> bool {
    if point("sysinfo").is_err() {
        return true;
    }
    let mut info = MaybeUninit::<libc::sysinfo>::zeroed();
    // SAFETY: the kernel fills one `sysinfo`; zeros are valid too.
    let (refused, info) = unsafe { (libc::sysinfo(info.as_mut_ptr()) != 0, info.assume_init()) };
    refused || info.totalswap > 0
}
