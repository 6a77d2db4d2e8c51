//! The hugetlb pool's overcommit limit, raised and put back by differences.
//!
//! [`Overcommit`] adds what a block needs to `nr_overcommit_hugepages` and takes the same away when
//! dropped, each time under the lock of the pools, so that owners that come and go in any order end
//! where they began. What a process had raised it by that was killed outright is taken off by the
//! next that raises or lowers it ([`raises`]).
//!
//! Unit: hugepages. Lock: that of [`with_pools_locked`], held for one read and one write.
//! Source: Documentation/admin-guide/mm/hugetlbpage.rst.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use glebe::contig::with_pools_locked;
use glebe::error::OsError;
use glebe::sys::process::Process;
use glebe::units::Bytes;

use super::raises::{self, Raise};
use super::PeerError;

/// The limit raised by a number of hugepages, for as long as this lives.
#[derive(Debug)]
pub(super) struct Overcommit {
    raise: Raise,
    idle_before: u64,
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
        let [free, promised] = ["free_hugepages", "resv_hugepages"].map(|name| pool.join(name));
        let raise = Raise { process: Process::this()?, pages, limit };
        let idle = with_pools_locked(|| {
            let idle = read(&free)?.saturating_sub(read(&promised)?);
            let mut raises = without_ended()?;
            write(&raise.limit, read(&raise.limit)?.saturating_add(pages))?;
            raises.push(raise.clone());
            raises::write(&raises).inspect_err(|_| {
                let _ = lower(&raise);
            })?;
            Ok::<_, OsError>(idle)
        })??;
        Ok(Self { raise, idle_before: idle.min(pages) })
    }

    /// Hugepages, of those needed, that lay idle in the pool.
    pub(super) fn idle_before(&self) -> u64 {
        self.idle_before
    }
}

impl Drop for Overcommit {
    fn drop(&mut self) {
        // Also gives back what others could not, as long as these pages were in use.
        let lowered = with_pools_locked(|| {
            let mut raises = without_ended()?;
            if let Some(at) = raises.iter().position(|raise| *raise == self.raise) {
                raises.swap_remove(at);
            }
            raises::write(&raises)?;
            lower(&self.raise)
        });
        if let Err(error) = lowered.and_then(|lowered| lowered) {
            let Raise { limit, pages, .. } = &self.raise;
            eprintln!("glebe-bench: {} stays raised by {pages}: {error}", limit.display());
        }
    }
}

fn lower(raise: &Raise) -> Result<(), OsError> {
    write(&raise.limit, read(&raise.limit)?.saturating_sub(raise.pages))
}

/// Takes off what processes that have ended had raised limits by; what the others did.
fn without_ended() -> Result<Vec<Raise>, OsError> {
    let (ended, alive): (Vec<_>, Vec<_>) =
        raises::read()?.into_iter().partition(|raise| raise.process.has_ended());
    if !ended.is_empty() {
        raises::write(&alive)?;
        // A limit that cannot be read is a test's, which has gone.
        ended.iter().for_each(|raise| drop(lower(raise)));
    }
    Ok(alive)
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
            Err(PeerError::Os(e)) if e.subject().ends_with(".lock") => {
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

    #[test]
    fn what_a_process_that_was_killed_had_raised_is_taken_off_by_the_next() {
        let dir = Scratch::new("ended");
        let path = dir.path().join("nr_overcommit_hugepages");
        for (name, value) in
            [("nr_overcommit_hugepages", 12), ("free_hugepages", 0), ("resv_hugepages", 0)]
        {
            write(&dir.path().join(name), value).unwrap();
        }
        let ended = Raise { process: Process::this().unwrap().none(), pages: 5, limit: path };
        let recorded = with_pools_locked(|| {
            let mut raises = raises::read()?;
            raises.push(ended.clone());
            raises::write(&raises)
        });
        if let Err(why) = recorded.and_then(|recorded| recorded) {
            println!("skipped: {why}");
            return;
        }
        // Any other may be the next, of this machine's limit too.
        let next = Overcommit::raise_in(dir.path(), 3).unwrap();
        assert_eq!(read(&ended.limit).unwrap(), 10);
        drop(next);
        assert_eq!(read(&ended.limit).unwrap(), 7);
        let left = with_pools_locked(|| raises::read().unwrap()).unwrap();
        assert!(left.iter().all(|raise| raise.limit != ended.limit), "{left:?}");
    }
}
