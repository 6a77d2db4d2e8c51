//! [`grow_pool`] and [`shrink_pool`] resize the machine's hugetlb pool for good.
//!
//! No process owns the added pages. The kernel makes surplus pages persistent before it adds pages,
//! so the number to write includes the surplus. Shrinking removes only idle pages, because the
//! kernel would make pages in use surplus.
//!
//! Counts are persistent pages. Lock: [`PoolLock`].

use std::path::PathBuf;

use super::explain::boot_parameter;
use super::pool::{Place, PoolLock};
use super::populate::machine_available;
use super::Error;
use glebe_os::internal::sys::machine::hugetlb::{sizes, Pool, PoolCounts};
use glebe_os::units::{Bytes, PageSize, Pages};

/// A change of a pool, made or planned.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PoolChange {
    /// Persistent pages before.
    pub before: u64,
    /// Pages added or removed.
    pub pages: u64,
    /// Surplus pages that growing made persistent.
    pub absorbed: u64,
    /// File, and the number to write to it.
    pub write: (PathBuf, u64),
}

/// Adds `pages` of `size` to the machine's pool for good, or none.
///
/// # Errors
/// [`Error::PoolShort`], [`Error::NoSuchSize`], [`Error::PoolFixed`], [`Error::TooLarge`]; errors
/// of the lock and the kernel.
pub fn grow_pool(size: PageSize, pages: u64, dry_run: bool) -> Result<PoolChange, Error> {
    grow_in(&Place::default(), size, pages, dry_run)
}

/// Removes up to `pages` idle pages of `size` from the machine's pool.
///
/// # Errors
/// [`Error::NoSuchSize`], [`Error::PoolFixed`]; errors of the lock and the kernel.
pub fn shrink_pool(size: PageSize, pages: u64, dry_run: bool) -> Result<PoolChange, Error> {
    shrink_in(&Place::default(), size, pages, dry_run)
}

fn pool_of(place: &Place, size: PageSize, dry_run: bool) -> Result<Pool, Error> {
    let pool = Pool::below(&place.pools, size)
        .ok_or_else(|| Error::NoSuchSize { size, listed: sizes() })?;
    match pool.is_writable() || dry_run {
        true => Ok(pool),
        false => Err(Error::PoolFixed { size: size.bytes() }),
    }
}

fn grow_in(place: &Place, size: PageSize, pages: u64, dry_run: bool) -> Result<PoolChange, Error> {
    let pool = pool_of(place, size, dry_run)?;
    let change_of = |counts: PoolCounts| {
        let (before, absorbed) = (counts.persistent(), counts.surplus);
        let target = before.saturating_add(absorbed).saturating_add(pages);
        PoolChange { before, pages, absorbed, write: (pool.path(), target) }
    };
    if dry_run {
        return Ok(change_of(pool.counts()?));
    }
    let available = machine_available()?;
    let asked = Pages::new(pages).checked_bytes(size).unwrap_or(Bytes::new(u64::MAX));
    if asked > available {
        return Err(Error::too_large(asked, available));
    }
    let lock = PoolLock::of(place, PoolLock::PATIENCE)?;
    let (counts, got) = lock.keep_pages(&pool, pages)?;
    if got < pages {
        let how_to = format!(
            "they were given back; write 1 to /proc/sys/vm/compact_memory, or set them aside at \
             boot: {}",
            boot_parameter(size, pages)
        );
        let (size, path) = (size.bytes(), pool.path());
        return Err(Error::PoolShort { size, wanted: pages, got, path, how_to });
    }
    Ok(change_of(counts))
}

fn shrink_in(
    place: &Place,
    size: PageSize,
    pages: u64,
    dry_run: bool,
) -> Result<PoolChange, Error> {
    let pool = pool_of(place, size, dry_run)?;
    let _lock = PoolLock::of(place, PoolLock::PATIENCE)?;
    shrink_locked(&pool, pages, dry_run, || {})
}

/// In tests, `meanwhile` takes idle pages without the lock.
fn shrink_locked(
    pool: &Pool,
    pages: u64,
    dry_run: bool,
    meanwhile: impl FnOnce(),
) -> Result<PoolChange, Error> {
    let counts = pool.counts()?;
    let (before, pages) = (counts.persistent(), pages.min(spare(&counts)));
    let write = (pool.path(), before - pages);
    let planned = PoolChange { before, pages, absorbed: 0, write };
    if pages == 0 || dry_run {
        return Ok(planned);
    }
    meanwhile();
    pool.set_persistent(planned.write.1)?;
    let after = pool.counts()?;
    // Makes pages persistent again that the kernel made surplus, because programs took them before
    // the write.
    let taken = after.surplus.saturating_sub(counts.surplus).min(pages);
    if taken > 0 {
        pool.set_persistent(after.persistent() + taken)?;
    }
    let pages = before.saturating_sub(pool.counts()?.persistent());
    Ok(PoolChange { pages, write: (planned.write.0, before - pages), ..planned })
}

fn spare(counts: &PoolCounts) -> u64 {
    counts.available().saturating_sub(counts.surplus).min(counts.persistent())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Contig, Source};
    use std::fs;

    #[test]
    fn a_pool_grows_by_a_difference_or_not_at_all() {
        let root = std::env::temp_dir().join(format!("glebe-machine-{}", std::process::id()));
        let dir = root.join("hugepages-2048kB");
        fs::create_dir_all(&dir).unwrap();
        for (name, value) in [
            ("nr_hugepages", "7"),
            ("free_hugepages", "7"),
            ("resv_hugepages", "0"),
            ("surplus_hugepages", "0"),
        ] {
            fs::write(dir.join(name), value).unwrap();
        }
        let place = Place {
            pools: root.clone(),
            nodes: root.join("nodes"),
            locks: vec![root.join("lock/file")],
        };
        let size = PageSize::new(2 << 20).unwrap();
        let total = || fs::read_to_string(dir.join("nr_hugepages")).unwrap();
        let dry = grow_in(&place, size, 3, true).unwrap();
        assert_eq!((dry.before, dry.write.1, total().trim()), (7, 10, "7"));
        let grown = grow_in(&place, size, 3, false).unwrap();
        assert_eq!((grown.before, grown.pages, total().trim()), (7, 3, "10"));
        fs::write(dir.join("surplus_hugepages"), "4").unwrap();
        fs::write(dir.join("nr_hugepages"), "6").unwrap();
        let grown = grow_in(&place, size, 3, true).unwrap();
        assert_eq!((grown.before, grown.absorbed, grown.write.1), (2, 4, 9));
        fs::write(dir.join("surplus_hugepages"), "0").unwrap();
        fs::write(dir.join("nr_hugepages"), "10").unwrap();
        let none = PageSize::new(1 << 30).unwrap();
        assert!(matches!(grow_in(&place, none, 1, false), Err(Error::NoSuchSize { .. })));
        let listed = vec![size, none];
        let said = Error::NoSuchSize { size: none, listed }.to_string();
        assert_eq!(said, "no hugetlb pages of 1 GiB; sizes of this machine: 2 MiB, 1 GiB");
        let too_much = grow_in(&place, size, 1 << 40, false);
        assert!(matches!(too_much, Err(Error::TooLarge { .. })), "{too_much:?}");
        assert_eq!(total().trim(), "10");
        fs::remove_dir_all(&root).unwrap();
    }

    #[test]
    fn pages_that_are_used_promised_or_surplus_stay() {
        let counts = PoolCounts { total: 12, free: 8, reserved: 1, surplus: 2 };
        assert_eq!(spare(&counts), 5);
        assert_eq!(spare(&PoolCounts { surplus: 9, ..counts }), 0);
        assert_eq!(spare(&PoolCounts::default()), 0);
    }

    #[test]
    fn pages_that_a_program_takes_meanwhile_stay() {
        let pool = Pool::of(PageSize::new(2 << 20).unwrap()).filter(Pool::is_writable);
        let Some(pool) = pool else { return println!("skipped: no pool that can be changed") };
        let lock = PoolLock::acquire().unwrap();
        // Idle pages need no lock, and so another test can take them before this one does.
        let shrunk = (0..10).any(|_| match lock.with_pages(&pool, 4, |came| shrunk(&pool, came)) {
            Ok(()) => true,
            Err(error @ Error::PoolShort { .. }) => {
                println!("disturbed: {error}");
                false
            }
            Err(error) => panic!("{error}"),
        });
        assert!(shrunk, "others took the pages every time");
    }

    /// Shrinks a pool with `came` new idle pages, of which a program takes two meanwhile.
    fn shrunk(pool: &Pool, came: u64) -> Result<(), Error> {
        let (before, mut taken) = (pool.counts()?, None);
        if (came, before.available()) != (4, 4) {
            println!("skipped: {came} pages came, {before:?}");
            return Ok(());
        }
        let options = Contig::options().source(Source::HUGETLB_2M).grow_pool(false);
        let take = || taken = Some(options.build(Bytes::mib(4)));
        let change = shrink_locked(pool, 4, false, take)?;
        let after = pool.counts()?;
        drop(taken.transpose()?);
        assert!(change.pages <= 2, "{change:?}");
        let taken = |counts: &PoolCounts| (counts.total - counts.free, counts.reserved);
        let (used, reserved) = taken(&before);
        if taken(&after) == (used + 2, reserved) {
            assert_eq!(change.pages, 2, "{change:?}");
        }
        assert_eq!(after.total, before.total - change.pages);
        assert_eq!(change.write.1, after.persistent());
        Ok(())
    }

    #[test]
    fn as_many_go_as_are_free_and_no_more() {
        let root = std::env::temp_dir().join(format!("glebe-release-{}", std::process::id()));
        let dir = root.join("hugepages-2048kB");
        fs::create_dir_all(&dir).unwrap();
        let write = |name: &str, value: &str| fs::write(dir.join(name), value).unwrap();
        let all = [("nr", "10"), ("free", "7"), ("resv", "1"), ("surplus", "0")];
        all.iter().for_each(|(name, value)| write(&format!("{name}_hugepages"), value));
        let place = Place {
            pools: root.clone(),
            nodes: root.join("nodes"),
            locks: vec![root.join("lock/file")],
        };
        let size = PageSize::new(2 << 20).unwrap();
        let total = || fs::read_to_string(dir.join("nr_hugepages")).unwrap();
        let dry = shrink_in(&place, size, 4, true).unwrap();
        assert_eq!((dry.before, dry.pages, dry.write.1, total().trim()), (10, 4, 6, "10"));
        let some = shrink_in(&place, size, 4, false).unwrap();
        assert_eq!((some.before, some.pages, total().trim()), (10, 4, "6"));
        write("free_hugepages", "3");
        let rest = shrink_in(&place, size, u64::MAX, false).unwrap();
        assert_eq!((rest.pages, total().trim()), (2, "4"), "one of three is promised");
        let none = PageSize::new(1 << 30).unwrap();
        assert!(matches!(shrink_in(&place, none, 1, false), Err(Error::NoSuchSize { .. })));
        fs::remove_dir_all(&root).unwrap();
    }
}
