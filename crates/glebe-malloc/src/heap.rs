//! The one heap of the process: whether there is work at an entry, and that work.

use std::sync::atomic::{AtomicU32, Ordering};

use crate::stats::Stats;

/// Work for the next entry of an allocating call.
static WORK: AtomicU32 = AtomicU32::new(1);

/// How the heap is to be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Settings {
    /// Whether there may be a thread that marks and gives back.
    pub thread: bool,
    /// Whether to ask for huge pages.
    pub huge: bool,
    /// Whether there is a page layer; no leaves all to mimalloc.
    pub pages: bool,
    /// How long memory stays free before it is marked.
    pub age: std::time::Duration,
    /// How much room is to be left below a limit; by itself a part of the limit.
    pub margin: Option<glebe::Bytes>,
}

impl Default for Settings {
    fn default() -> Self {
        let age = std::time::Duration::from_millis(100);
        Self { thread: true, huge: true, pages: true, age, margin: None }
    }
}

/// Whether an entry has work to do.
#[inline(always)]
pub fn todo() -> u32 {
    WORK.load(Ordering::Relaxed)
}

/// Does it.
pub fn at_entry() {}

/// Starts the heap.
pub fn start(_settings: &Settings) {
    WORK.store(0, Ordering::Relaxed);
}

/// Gives free memory back but for `keep` bytes.
pub fn trim(_keep: usize) -> usize {
    0
}

/// Whether `at` lies in memory of the heap's own.
#[inline(always)]
pub fn owns(_at: usize) -> bool {
    false
}

/// The statistics now.
pub fn stats() -> Stats {
    Stats::default()
}
