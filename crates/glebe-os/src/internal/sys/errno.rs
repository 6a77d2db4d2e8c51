//! The calling thread's `errno`, for interfaces that report failures by it.
//!
//! Source: errno(3).
//!
//! # Safety
//! The calls load or store only the thread's own word.
#![allow(unsafe_code)]

pub use libc::{
    EACCES, EAGAIN, EBADF, EDEADLK, EEXIST, EFAULT, EINVAL, EIO, EMFILE, ENODEV, ENOMEM,
    EOPNOTSUPP, EOVERFLOW, EPERM, ETIMEDOUT,
};

/// Returns `errno`.
#[inline]
pub fn get() -> i32 {
    // SAFETY: the address is of this thread's word.
    unsafe { *libc::__errno_location() }
}

/// Sets `errno`.
#[inline]
pub fn set(number: i32) {
    // SAFETY: the address is of this thread's word.
    unsafe { *libc::__errno_location() = number };
}

/// A saved `errno`, restored on drop.
#[derive(Debug)]
pub struct Kept {
    at: *mut i32,
    number: i32,
}

/// Saves `errno`. Calls the C library once, for the drop too.
#[inline]
#[must_use]
pub fn keep() -> Kept {
    // SAFETY: the call takes no pointer.
    let at = unsafe { libc::__errno_location() };
    // SAFETY: the address is of this thread's word.
    Kept { at, number: unsafe { *at } }
}

impl Drop for Kept {
    #[inline]
    fn drop(&mut self) {
        // SAFETY: the raw pointer keeps `Kept` in its thread.
        unsafe { *self.at = self.number };
    }
}
