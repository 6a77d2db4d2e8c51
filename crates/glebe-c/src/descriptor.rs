//! Copies the caller's file descriptors.
//!
//! # Safety
//! A number from the caller is used only for one copy, which fails if the number is not open.
#![allow(unsafe_code)]

use std::ffi::c_int;
use std::os::fd::{BorrowedFd, OwnedFd};

use crate::abi::GLEBE_ERROR_BAD_ARGUMENT;
use crate::failure::Failure;

pub(crate) fn refused(fd: c_int, why: &str) -> Failure {
    Failure::new(GLEBE_ERROR_BAD_ARGUMENT, format!("the descriptor {fd}: {why}"))
}

/// Copies a descriptor. Fails with `GLEBE_ERROR_BAD_ARGUMENT`.
pub(crate) fn copy_of(fd: c_int) -> Result<OwnedFd, Failure> {
    if fd < 0 {
        return Err(refused(fd, "not open"));
    }
    // SAFETY: `fd` is not negative, and is borrowed only for the copy.
    let copy = unsafe { BorrowedFd::borrow_raw(fd) }.try_clone_to_owned();
    copy.map_err(|error| refused(fd, &format!("no copy of it: {error}")))
}
