//! Counts what a process holds: mappings, descriptors, threads, huge pages.
//!
//! # Safety
//! Options of the allocator are integers.
#![allow(unsafe_code)]

use std::fs::{self, File};
use std::io::Read;
use std::sync::{Barrier, OnceLock};
use std::thread;
use std::time::Duration;

use glebe::contig::PoolLock;
use glebe_testing::time::wait_until;

/// How long threads that have been told to end may take to do so, on a busy machine.
const PATIENCE: Duration = Duration::from_secs(30);
/// More threads than a life has at once. The C library keeps the stack of a thread that ended.
const STACKS: usize = 6;

/// Counts the things held at one moment. The heap is left out, and `steady` keeps all of malloc
/// there.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Footing {
    mapped_bytes: u64,
    mappings: usize,
    descriptors: usize,
    threads: usize,
    /// KiB of hugetlb pages.
    hugetlb: u64,
}

/// Makes now what would be made in the midst of a walk and kept: the pool's lock file, and stacks
/// for later threads. Keeps allocations in one heap and out of mappings of their own.
pub fn steady() {
    // SAFETY: takes integers; both are options of the allocator.
    unsafe {
        libc::mallopt(libc::M_ARENA_MAX, 1);
        libc::mallopt(libc::M_MMAP_MAX, 0);
    }
    // The first lock makes what is kept for all later ones.
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

/// Returns how many threads ran at the first call. A test calls it before any life: a thread of the
/// library that is about to end would be taken for one that stays.
pub fn threads_at_first() -> usize {
    static FIRST: OnceLock<usize> = OnceLock::new();
    *FIRST.get_or_init(running)
}

impl Footing {
    /// Waits until at most so many threads run, and counts.
    pub fn of_threads(threads: usize) -> Self {
        let now = Self::now();
        if now.threads <= threads {
            return now;
        }
        wait_until("threads end that were told to", PATIENCE, || running() <= threads);
        Self::now()
    }

    fn now() -> Self {
        // First: a thread that has ended by now maps nothing any more.
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

    /// Whether the same is held now, once threads that are about to end have ended.
    pub fn is_kept(&self) -> bool {
        Self::of_threads(self.threads) == *self
    }

    /// As [`Footing::is_kept`], or what is held instead.
    pub fn check(&self, what: &str) -> Result<(), String> {
        let now = Self::of_threads(self.threads);
        if now == *self {
            return Ok(());
        }
        Err(format!("{what}\nbefore {self:?}\nafter {now:?}"))
    }
}

/// Threads of this process.
pub fn running() -> usize {
    number(&read("/proc/self/status"), "Threads:") as usize
}

/// The text of a file of the kernel's, which is long enough for most in one read.
fn read(path: &str) -> String {
    let mut text = String::with_capacity(16 << 10);
    File::open(path).unwrap().read_to_string(&mut text).unwrap();
    text
}

/// The number in the line that begins so.
fn number(status: &str, name: &str) -> u64 {
    let line = status.lines().find_map(|line| line.strip_prefix(name)).unwrap();
    line.split_whitespace().next().unwrap().parse().unwrap()
}
