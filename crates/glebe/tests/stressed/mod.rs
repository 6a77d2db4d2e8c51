//! What stress tests share: numbers by chance, contents that say whose they are, forked children
//! that end in time, and signals.
#![allow(unsafe_code)] // Safety: fork, waitpid, _exit and signals; each block says why.

use std::panic::{catch_unwind, AssertUnwindSafe};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{Scope, ScopedJoinHandle};
use std::time::{Duration, Instant};

use glebe::sys::page_size;
use glebe_testing::time::slowed;

pub mod signals;

/// Bytes of a word.
const WORD: usize = size_of::<u64>();
/// How long a child may take, on a machine that is busy with much else.
const PATIENCE: Duration = Duration::from_secs(60);

/// Stops the others when the scope ends, by panic too.
pub struct Stop<'a>(pub &'a AtomicBool);

impl Drop for Stop<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// Starts a thread; if it panics it tells the others to stop.
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

/// A page's worth of bytes.
pub fn page_buffer() -> Vec<u8> {
    vec![0; page_size().bytes().as_usize()]
}

/// The finalizer of SplitMix64: a bijection that spreads every bit.
pub fn mix(mut word: u64) -> u64 {
    word = word.wrapping_add(0x9e37_79b9_7f4a_7c15);
    word = (word ^ word >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    word = (word ^ word >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
    word ^ word >> 31
}

/// A sequence of numbers by [`mix`].
pub struct Random(pub u64);

impl Random {
    /// A number below `end`; 0 if that is 0.
    pub fn below(&mut self, end: u64) -> u64 {
        self.0 = self.0.wrapping_add(1);
        ((u128::from(mix(self.0)) * u128::from(end)) >> 64) as u64
    }

    /// Sleeps for less than `most`.
    pub fn rest(&mut self, most: Duration) {
        std::thread::sleep(Duration::from_micros(self.below(most.as_micros() as u64)));
    }
}

/// Fills `bytes` with the version `version` of what `name` names: any byte of another name, of
/// another version or of none is seen. No word is 0 but by chance.
pub fn fill(bytes: &mut [u8], name: u64, version: u64) {
    for (at, word) in bytes.chunks_exact_mut(WORD).enumerate() {
        word.copy_from_slice(&word_of(name, version, at).to_ne_bytes());
    }
}

/// The version of `name` that `bytes` hold; `None` if they are not wholly one.
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

/// How a child ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum End {
    /// It returned this; 101 if it panicked.
    Exit(u8),
    /// By this signal; SIGKILL if it did not end in time.
    Signal(i32),
}

/// Runs `body` in a forked child, whose exit status is what it returns. The child has one thread
/// and a copy of every lock as it was: `body` may take none that another thread may have held.
pub fn in_child(body: impl FnOnce() -> u8) -> End {
    // SAFETY: the child only runs `body` and ends at once, without a destructor of the parent's.
    let pid = unsafe { libc::fork() };
    assert!(pid >= 0, "{}", std::io::Error::last_os_error());
    if pid == 0 {
        signals::in_child();
        let status = catch_unwind(AssertUnwindSafe(body)).unwrap_or(101);
        // SAFETY: as above.
        unsafe { libc::_exit(libc::c_int::from(status)) }
    }
    let begin = Instant::now();
    loop {
        let mut status = 0;
        // SAFETY: waits for the child made above; `status` is this frame's.
        let waited = unsafe { libc::waitpid(pid, &raw mut status, libc::WNOHANG) };
        if waited == pid && libc::WIFEXITED(status) {
            return End::Exit(libc::WEXITSTATUS(status) as u8);
        }
        if waited == pid {
            return End::Signal(libc::WTERMSIG(status));
        }
        if begin.elapsed() > slowed(PATIENCE) {
            // SAFETY: takes no pointer; the child is not waited for yet, so the number is its own.
            unsafe { libc::kill(pid, libc::SIGKILL) };
        }
        std::thread::sleep(Duration::from_millis(1));
    }
}
