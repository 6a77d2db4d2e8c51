//! SIGPIPE: whether this process ignores it, which the kernel passes on to what the process
//! executes; and writes that raise none. Source: sigaction(2), execve(2), sigtimedwait(2), pipe(7).
//!
//! # Safety
//! The calls fill and read locals, or take no pointer.
#![allow(unsafe_code)]

use std::mem::MaybeUninit;
use std::ptr;

/// A write of the calling thread raises no SIGPIPE while this lives: the signal waits, and what was
/// raised is taken away at the end, but where one waited before. For a signal handler too.
pub(super) struct Held {
    before: libc::sigset_t,
    /// SIGPIPE; none where one waited before.
    raised: Option<libc::sigset_t>,
}

impl Held {
    pub(super) fn new() -> Self {
        let (mut pipe, mut before, mut waiting) =
            (MaybeUninit::uninit(), MaybeUninit::zeroed(), MaybeUninit::zeroed());
        // SAFETY: the sets are this function's own; the calls fail for bad arguments alone.
        unsafe {
            libc::sigemptyset(pipe.as_mut_ptr());
            libc::sigaddset(pipe.as_mut_ptr(), libc::SIGPIPE);
            libc::pthread_sigmask(libc::SIG_BLOCK, pipe.as_ptr(), before.as_mut_ptr());
            libc::sigpending(waiting.as_mut_ptr());
            let is_first = libc::sigismember(waiting.as_ptr(), libc::SIGPIPE) == 0;
            Self { before: before.assume_init(), raised: is_first.then(|| pipe.assume_init()) }
        }
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        let at_once = libc::timespec { tv_sec: 0, tv_nsec: 0 };
        // SAFETY: sets that were filled at the start, and a time of this function's own.
        unsafe {
            if let Some(raised) = &self.raised {
                libc::sigtimedwait(raised, ptr::null_mut(), &raw const at_once);
            }
            libc::pthread_sigmask(libc::SIG_SETMASK, &raw const self.before, ptr::null_mut());
        }
    }
}

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
