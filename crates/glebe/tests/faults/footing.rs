//! [`Footing`] counts what a process holds: mappings, descriptors, threads, huge pages.
//!
//! # Safety
//! The only unsafe calls pass integers to the C library's allocator.
#![allow(unsafe_code)]

use std::fs::{self, File};
use std::io::Read;
use std::sync::{Barrier, OnceLock};
use std::thread;
use std::time::Duration;

use glebe::contig::PoolLock;
use glebe_testing::time::wait_until;

const PATIENCE: Duration = Duration::from_secs(30);
/// Threads of [`steady`], more than a test body has at once. The C library caches their stacks.
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

/// Makes in advance what the first test body would make and keep: the pool's lock file, and stacks
/// for threads. Confines malloc to one heap.
pub fn steady() {
    // SAFETY: `mallopt` takes integers, and both options are known.
    unsafe {
        libc::mallopt(libc::M_ARENA_MAX, 1);
        libc::mallopt(libc::M_MMAP_MAX, 0);
    }
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

/// Returns the number of threads at the first call. The first call must precede all test bodies,
/// because ending threads of a test body would count.
pub fn threads_at_first() -> usize {
    static FIRST: OnceLock<usize> = OnceLock::new();
    *FIRST.get_or_init(running)
}

impl Footing {
    pub fn of_threads(threads: usize) -> Self {
        let now = Self::now();
        if now.threads <= threads {
            return now;
        }
        wait_until("threads end that were told to", PATIENCE, || running() <= threads);
        Self::now()
    }

    fn now() -> Self {
        // Reads the thread count first. A thread that the count lacks has already unmapped its
        // memory.
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

    pub fn is_kept(&self) -> bool {
        Self::of_threads(self.threads) == *self
    }

    pub fn check(&self, what: &str) -> Result<(), String> {
        let now = Self::of_threads(self.threads);
        if now == *self {
            return Ok(());
        }
        Err(format!("{what}\nbefore {self:?}\nafter {now:?}"))
    }
}

pub fn running() -> usize {
    number(&read("/proc/self/status"), "Threads:") as usize
}

fn read(path: &str) -> String {
    let mut text = String::with_capacity(16 << 10);
    File::open(path).unwrap().read_to_string(&mut text).unwrap();
    text
}

fn number(status: &str, name: &str) -> u64 {
    let line = status.lines().find_map(|line| line.strip_prefix(name)).unwrap();
    line.split_whitespace().next().unwrap().parse().unwrap()
}
