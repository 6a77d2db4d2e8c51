//! [`grow_pool`]: pages of the machine's pool that everybody may have, for good.
//!
//! They lie idle in the pool until a program takes them, and no process owns them. For memory of
//! its own a program calls [`Contig::new`](super::Contig::new), whose pages end with it.
//!
//! A pool of which programs hold surplus pages cannot have idle pages: the kernel counts the pages
//! in use first. Growing it makes those surplus pages persistent, so that they stay in the pool
//! when their programs end.
//!
//! Counts are pages of the size in question, and persistent ones.

use std::path::PathBuf;

use super::machine::boot_parameter;
use super::pool::{Place, PoolLock};
use super::populate::machine_available;
use super::Error;
use crate::error::OsError;
use crate::sys::hugetlb::{sizes, Pool};
use crate::units::{Bytes, PageSize, Pages};

/// What a growth of a pool wrote, or would write.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Growth {
    /// Persistent pages before.
    pub before: u64,
    /// Pages added.
    pub added: u64,
    /// Surplus pages in use by programs that have become persistent by it.
    pub absorbed: u64,
    /// The file, and the number written to it.
    pub write: (PathBuf, u64),
}

/// Adds `pages` of `size` to the machine's pool, for good and for everybody. All of them or none.
/// With `dry_run` nothing is written.
///
/// # Errors
/// [`Error::PoolShort`] with how many the kernel found; [`Error::NoSuchSize`],
/// [`Error::PoolFixed`], [`Error::TooLarge`]; what the kernel refuses.
pub fn grow_pool(size: PageSize, pages: u64, dry_run: bool) -> Result<Growth, Error> {
    grow_in(&Place::machine(), size, pages, dry_run)
}

fn pool_of(place: &Place, size: PageSize) -> Result<Pool, Error> {
    place.pool(size).ok_or_else(|| Error::NoSuchSize { size, listed: sizes() })
}

fn grow_in(place: &Place, size: PageSize, pages: u64, dry_run: bool) -> Result<Growth, Error> {
    let pool = pool_of(place, size)?;
    let growth = || {
        let counts = pool.counts()?;
        let (before, absorbed) = (counts.persistent(), counts.surplus);
        let target = before.saturating_add(absorbed).saturating_add(pages);
        Ok::<_, OsError>(Growth { before, added: pages, absorbed, write: (pool.path(), target) })
    };
    if dry_run {
        return Ok(growth()?);
    }
    if !pool.is_writable() {
        return Err(Error::PoolFixed { size: size.bytes() });
    }
    let available = machine_available()?;
    let asked = Pages::new(pages).checked_bytes(size).unwrap_or(Bytes::new(u64::MAX));
    if asked > available {
        return Err(Error::TooLarge { asked, available });
    }
    let lock = PoolLock::of(place, PoolLock::PATIENCE)?;
    let growth = growth()?;
    let got = lock.keep_pages(&pool, pages)?;
    if got < pages {
        let how_to = format!(
            "they were given back; write 1 to /proc/sys/vm/compact_memory, or set them aside at \
             boot: {}",
            boot_parameter(size, pages)
        );
        let (size, path) = (size.bytes(), pool.path());
        return Err(Error::PoolShort { size, wanted: pages, got, path, how_to });
    }
    Ok(growth)
}

#[cfg(test)]
mod tests {
    use super::*;
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
        let place = Place { pools: root.clone(), locks: vec![root.join("lock/file")] };
        let size = PageSize::new(2 << 20).unwrap();
        let total = || fs::read_to_string(dir.join("nr_hugepages")).unwrap();
        let dry = grow_in(&place, size, 3, true).unwrap();
        assert_eq!((dry.before, dry.write.1, total().trim()), (7, 10, "7"));
        let grown = grow_in(&place, size, 3, false).unwrap();
        assert_eq!((grown.before, grown.added, total().trim()), (7, 3, "10"));
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
}
