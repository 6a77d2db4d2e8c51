//! The error number of the calling thread, for an interface that tells failures by it.
//!
//! Source: errno(3).
//!
//! # Safety
//! One load of and one store to the thread's own word.
#![allow(unsafe_code)]

pub use libc::{
    EACCES, EAGAIN, EBADF, EDEADLK, EEXIST, EFAULT, EINVAL, EIO, EMFILE, ENODEV, ENOMEM,
    EOPNOTSUPP, EOVERFLOW, EPERM, ETIMEDOUT,
};

/// Returns it.
#[inline]
pub fn get() -> i32 {
    // SAFETY: the C library gives the address of the thread's own.
    unsafe { *libc::__errno_location() }
}

/// Sets it.
#[inline]
pub fn set(number: i32) {
    // SAFETY: the C library gives the address of the thread's own, which may be written.
    unsafe { *libc::__errno_location() = number };
}

/// The number as it is now, which it is again once this is dropped. Asks the C library once.
#[derive(Debug)]
pub struct Kept {
    at: *mut i32,
    number: i32,
}

/// Keeps it.
#[inline]
#[must_use]
pub fn keep() -> Kept {
    // SAFETY: the C library gives the address of the thread's own.
    let at = unsafe { libc::__errno_location() };
    // SAFETY: as above.
    Kept { at, number: unsafe { *at } }
}

impl Drop for Kept {
    #[inline]
    fn drop(&mut self) {
        // SAFETY: the thread's own: a pointer keeps this value in its thread.
        unsafe { *self.at = self.number };
    }
}
