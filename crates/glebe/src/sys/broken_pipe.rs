//! Whether this process ignores SIGPIPE: the kernel passes that on to what the process executes.
//! Source: sigaction(2), execve(2).
//!
//! # Safety
//! The calls fill a local, or take no pointer.
#![allow(unsafe_code)]

use std::mem::MaybeUninit;
use std::ptr;

/// Returns whether the signal is ignored. May be called before `main`.
pub fn is_ignored() -> bool {
    let mut action = MaybeUninit::<libc::sigaction>::zeroed();
    // SAFETY: the kernel fills the local; zeroes are an action, too, should it refuse.
    let action = unsafe {
        libc::sigaction(libc::SIGPIPE, ptr::null(), action.as_mut_ptr());
        action.assume_init()
    };
    action.sa_sigaction == libc::SIG_IGN
}

/// Ignores the signal from now on. May be called between fork and exec.
pub fn ignore() {
    // SAFETY: takes no pointer; fails for a bad number of a signal alone.
    unsafe { libc::signal(libc::SIGPIPE, libc::SIG_IGN) };
}
