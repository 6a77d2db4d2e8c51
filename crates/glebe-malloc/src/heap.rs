//! The one heap of the process: whether there is work at an entry, and that work.

use std::sync::atomic::{AtomicU32, Ordering};

use crate::options::Settings;
use crate::stats::Stats;

/// Work for the next entry of an allocating call.
static WORK: AtomicU32 = AtomicU32::new(1);

/// Whether an entry has work to do.
#[inline(always)]
pub fn todo() -> bool {
    WORK.load(Ordering::Relaxed) != 0
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
