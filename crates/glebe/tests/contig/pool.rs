//! Reads the counts of the 2 MiB hugetlb pool from sysfs.

use std::fs;
use std::path::Path;

use glebe::contig::{Contig, PoolLock, Source};
use glebe::units::Bytes;

const POOL: &str = "/sys/kernel/mm/hugepages/hugepages-2048kB";
const ATTEMPTS: usize = 8;

/// Proof that this process may change the pool and see frames.
pub struct Machine(());

impl Machine {
    pub fn privileged() -> Option<Self> {
        if fs::OpenOptions::new().write(true).open(Path::new(POOL).join("nr_hugepages")).is_err() {
            println!("skipped: the 2 MiB pool cannot be changed");
            return None;
        }
        match Contig::options().source(Source::HUGETLB_2M).build(Bytes::mib(2)) {
            Ok(memory) if memory.runs()[0].pfn.is_some() => Some(Self(())),
            Ok(_) => {
                println!("skipped: frames are hidden");
                None
            }
            Err(error) => {
                println!("skipped: {error}");
                None
            }
        }
    }

    pub fn base_is_kept(&self, body: impl FnMut()) {
        self.try_base_is_kept(body).unwrap();
    }

    /// Runs `body`, at most `ATTEMPTS` times, until it leaves the result of [`base`] unchanged.
    pub fn try_base_is_kept(&self, mut body: impl FnMut()) -> Result<(), String> {
        let mut seen = Vec::new();
        for _ in 0..ATTEMPTS {
            let before = base();
            body();
            let after = base();
            if before == after {
                return Ok(());
            }
            println!("base {before:?} before, {after:?} after");
            seen.push((before, after));
        }
        Err(format!("persistent pages, and the limit on surplus, before and after: {seen:?}"))
    }
}

/// Returns persistent pages and the surplus limit. Under the lock, no glebe process has changed
/// either temporarily.
fn base() -> (i128, i128) {
    let _lock = PoolLock::acquire().unwrap();
    let names = ["nr_hugepages", "surplus_hugepages", "nr_overcommit_hugepages"];
    let [all, surplus, limit] = names.map(|name| -> i128 {
        fs::read_to_string(Path::new(POOL).join(name)).unwrap().trim().parse().unwrap()
    });
    (all - surplus, limit)
}
