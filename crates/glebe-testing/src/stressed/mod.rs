//! Helpers for stress tests: random numbers, contents that identify their owner, forked children,
//! and signals.
#![allow(unsafe_code)] // Safety: fork, waitpid, _exit and signals; each block says why.

use std::panic::{catch_unwind, AssertUnwindSafe};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{Scope, ScopedJoinHandle};
use std::time::{Duration, Instant};

use crate::time::slowed;
use glebe_os::internal::sys::page_size;

pub mod signals;

const WORD: usize = size_of::<u64>();
const PATIENCE: Duration = Duration::from_secs(60);

pub struct Stop<'a>(pub &'a AtomicBool);

impl Drop for Stop<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// Starts a thread that sets `stop` if it panics.
pub fn spawn<'scope, T: Send + 'scope>(
    scope: &'scope Scope<'scope, '_>,
    stop: &'scope AtomicBool,
    body: impl FnOnce() -> T + Send + 'scope,
) -> ScopedJoinHandle<'scope, T> {
    scope.spawn(move || {
        let stop = Stop(stop);
        let done = body();
        std::mem::forget(stop);
        done
    })
}

pub fn page_buffer() -> Vec<u8> {
    vec![0; page_size().bytes().as_usize()]
}

/// A step of SplitMix64: a bijection that spreads every bit.
pub fn mix(mut word: u64) -> u64 {
    word = word.wrapping_add(0x9e37_79b9_7f4a_7c15);
    word = (word ^ word >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    word = (word ^ word >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
    word ^ word >> 31
}

pub struct Random(pub u64);

impl Random {
    /// Returns a number below `end`; 0 if `end` is 0.
    pub fn below(&mut self, end: u64) -> u64 {
        self.0 = self.0.wrapping_add(1);
        ((u128::from(mix(self.0)) * u128::from(end)) >> 64) as u64
    }

    /// Sleeps for less than `most`.
    pub fn rest(&mut self, most: Duration) {
        std::thread::sleep(Duration::from_micros(self.below(most.as_micros() as u64)));
    }
}

/// Fills the whole words of `bytes` with a version of `name`, so that [`version`] detects other
/// bytes. The first word is the version; the others are hashes, so zeros are detected too.
pub fn fill(bytes: &mut [u8], name: u64, version: u64) {
    for (at, word) in bytes.chunks_exact_mut(WORD).enumerate() {
        word.copy_from_slice(&word_of(name, version, at).to_ne_bytes());
    }
}

/// Returns the version of `name`, or `None` unless all whole words belong to this version.
pub fn version(bytes: &[u8], name: u64) -> Option<u64> {
    let version = u64::from_ne_bytes(bytes.get(..WORD)?.try_into().ok()?);
    let mut words = bytes.chunks_exact(WORD).enumerate();
    let is_whole = words.all(|(at, word)| word == word_of(name, version, at).to_ne_bytes());
    is_whole.then_some(version)
}

fn word_of(name: u64, version: u64, at: usize) -> u64 {
    match at {
        0 => version,
        at => {
            mix(mix(name) ^ version).wrapping_add((at as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15))
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ChildEnd {
    /// Exit status; 101 after a panic.
    Exit(u8),
    /// Signal that ended the child; SIGKILL after the time limit.
    Signal(i32),
}

/// Runs `body` in a forked child, which exits with its result. The child has one thread and copies
/// of all locks, so `body` must take no lock that another thread may hold.
pub fn in_child(body: impl FnOnce() -> u8) -> ChildEnd {
    // SAFETY: the child only runs `body` and exits, without destructors of the parent.
    let pid = unsafe { libc::fork() };
    assert!(pid >= 0, "{}", std::io::Error::last_os_error());
    if pid == 0 {
        signals::in_child();
        let status = catch_unwind(AssertUnwindSafe(body)).unwrap_or(101);
        // SAFETY: `_exit` takes no pointers and runs no destructors.
        unsafe { libc::_exit(libc::c_int::from(status)) }
    }
    let begin = Instant::now();
    loop {
        let mut status = 0;
        // SAFETY: `pid` is the child, `status` a local.
        let waited = unsafe { libc::waitpid(pid, &raw mut status, libc::WNOHANG) };
        if waited == pid && libc::WIFEXITED(status) {
            return ChildEnd::Exit(libc::WEXITSTATUS(status) as u8);
        }
        if waited == pid {
            return ChildEnd::Signal(libc::WTERMSIG(status));
        }
        if begin.elapsed() > slowed(PATIENCE) {
            // SAFETY: takes no pointers; `pid` is a child not yet waited for.
            unsafe { libc::kill(pid, libc::SIGKILL) };
        }
        std::thread::sleep(Duration::from_millis(1));
    }
}
