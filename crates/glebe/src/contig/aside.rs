//! Pages added to the machine's pool that everybody may have: for as long as a [`SetAside`] lives,
//! or for good ([`grow_pool`]); and the lock that the pools are changed under, for those who change
//! them by other means.
//!
//! What is added is claimed, as what a [`Contig`](super::Contig) adds is: whoever next takes the
//! lock gives back what a killed process had set aside. Pages that others use when they are to be
//! given back are left to the next that takes the lock once they are free.
//!
//! Counts are pages of the size in question, and persistent ones: surplus pages, which come and go
//! with who uses them, are part of no difference.

use std::path::PathBuf;

use super::machine::boot_parameter;
use super::pool::{Place, PoolClaim, PoolLock};
use super::populate::machine_available;
use super::Error;
use crate::error::OsError;
use crate::sys::hugetlb::{sizes, Pool};
use crate::units::{Bytes, PageSize, Pages};

/// Pages in the machine's pool that were added for everybody; given back when this is dropped.
#[derive(Debug)]
pub struct SetAside {
    claim: PoolClaim,
    place: Place,
    pool: Pool,
    /// Persistent pages before.
    before: u64,
}

impl SetAside {
    /// Adds `pages` of `size` to the machine's pool, all of them or none.
    ///
    /// # Errors
    /// [`Error::PoolShort`] with how many the kernel found; [`Error::NoSuchSize`],
    /// [`Error::PoolFixed`], [`Error::TooLarge`]; what the kernel refuses.
    pub fn new(size: PageSize, pages: u64) -> Result<Self, Error> {
        Self::in_place(&Place::machine(), size, pages)
    }

    pub(super) fn in_place(place: &Place, size: PageSize, pages: u64) -> Result<Self, Error> {
        let no_such = || Error::NoSuchSize { size, listed: sizes() };
        let pool = place.pool(size).ok_or_else(no_such)?;
        let mut claim = PoolClaim::new(pool.clone(), place.clone());
        if !claim.may_change() {
            return Err(Error::PoolFixed { size: size.bytes() });
        }
        let available = machine_available()?;
        let asked = Pages::new(pages).checked_bytes(size).unwrap_or(Bytes::new(u64::MAX));
        if asked > available {
            return Err(Error::TooLarge { asked, available });
        }
        let lock = PoolLock::acquire(place)?;
        let before = pool.counts().map(|counts| counts.persistent());
        let grown = before.and_then(|before| Ok((before, claim.grow(&lock, pages)?)));
        let got = match grown {
            Ok((before, got)) if got == pages => {
                return Ok(Self { claim, place: place.clone(), pool, before });
            }
            other => other.map(|(_, got)| got),
        };
        // Its drop would wait for the lock that is held here.
        claim.release(&lock);
        let how_to = format!(
            "they were given back; write 1 to /proc/sys/vm/compact_memory, or set them aside at \
             boot: {}",
            boot_parameter(size, pages)
        );
        let (size, got, path) = (size.bytes(), got?, pool.path());
        Err(Error::PoolShort { size, wanted: pages, got, path, how_to })
    }

    /// Pages that were added.
    #[must_use]
    pub fn pages(&self) -> u64 {
        self.claim.pages()
    }

    /// Leaves them in the pool for good: they are given back by nobody.
    ///
    /// # Errors
    /// If the record of claims cannot be changed; then they are given back.
    pub fn keep(mut self) -> Result<Growth, Error> {
        let added = self.claim.pages();
        let lock = PoolLock::acquire(&self.place)?;
        let kept = self.claim.disown(&lock);
        drop(lock);
        kept?;
        Ok(Growth { before: self.before, added, write: (self.pool.path(), self.before + added) })
    }
}

/// What a growth of a pool wrote, or would write.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Growth {
    /// Persistent pages before.
    pub before: u64,
    /// Pages added.
    pub added: u64,
    /// The file, and the number written to it.
    pub write: (PathBuf, u64),
}

/// Adds `pages` of `size` to the machine's pool, for good and for everybody: they are given back by
/// nobody. All of them or none. With `dry_run` nothing is written.
///
/// # Errors
/// [`Error::PoolShort`] with how many the kernel found; [`Error::NoSuchSize`],
/// [`Error::PoolFixed`]; what the kernel refuses.
pub fn grow_pool(size: PageSize, pages: u64, dry_run: bool) -> Result<Growth, Error> {
    grow_in(&Place::machine(), size, pages, dry_run)
}

fn grow_in(place: &Place, size: PageSize, pages: u64, dry_run: bool) -> Result<Growth, Error> {
    if dry_run {
        let no_such = || Error::NoSuchSize { size, listed: sizes() };
        let pool = place.pool(size).ok_or_else(no_such)?;
        let (before, path) = (pool.counts()?.persistent(), pool.path());
        return Ok(Growth { before, added: pages, write: (path, before.saturating_add(pages)) });
    }
    // Claimed until all are there: who is killed meanwhile leaves none.
    SetAside::in_place(place, size, pages)?.keep()
}

/// Runs `change` under the lock that every change of the machine's pools is made under, and after
/// what processes that have ended had added was given back. For who changes a pool by other means
/// than this module's; `change` must neither make nor drop anything of this module, which would
/// wait for ever.
///
/// # Errors
/// If the lock cannot be had; then `change` was not run.
pub fn with_pools_locked<T>(change: impl FnOnce() -> T) -> Result<T, OsError> {
    let _lock = PoolLock::acquire(&Place::machine())?;
    Ok(change())
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
        let place = Place { pools: root.clone(), locks: vec![root.join("lock")] };
        let size = PageSize::new(2 << 20).unwrap();
        let total = || fs::read_to_string(dir.join("nr_hugepages")).unwrap();
        let dry = grow_in(&place, size, 3, true).unwrap();
        assert_eq!((dry.before, dry.write.1, total().trim()), (7, 10, "7"));
        let grown = grow_in(&place, size, 3, false).unwrap();
        assert_eq!((grown.before, grown.added, total().trim()), (7, 3, "10"));
        let claims = || fs::read_to_string(root.join("lock.claims")).unwrap().lines().count() - 1;
        let aside = SetAside::in_place(&place, size, 3).unwrap();
        assert_eq!((aside.pages(), claims(), total().trim()), (3, 1, "13"));
        fs::write(dir.join("nr_hugepages"), "15").unwrap(); // somebody else adds two
        drop(aside);
        assert_eq!((claims(), total().trim()), (0, "12"));
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
