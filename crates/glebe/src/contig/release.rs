//! [`release_from_pool`]: takes idle pages out of a machine's pool, the counterpart of
//! [`grow_pool`](super::grow_pool).
//!
//! The pool is changed by a difference, under the lock. A page in use or promised is left: the
//! kernel would make it surplus. Counts are pages of the size in question.

use std::path::PathBuf;

use super::pool::{Place, PoolLock};
use super::Error;
use crate::sys::hugetlb::{sizes, Counts};
use crate::units::PageSize;

/// What a release wrote, or would write.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Release {
    /// Persistent pages before.
    pub before: u64,
    /// Pages that the system has back.
    pub given: u64,
    /// The file, and the number written to it.
    pub write: (PathBuf, u64),
}

/// Takes `pages` of `size` out of the machine's pool, or as many as are idle. With `dry_run`
/// nothing is written.
///
/// # Errors
/// [`Error::NoSuchSize`], [`Error::PoolFixed`]; what the kernel refuses.
pub fn release_from_pool(size: PageSize, pages: u64, dry_run: bool) -> Result<Release, Error> {
    release_in(&Place::machine(), size, pages, dry_run)
}

fn release_in(place: &Place, size: PageSize, pages: u64, dry_run: bool) -> Result<Release, Error> {
    let no_such = || Error::NoSuchSize { size, listed: sizes() };
    let pool = place.pool(size).ok_or_else(no_such)?;
    if !pool.is_writable() && !dry_run {
        return Err(Error::PoolFixed { size: size.bytes() });
    }
    let _lock = PoolLock::of(place, PoolLock::PATIENCE)?;
    let counts = pool.counts()?;
    let (before, path) = (counts.persistent(), pool.path());
    let give = pages.min(spare(&counts));
    let write = (path, before - give);
    if give == 0 || dry_run {
        return Ok(Release { before, given: give, write });
    }
    pool.set_persistent(write.1)?;
    let given = before.saturating_sub(pool.counts()?.persistent());
    Ok(Release { before, given, write })
}

/// Pages that may go. Surplus pages are in the totals but not in the number that is written.
fn spare(counts: &Counts) -> u64 {
    counts.available().saturating_sub(counts.surplus).min(counts.persistent())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;

    #[test]
    fn pages_that_are_used_promised_or_surplus_stay() {
        let counts = Counts { total: 12, free: 8, reserved: 1, surplus: 2 };
        assert_eq!(spare(&counts), 5);
        assert_eq!(spare(&Counts { surplus: 9, ..counts }), 0);
        assert_eq!(spare(&Counts::default()), 0);
    }

    #[test]
    fn as_many_go_as_are_free_and_no_more() {
        let root = std::env::temp_dir().join(format!("glebe-release-{}", std::process::id()));
        let dir = root.join("hugepages-2048kB");
        fs::create_dir_all(&dir).unwrap();
        let write = |name: &str, value: &str| fs::write(dir.join(name), value).unwrap();
        let all = [("nr", "10"), ("free", "7"), ("resv", "1"), ("surplus", "0")];
        all.iter().for_each(|(name, value)| write(&format!("{name}_hugepages"), value));
        let place = Place { pools: root.clone(), locks: vec![root.join("lock/file")] };
        let size = PageSize::new(2 << 20).unwrap();
        let total = || fs::read_to_string(dir.join("nr_hugepages")).unwrap();
        let dry = release_in(&place, size, 4, true).unwrap();
        assert_eq!((dry.before, dry.given, dry.write.1, total().trim()), (10, 4, 6, "10"));
        let some = release_in(&place, size, 4, false).unwrap();
        assert_eq!((some.before, some.given, total().trim()), (10, 4, "6"));
        write("free_hugepages", "3");
        let rest = release_in(&place, size, u64::MAX, false).unwrap();
        assert_eq!((rest.given, total().trim()), (2, "4"), "one of three is promised");
        let none = PageSize::new(1 << 30).unwrap();
        assert!(matches!(release_in(&place, none, 1, false), Err(Error::NoSuchSize { .. })));
        fs::remove_dir_all(&root).unwrap();
    }
}
