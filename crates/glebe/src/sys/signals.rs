//! [`Blocked`]: signals that wait. Source: pthread_sigmask(3), kill(2).
//!
//! # Safety
//! The calls fill and read locals.
#![allow(unsafe_code)]

use std::marker::PhantomData;
use std::mem::MaybeUninit;
use std::ptr;

/// Signals of the calling thread wait while this lives; but SIGKILL and SIGSTOP, which cannot.
pub(crate) struct Blocked {
    before: libc::sigset_t,
    /// It is for the thread that made it.
    _thread: PhantomData<*const ()>,
}

impl Blocked {
    pub(crate) fn new() -> Self {
        let (mut all, mut before) = (MaybeUninit::uninit(), MaybeUninit::zeroed());
        // SAFETY: both sets are this function's own; the calls fail for bad arguments alone.
        let before = unsafe {
            libc::sigfillset(all.as_mut_ptr());
            libc::pthread_sigmask(libc::SIG_BLOCK, all.as_ptr(), before.as_mut_ptr());
            before.assume_init()
        };
        Self { before, _thread: PhantomData }
    }
}

impl Drop for Blocked {
    fn drop(&mut self) {
        // SAFETY: a set that the kernel filled.
        unsafe {
            libc::pthread_sigmask(libc::SIG_SETMASK, &raw const self.before, ptr::null_mut())
        };
    }
}

/// Ends this process as from outside: nothing of its own runs any more.
#[cfg(feature = "faults")]
pub(super) fn kill_self() -> ! {
    loop {
        // SAFETY: takes no pointer.
        unsafe { libc::kill(libc::getpid(), libc::SIGKILL) };
    }
}
