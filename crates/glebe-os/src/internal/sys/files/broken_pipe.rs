//! `Held` prevents SIGPIPE; [`ignore`] ignores it. Source: sigaction(2), sigtimedwait(2), pipe(7).
#![allow(unsafe_code)]

use std::mem::MaybeUninit;
use std::ptr;

/// Blocks SIGPIPE for the calling thread until the drop, which discards a SIGPIPE raised meanwhile.
/// Signal handlers may use `Held`.
pub(in crate::internal::sys) struct Held {
    before: libc::sigset_t,
    /// SIGPIPE, for the drop to discard; `None` if a SIGPIPE was pending before `new`.
    raised: Option<libc::sigset_t>,
}

impl Held {
    pub(in crate::internal::sys) fn new() -> Self {
        let (mut pipe, mut before, mut waiting) =
            (MaybeUninit::uninit(), MaybeUninit::zeroed(), MaybeUninit::zeroed());
        // SAFETY: the sets are locals.
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
        // SAFETY: `new` filled the sets.
        unsafe {
            if let Some(raised) = &self.raised {
                libc::sigtimedwait(raised, ptr::null_mut(), &raw const at_once);
            }
            libc::pthread_sigmask(libc::SIG_SETMASK, &raw const self.before, ptr::null_mut());
        }
    }
}

pub fn is_ignored() -> bool {
    let mut action = MaybeUninit::<libc::sigaction>::zeroed();
    // SAFETY: the kernel fills the local.
    let action = unsafe {
        libc::sigaction(libc::SIGPIPE, ptr::null(), action.as_mut_ptr());
        action.assume_init()
    };
    action.sa_sigaction == libc::SIG_IGN
}

/// Ignores SIGPIPE, also after exec.
pub fn ignore() {
    // SAFETY: the call takes no pointer.
    unsafe { libc::signal(libc::SIGPIPE, libc::SIG_IGN) };
}
