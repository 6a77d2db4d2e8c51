//! Free pages in the pool that are somebody else's: who gives back too much takes these.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::process::{Child, Command};

use glebe::contig::{Contig, Source};
use glebe::sys::lock_file::{read_private, replace_private, LockFile};
use glebe::units::Bytes;

const POOL: &str = "/sys/kernel/mm/hugepages/hugepages-2048kB/nr_hugepages";
const LOCK: &str = "/run/lock/glebe-hugetlb.lock";
const RECORD: &str = "/run/lock/glebe-hugetlb.claims";
const SIZE: u64 = 2 << 20;

/// Pages in the record of claims under a child's name: they go with it, even if this process is
/// killed.
pub struct ForeignPages(Child);

impl ForeignPages {
    /// Adds up to `pages`.
    pub fn add(pages: u64) -> Self {
        let child = Command::new("sleep").arg("900").spawn().unwrap();
        let lock = LockFile::acquire(Path::new(LOCK)).unwrap();
        let has = || fs::read_to_string(POOL).unwrap().trim().parse::<u64>().unwrap();
        let before = has();
        let stat = fs::read_to_string(format!("/proc/{}/stat", child.id())).unwrap();
        // The fields behind the name begin with the third.
        let start = stat.rsplit_once(") ").unwrap().1.split(' ').nth(22 - 3).unwrap();
        let namespace = fs::metadata("/proc/self/ns/pid").unwrap().ino();
        let text = String::from_utf8(read_private(Path::new(RECORD), 1 << 20).unwrap()).unwrap();
        let id = child.id();
        // Unsettled: the next holder of the lock sees how many came.
        let line = format!("{id} {start} {namespace} {SIZE} 0 {before} {pages}\n");
        replace_private(Path::new(RECORD), (text + &line).as_bytes()).unwrap();
        fs::write(POOL, (before + pages).to_string()).unwrap();
        drop(lock);
        settle();
        Self(child)
    }
}

impl Drop for ForeignPages {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
        settle();
    }
}

/// Takes the lock as every reserve does: what is unsettled is settled, what an ended process had
/// is given back.
fn settle() {
    let _ = Contig::options().source(Source::HUGETLB_2M).map(Bytes::mib(2));
}
