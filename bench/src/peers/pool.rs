//! The hugetlb pool's overcommit limit, raised and put back by differences.
//!
//! [`Overcommit`] adds what a block needs to `nr_overcommit_hugepages` and takes the same away when
//! dropped, each time under the project's lock file, so that owners that come and go in any order
//! end where they began. A process that is killed outright leaves the limit raised by what its
//! blocks held; the limit alone takes no memory.
//!
//! Unit: hugepages. Lock: an exclusive flock(2) on [`LOCK_NAME`], held for one read
//! and one write.
//! Source: Documentation/admin-guide/mm/hugetlbpage.rst.
//!
//! # Safety
//! One call, on a descriptor that its file keeps open.
#![allow(unsafe_code)]

use std::env;
use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use glebe::error::OsError;
use glebe::units::Bytes;

use super::PeerError;

const LOCK_NAME: &str = "glebe-hugetlb.lock";

/// The limit raised by a number of hugepages, for as long as this lives.
#[derive(Debug)]
pub(super) struct Overcommit {
    limit: PathBuf,
    raised: u64,
    idle_before: u64,
}

/// The project's lock on changes of the hugetlb pool, held until dropped.
struct PoolLock {
    _file: File,
}

/// The size of hugepage that one page-table leaf maps, as far as the machine has a pool of it.
pub(super) fn hugepage_bytes() -> Result<Bytes, PeerError> {
    let path = Path::new("/sys/kernel/mm/transparent_hugepage/hpage_pmd_size");
    let huge = read(path).map_err(|e| PeerError::NoHugepages(e.to_string()))?;
    if huge.is_power_of_two() {
        Ok(Bytes::new(huge))
    } else {
        Err(PeerError::NoHugepages(format!("{} says {huge}", path.display())))
    }
}

impl Overcommit {
    /// Raises the limit of the pool of `huge`-byte pages by `pages`.
    pub(super) fn raise(huge: Bytes, pages: u64) -> Result<Self, PeerError> {
        let pool = format!("/sys/kernel/mm/hugepages/hugepages-{}kB", huge.get() >> 10);
        let pool = PathBuf::from(pool);
        if !pool.is_dir() {
            return Err(PeerError::NoHugepages(format!("no {}", pool.display())));
        }
        Self::raise_in(&pool, pages)
    }

    /// The same for the pool with its files in directory `pool`.
    fn raise_in(pool: &Path, pages: u64) -> Result<Self, PeerError> {
        let limit = pool.join("nr_overcommit_hugepages");
        let _lock = lock()?;
        let idle =
            read(&pool.join("free_hugepages"))?.saturating_sub(read(&pool.join("resv_hugepages"))?);
        write(&limit, read(&limit)?.saturating_add(pages))?;
        Ok(Self { limit, raised: pages, idle_before: idle.min(pages) })
    }

    /// Hugepages, of those needed, that lay idle in the pool.
    pub(super) fn idle_before(&self) -> u64 {
        self.idle_before
    }
}

impl Drop for Overcommit {
    fn drop(&mut self) {
        let lowered = lock()
            .and_then(|_lock| write(&self.limit, read(&self.limit)?.saturating_sub(self.raised)));
        if let Err(error) = lowered {
            eprintln!(
                "glebe-bench: {} stays raised by {}: {error}",
                self.limit.display(),
                self.raised
            );
        }
    }
}

/// Takes the lock that every change of the pool is made under: the one place that knows how.
fn lock() -> Result<PoolLock, OsError> {
    let (path, file) = open_lock()?;
    loop {
        // SAFETY: the descriptor is open for as long as `file` lives; flock takes no pointer.
        if unsafe { libc::flock(file.as_raw_fd(), libc::LOCK_EX) } == 0 {
            return Ok(PoolLock { _file: file });
        }
        let error = io::Error::last_os_error();
        if error.kind() != io::ErrorKind::Interrupted {
            return Err(OsError::new("flock", path.display().to_string(), error));
        }
    }
}

/// Opens the file that glebe's processes agree on: the first of its places that can hold one.
fn open_lock() -> Result<(PathBuf, File), OsError> {
    let places = [Path::new("/run/lock"), &env::temp_dir()].map(|dir| dir.join(LOCK_NAME));
    let mut refused = None;
    for path in places {
        let opened = OpenOptions::new()
            .write(true)
            .create(true)
            .truncate(false)
            .mode(0o600)
            .custom_flags(libc::O_NOFOLLOW | libc::O_NONBLOCK)
            .open(&path);
        match opened {
            Ok(file) => return Ok((path, file)),
            Err(e) => refused = Some(OsError::new("open", path.display().to_string(), e)),
        }
    }
    Err(refused.unwrap_or_else(|| OsError::new("open", LOCK_NAME, io::ErrorKind::NotFound.into())))
}

fn read(path: &Path) -> Result<u64, OsError> {
    let failed = |error| OsError::new("read", path.display().to_string(), error);
    let text = fs::read_to_string(path).map_err(failed)?;
    text.trim().parse().map_err(|e| failed(io::Error::new(io::ErrorKind::InvalidData, e)))
}

/// Opens the file anew each time: a second write through one descriptor starts past the first and
/// is ignored.
fn write(path: &Path, value: u64) -> Result<(), OsError> {
    fs::write(path, value.to_string())
        .map_err(|e| OsError::new("write", path.display().to_string(), e))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::scratch::Scratch;

    #[test]
    fn owners_that_come_and_go_in_any_order_end_where_they_began() {
        let dir = Scratch::new("pool");
        for (name, value) in
            [("nr_overcommit_hugepages", 7), ("free_hugepages", 6), ("resv_hugepages", 2)]
        {
            write(&dir.path().join(name), value).unwrap();
        }
        let limit = || read(&dir.path().join("nr_overcommit_hugepages")).unwrap();
        let one = match Overcommit::raise_in(dir.path(), 3) {
            Err(PeerError::Os(e)) if e.subject().ends_with(LOCK_NAME) => {
                println!("skipped: {e}");
                return;
            }
            one => one.unwrap(),
        };
        assert_eq!((limit(), one.idle_before()), (10, 3));
        let two = Overcommit::raise_in(dir.path(), 5).unwrap();
        assert_eq!((limit(), two.idle_before()), (15, 4));
        drop(one);
        assert_eq!(limit(), 12);
        drop(two);
        assert_eq!(limit(), 7);
    }
}
