//! What a process holds: mappings, descriptors, threads, huge pages.

use std::fs;
use std::time::{Duration, Instant};

/// How long threads that have been told to end may take to do so, on a busy machine.
const PATIENCE: Duration = Duration::from_secs(30);

/// What is held at one moment. The heap is left out, and `steady_heap` keeps all of malloc there.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Footing {
    mapped_bytes: u64,
    mappings: usize,
    descriptors: usize,
    threads: usize,
    /// KiB of hugetlb pages.
    hugetlb: u64,
}

/// Keeps allocations in one heap and out of mappings of their own, which come and go.
pub fn steady_heap() {
    // SAFETY: takes integers; both are options of the allocator.
    unsafe {
        libc::mallopt(libc::M_ARENA_MAX, 1);
        libc::mallopt(libc::M_MMAP_MAX, 0);
    }
}

impl Footing {
    /// What is held once no more than so many threads run.
    pub fn of_threads(threads: usize) -> Self {
        let begin = Instant::now();
        while running() > threads {
            assert!(begin.elapsed() < PATIENCE, "a thread is left");
            std::thread::yield_now();
        }
        Self::now()
    }

    fn now() -> Self {
        let maps = fs::read_to_string("/proc/self/maps").unwrap();
        let ours = maps.lines().filter(|line| !line.ends_with("[heap]"));
        let bytes = |line: &str| {
            let (from, to) = line.split(' ').next()?.split_once('-')?;
            let number = |hex| u64::from_str_radix(hex, 16).ok();
            number(to)?.checked_sub(number(from)?)
        };
        let count = |dir| fs::read_dir(dir).unwrap().count();
        Self {
            mapped_bytes: ours.clone().map(|line| bytes(line).unwrap()).sum(),
            mappings: ours.count(),
            descriptors: count("/proc/self/fd"),
            threads: running(),
            hugetlb: hugetlb(),
        }
    }

    /// Whether the same is held now, once threads that are about to end have ended.
    pub fn is_kept(&self) -> bool {
        Self::of_threads(self.threads) == *self
    }

    /// As [`Footing::is_kept`], or what is held instead.
    pub fn check(&self, what: &str) -> Result<(), String> {
        let kept = self.is_kept();
        kept.then_some(())
            .ok_or_else(|| format!("{what}\nbefore {self:?}\nafter {:?}", Self::now()))
    }
}

/// Threads of this process.
pub fn running() -> usize {
    fs::read_dir("/proc/self/task").unwrap().count()
}

fn hugetlb() -> u64 {
    let text = fs::read_to_string("/proc/self/status").unwrap();
    let line = text.lines().find_map(|line| line.strip_prefix("HugetlbPages:"));
    line.unwrap().trim().strip_suffix(" kB").unwrap().trim().parse().unwrap()
}
