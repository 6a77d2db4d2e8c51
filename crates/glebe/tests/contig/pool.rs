//! The 2 MiB pool and its record, read as an outsider would.

use std::fs;
use std::path::Path;

use glebe::contig::{Contig, Source};
use glebe::sys::lock_file::LockFile;
use glebe::units::Bytes;

const POOL: &str = "/sys/kernel/mm/hugepages/hugepages-2048kB";
const LOCK: &str = "/run/lock/glebe-hugetlb.lock";
const RECORD: &str = "/run/lock/glebe-hugetlb.claims";
const SIZE: u64 = 2 << 20;
const ATTEMPTS: usize = 8;

/// A machine whose pool this process may change and whose frames it may see.
pub struct Machine(());

impl Machine {
    /// `None`, and a printed reason, where the pool cannot be changed.
    pub fn privileged() -> Option<Self> {
        match Contig::options().source(Source::HUGETLB_2M).map(Bytes::mib(2)) {
            Ok(memory) if memory.runs()[0].pfn.is_some() && fs::exists(LOCK).unwrap() => {
                Some(Self(()))
            }
            Ok(_) => {
                println!("skipped: frames are hidden, or the lock is not at {LOCK}");
                None
            }
            Err(error) => {
                println!("skipped: {error}");
                None
            }
        }
    }

    /// Pages recorded for a process.
    pub fn claimed_by(&self, pid: u32) -> u64 {
        let _lock = LockFile::acquire(Path::new(LOCK)).unwrap();
        record().into_iter().filter(|(of, _)| *of == u64::from(pid)).map(|(_, pages)| pages).sum()
    }

    /// Asserts that `body` leaves the pages that no record claims.
    pub fn base_is_kept(&self, body: impl FnMut()) {
        self.try_base_is_kept(body).unwrap();
    }

    /// As [`Machine::base_is_kept`], or what was seen instead.
    pub fn try_base_is_kept(&self, mut body: impl FnMut()) -> Result<(), String> {
        let mut seen = Vec::new();
        for _ in 0..ATTEMPTS {
            let before = base();
            body();
            let after = base();
            if before == after {
                return Ok(());
            }
            println!("base {before} before, {after} after");
            seen.push((before, after));
        }
        Err(format!("pages of the pool less those claimed, before and after: {seen:?}"))
    }
}

fn base() -> i128 {
    let _lock = LockFile::acquire(Path::new(LOCK)).unwrap();
    // Surplus pages come and go with who uses them.
    let [all, surplus] = ["nr_hugepages", "surplus_hugepages"].map(|name| -> i128 {
        fs::read_to_string(Path::new(POOL).join(name)).unwrap().trim().parse().unwrap()
    });
    all - surplus - record().into_iter().map(|(_, pages)| i128::from(pages)).sum::<i128>()
}

/// Process and pages of every claim to 2 MiB pages.
fn record() -> Vec<(u64, u64)> {
    let text = fs::read_to_string(RECORD).unwrap_or_default();
    text.lines()
        .skip(1)
        .filter_map(|line| {
            let fields: Vec<u64> = line.split(' ').map_while(|field| field.parse().ok()).collect();
            (fields.len() >= 5 && fields[3] == SIZE).then(|| (fields[0], fields[4]))
        })
        .collect()
}
