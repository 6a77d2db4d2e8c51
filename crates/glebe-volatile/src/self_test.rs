//! The self-test, run once per process, refuses kernels that can purge a page written after its
//! mark.
//!
//! The test marks pages (`MADV_FREE`), writes every other one again, and makes the kernel reclaim
//! all. Releases before Linux 6.1 are always refused: some (arm64, before 5.10) purge pages written
//! after a fork, which the test does not try. If the kernel refuses a call, the test passes,
//! because a mark will meet the same refusal.

use super::Error;
use glebe_os::error::OsError;
use glebe_os::internal::mapping::{Mapping, Visibility};
use glebe_os::internal::sync::First;
use glebe_os::internal::sys::page_size;
use glebe_os::internal::sys::processes::process;
use glebe_os::units::{Bytes, Pages};

const NEEDED: &str = "6.1";
const NEEDED_VERSION: (u32, u32) = (6, 1);
const PAGES: u64 = 16;
const AGAIN: u64 = 64;

#[derive(Clone, Debug)]
struct Failure {
    release: String,
    what: String,
}

pub(super) fn passed() -> Result<(), Error> {
    static FOUND: First<Result<(), Failure>> = First::new();
    let found = FOUND.get_or_compute(|| {
        let release = process::release();
        verdict(&release, look().map_or(0, |(lost, _)| lost))
            .map_err(|what| Failure { release, what })
    });
    let refused = |Failure { release, what }| Error::SelfTest { release, what, needed: NEEDED };
    found.clone().map_err(refused)
}

fn verdict(release: &str, lost: u64) -> Result<(), String> {
    if version(release).is_some_and(|version| version < NEEDED_VERSION) {
        return Err("older releases may purge pages that were written after a fork".to_owned());
    }
    if lost > 0 {
        return Err(format!("{lost} of {PAGES} pages were purged after they had been written"));
    }
    Ok(())
}

fn version(release: &str) -> Option<(u32, u32)> {
    let mut numbers = release.split(|c: char| !c.is_ascii_digit());
    Some((numbers.next()?.parse().ok()?, numbers.next()?.parse().ok()?))
}

/// Counts pages lost although written after the mark, and others purged.
fn look() -> Result<(u64, u64), OsError> {
    let page = page_size();
    let mapping = Mapping::aligned(Pages::new(PAGES).bytes(page), page, Visibility::ORDINARY)?;
    // A kernel without huge pages refuses.
    let _ = mapping.refuse_huge_pages();
    let at = |index: u64| Pages::new(index).bytes(page);
    let again = |index: u64| at(index) + Bytes::new(AGAIN);
    (0..PAGES).for_each(|index| mapping.write(at(index), &[1]));
    mapping.offer()?;
    (0..PAGES).step_by(2).for_each(|index| mapping.write(again(index), &[1]));
    mapping.reclaim()?;
    let is_there = |offset: Bytes| {
        let mut byte = [0];
        mapping.read(offset, &mut byte);
        byte == [1]
    };
    let is_lost = |index: &u64| !is_there(at(*index)) || !is_there(again(*index));
    let lost = (0..PAGES).step_by(2).filter(is_lost).count() as u64;
    let taken = (1..PAGES).step_by(2).filter(|index| !is_there(at(*index))).count() as u64;
    Ok((lost, taken))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn old_kernels_and_lost_writes_are_refused() {
        for release in ["6.1.0", "6.1-rc1", "6.18.44-x", "7.0", "no number", ""] {
            assert!(verdict(release, 0).is_ok(), "{release}");
        }
        for release in ["6.0.19", "5.15.1", "4.19"] {
            assert!(verdict(release, 0).is_err(), "{release}");
        }
        assert!(verdict(NEEDED, 1).is_err());
    }

    #[test]
    fn this_kernel_takes_marked_pages_and_keeps_written_ones() {
        // The kernel may spare pages in another processor's list.
        let taken = (0..20).any(|_| {
            let Ok((lost, taken)) = look() else {
                println!("skipped: the kernel refuses MADV_FREE or MADV_PAGEOUT");
                return true;
            };
            assert_eq!(lost, 0);
            taken > 0
        });
        assert!(taken, "nothing was taken, so nothing is proved");
        passed().unwrap();
    }
}
