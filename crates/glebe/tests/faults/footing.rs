//! [`Footing`] counts what a process holds: mappings, descriptors, threads, huge pages.
//!
//! # Safety
//! The allocator's options are integers.
#![allow(unsafe_code)]

use std::fs::{self, File};
use std::io::Read;
use std::sync::{Barrier, OnceLock};
use std::thread;
use std::time::Duration;

use glebe::contig::PoolLock;
use glebe_testing::time::wait_until;

/// Time for threads to end on a busy machine.
const PATIENCE: Duration = Duration::from_secs(30);
/// More threads than a life has at once. The C library caches stacks of ended threads.
const STACKS: usize = 6;

/// The resources of a process at one moment, without the heap. After [`steady`], malloc uses only
/// the heap.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Footing {
    mapped_bytes: u64,
    mappings: usize,
    descriptors: usize,
    threads: usize,
    /// Hugetlb pages in KiB.
    hugetlb: u64,
}

/// Makes in advance the things that a walk would make and keep: the pool's lock file, and stacks
/// for threads. Confines malloc to one heap.
pub fn steady() {
    // SAFETY: takes integers; both are options of the allocator.
    unsafe {
        libc::mallopt(libc::M_ARENA_MAX, 1);
        libc::mallopt(libc::M_MMAP_MAX, 0);
    }
    // The first lock makes things that later locks reuse.
    let _ = PoolLock::within(Duration::ZERO);
    let threads = threads_at_first();
    let all_run = Barrier::new(STACKS);
    thread::scope(|scope| {
        for _ in 0..STACKS {
            scope.spawn(|| all_run.wait());
        }
    });
    Footing::of_threads(threads);
}

/// Returns the number of threads at the first call, which must precede all lives: an ending thread
/// of the library would count as permanent.
pub fn threads_at_first() -> usize {
    static FIRST: OnceLock<usize> = OnceLock::new();
    *FIRST.get_or_init(running)
}

impl Footing {
    /// Waits until at most `threads` threads run, then counts.
    pub fn of_threads(threads: usize) -> Self {
        let now = Self::now();
        if now.threads <= threads {
            return now;
        }
        wait_until("threads end that were told to", PATIENCE, || running() <= threads);
        Self::now()
    }

    fn now() -> Self {
        // Read first: threads that have ended by then map nothing any more.
        let status = read("/proc/self/status");
        let maps = read("/proc/self/maps");
        let ours = maps.lines().filter(|line| !line.ends_with("[heap]"));
        let bytes = |line: &str| {
            let (from, to) = line.split(' ').next()?.split_once('-')?;
            let number = |hex| u64::from_str_radix(hex, 16).ok();
            number(to)?.checked_sub(number(from)?)
        };
        Self {
            mapped_bytes: ours.clone().map(|line| bytes(line).unwrap()).sum(),
            mappings: ours.count(),
            descriptors: fs::read_dir("/proc/self/fd").unwrap().count(),
            threads: number(&status, "Threads:") as usize,
            hugetlb: number(&status, "HugetlbPages:"),
        }
    }

    /// Returns true if the process holds the same now, after threads have ended.
    pub fn is_kept(&self) -> bool {
        Self::of_threads(self.threads) == *self
    }

    /// Compares like [`Footing::is_kept`]. Returns a difference as an error.
    pub fn check(&self, what: &str) -> Result<(), String> {
        let now = Self::of_threads(self.threads);
        if now == *self {
            return Ok(());
        }
        Err(format!("{what}\nbefore {self:?}\nafter {now:?}"))
    }
}

/// Returns the number of running threads.
pub fn running() -> usize {
    number(&read("/proc/self/status"), "Threads:") as usize
}

/// Reads a kernel file, usually in one read.
fn read(path: &str) -> String {
    let mut text = String::with_capacity(16 << 10);
    File::open(path).unwrap().read_to_string(&mut text).unwrap();
    text
}

fn number(status: &str, name: &str) -> u64 {
    let line = status.lines().find_map(|line| line.strip_prefix(name)).unwrap();
    line.split_whitespace().next().unwrap().parse().unwrap()
}
