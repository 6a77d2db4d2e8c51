//! Descriptors that the caller gives and keeps.
#![allow(unsafe_code)]

use std::ffi::c_int;
use std::os::fd::{BorrowedFd, OwnedFd};

use glebe::sys::errno;

use crate::failure::Failure;

/// A copy of a descriptor, of the same open file.
pub(crate) fn copy_of(fd: c_int) -> Result<OwnedFd, Failure> {
    let refused = |errno, why| Failure::BadDescriptor { fd, errno, why };
    if fd < 0 {
        return Err(refused(errno::EBADF, "not open"));
    }
    // SAFETY: not -1, and used for one copy, which fails where nothing is open.
    let copy = unsafe { BorrowedFd::borrow_raw(fd) }.try_clone_to_owned();
    copy.map_err(|error| match error.raw_os_error() {
        Some(errno::EMFILE) => refused(errno::EMFILE, "no descriptor is free for a copy of it"),
        _ => refused(errno::EBADF, "not open"),
    })
}
