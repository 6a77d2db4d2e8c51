//! Descriptors of the caller's: copied, and left as they are.
//!
//! # Safety
//! A number that is open is used for one copy; where nothing is open that fails.
#![allow(unsafe_code)]

use std::ffi::c_int;
use std::os::fd::{BorrowedFd, OwnedFd};

use crate::abi::GLEBE_ERROR_BAD_ARGUMENT;
use crate::failure::Failure;

/// The refusal of a descriptor.
pub(crate) fn refused(fd: c_int, why: &str) -> Failure {
    Failure::new(GLEBE_ERROR_BAD_ARGUMENT, format!("the descriptor {fd}: {why}"))
}

/// A copy of a descriptor of the caller's.
pub(crate) fn copy_of(fd: c_int) -> Result<OwnedFd, Failure> {
    if fd < 0 {
        return Err(refused(fd, "not open"));
    }
    // SAFETY: not -1, and used as the file's head says.
    let copy = unsafe { BorrowedFd::borrow_raw(fd) }.try_clone_to_owned();
    copy.map_err(|error| refused(fd, &format!("no copy of it: {error}")))
}
