//! [`Blocked`] blocks a thread's signals. Source: pthread_sigmask(3), sigaltstack(2), kill(2).
#![allow(unsafe_code)]

use std::marker::PhantomData;
use std::mem::MaybeUninit;
use std::ptr;

/// Blocks the calling thread's signals until the drop, except SIGKILL, SIGSTOP and the C library's
/// own for setuid(2). A thread started before the drop inherits the block.
pub struct Blocked {
    before: libc::sigset_t,
    /// Not `Send`.
    _thread: PhantomData<*const ()>,
}

impl Blocked {
    #[must_use]
    pub fn new() -> Self {
        let (mut all, mut before) = (MaybeUninit::uninit(), MaybeUninit::zeroed());
        // SAFETY: both sets are locals.
        let before = unsafe {
            libc::sigfillset(all.as_mut_ptr());
            libc::pthread_sigmask(libc::SIG_BLOCK, all.as_ptr(), before.as_mut_ptr());
            before.assume_init()
        };
        Self { before, _thread: PhantomData }
    }
}

impl Default for Blocked {
    fn default() -> Self {
        Self::new()
    }
}

impl Drop for Blocked {
    fn drop(&mut self) {
        // SAFETY: the kernel filled the set.
        unsafe {
            libc::pthread_sigmask(libc::SIG_SETMASK, &raw const self.before, ptr::null_mut())
        };
    }
}

pub fn is_sigbus_blocked() -> bool {
    let mut now = MaybeUninit::zeroed();
    // SAFETY: the set is a local; null changes nothing.
    unsafe {
        libc::pthread_sigmask(libc::SIG_BLOCK, ptr::null(), now.as_mut_ptr());
        libc::sigismember(now.as_ptr(), libc::SIGBUS) == 1
    }
}

/// Returns the bytes of the thread's alternate stack, if any.
pub fn alternate_stack() -> Option<usize> {
    let mut now = MaybeUninit::<libc::stack_t>::zeroed();
    // SAFETY: the kernel fills the structure; null changes nothing.
    let now = unsafe {
        libc::sigaltstack(ptr::null(), now.as_mut_ptr());
        now.assume_init()
    };
    (now.ss_flags & libc::SS_DISABLE == 0 && !now.ss_sp.is_null()).then_some(now.ss_size)
}

#[cfg(feature = "faults")]
pub(in crate::internal::sys) fn kill_self() -> ! {
    loop {
        // SAFETY: the call takes numbers.
        unsafe { libc::kill(libc::getpid(), libc::SIGKILL) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn waiting() -> u64 {
        let text = std::fs::read_to_string("/proc/thread-self/status").unwrap();
        let line = text.lines().find_map(|line| line.strip_prefix("SigBlk:")).unwrap();
        u64::from_str_radix(line.trim(), 16).unwrap()
    }

    #[test]
    fn a_thread_that_is_started_meanwhile_begins_with_all_signals_waiting() {
        let before = waiting();
        let blocked = Blocked::new();
        let thread = std::thread::spawn(waiting);
        drop(blocked);
        assert_eq!(waiting(), before);
        let numbers = [libc::SIGTERM, libc::SIGUSR1, libc::SIGPROF, libc::SIGRTMAX()];
        let started = thread.join().unwrap();
        for number in numbers {
            assert!(started >> (number - 1) & 1 == 1, "{number} of {started:x}");
        }
    }
}
