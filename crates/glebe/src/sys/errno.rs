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
pub fn get() -> i32 {
    // SAFETY: the C library gives the address of the thread's own.
    unsafe { *libc::__errno_location() }
}

/// Sets it.
pub fn set(number: i32) {
    // SAFETY: the C library gives the address of the thread's own, which may be written.
    unsafe { *libc::__errno_location() = number };
}
