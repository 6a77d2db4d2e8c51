//! [`Blocked`] blocks a thread's signals; `alternate_stack` measures the stack that handlers run
//! on. Source: pthread_sigmask(3), sigaltstack(2), kill(2).
//!
//! # Safety
//! The calls fill and read locals.
#![allow(unsafe_code)]

use std::marker::PhantomData;
use std::mem::MaybeUninit;
use std::ptr;

/// Blocks the signals of the calling thread while it lives, except SIGKILL, SIGSTOP and the C
/// library's own, by which setuid(2) reaches every thread. A thread started meanwhile begins with
/// them blocked and keeps them so. Allocates nothing.
pub struct Blocked {
    before: libc::sigset_t,
    /// The value may not leave its thread.
    _thread: PhantomData<*const ()>,
}

impl Blocked {
    /// Blocks the signals from now on.
    #[must_use]
    pub fn new() -> Self {
        let (mut all, mut before) = (MaybeUninit::uninit(), MaybeUninit::zeroed());
        // SAFETY: both sets are locals; the calls fail for bad arguments only.
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

/// Returns true if this thread blocks SIGBUS: a fault then kills the process.
pub fn is_sigbus_blocked() -> bool {
    let mut now = MaybeUninit::zeroed();
    // SAFETY: the set is a local; null changes nothing.
    unsafe {
        libc::pthread_sigmask(libc::SIG_BLOCK, ptr::null(), now.as_mut_ptr());
        libc::sigismember(now.as_ptr(), libc::SIGBUS) == 1
    }
}

/// Returns the bytes of this thread's alternate signal stack.
pub fn alternate_stack() -> Option<usize> {
    let mut now = MaybeUninit::<libc::stack_t>::zeroed();
    // SAFETY: the kernel fills the structure; null changes nothing.
    let now = unsafe {
        libc::sigaltstack(ptr::null(), now.as_mut_ptr());
        now.assume_init()
    };
    (now.ss_flags & libc::SS_DISABLE == 0 && !now.ss_sp.is_null()).then_some(now.ss_size)
}

/// Kills this process as if from outside: no more of its code runs.
#[cfg(feature = "faults")]
pub(in crate::internal::sys) fn kill_self() -> ! {
    loop {
        // SAFETY: takes numbers.
        unsafe { libc::kill(libc::getpid(), libc::SIGKILL) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns the signals that this thread blocks, from the kernel.
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
