//! This module reads and sets the calling thread's `errno`.
//!
//! Source: errno(3).
#![allow(unsafe_code)]

pub use libc::{
    EACCES, EAGAIN, EBADF, EDEADLK, EDQUOT, EEXIST, EFAULT, EFBIG, EIDRM, EINVAL, EIO, EMFILE,
    ENODEV, ENOENT, ENOMEM, ENOSYS, EOPNOTSUPP, EOVERFLOW, EPERM, ETIMEDOUT,
};

#[inline]
pub fn get() -> i32 {
    // SAFETY: the address is of this thread's word.
    unsafe { *libc::__errno_location() }
}

#[inline]
pub fn set(number: i32) {
    // SAFETY: the address is of this thread's word.
    unsafe { *libc::__errno_location() = number };
}

/// Returns a number that no other thread of the process has meanwhile.
#[inline]
#[must_use]
pub fn thread() -> usize {
    // SAFETY: the call takes no pointer.
    unsafe { libc::__errno_location() }.addr()
}

/// A saved `errno`, restored on drop.
#[derive(Debug)]
pub struct Kept {
    at: *mut i32,
    number: i32,
}

/// Saves `errno`. The drop does not call the C library again.
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
        // SAFETY: `Kept` is not `Send`, so the address is of this thread's word.
        unsafe { *self.at = self.number };
    }
}
