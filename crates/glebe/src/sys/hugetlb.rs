//! The hugetlb pools: one directory of counters for each page size.
//!
//! Counts are huge pages. *Persistent* pages are those that `nr_hugepages` was written for; the
//! rest are surplus, which go when they are freed. Every write opens the file anew: a second
//! write through one descriptor is at an offset and ignored. The part of a pool that lies on a NUMA
//! node has counters of its own, but none of promises and of the limit on surplus. Source:
//! admin-guide/mm/hugetlbpage.

use std::io;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use crate::error::OsError;
use crate::sys::numa::Node;
use crate::sys::{file, page_size, signals};
use crate::units::PageSize;

/// Where the pools are.
pub const ROOT: &str = "/sys/kernel/mm/hugepages";

/// The sizes that this machine lists, largest first.
#[must_use]
pub fn sizes() -> Vec<PageSize> {
    file::page_sizes(Path::new(ROOT))
}

/// The smallest size that this machine lists; a base page, of which there is no pool, where it
/// lists none.
#[must_use]
pub fn smallest() -> PageSize {
    sizes().pop().unwrap_or_else(page_size)
}

/// The counters of a pool at one moment.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// All pages, surplus ones too.
    pub total: u64,
    /// Pages in no use, promised ones too.
    pub free: u64,
    /// Free pages promised to a mapping that has not touched them.
    pub reserved: u64,
    /// Pages beyond those that `nr_hugepages` was written for.
    pub surplus: u64,
}

impl Counts {
    /// Pages that a write to `nr_hugepages` counts.
    #[must_use]
    pub fn persistent(&self) -> u64 {
        self.total.saturating_sub(self.surplus)
    }

    /// Pages that a new mapping can have.
    #[must_use]
    pub fn available(&self) -> u64 {
        self.free.saturating_sub(self.reserved)
    }
}

/// How long total and surplus are read again until they stand still: while a process gives its
/// surplus pages back they do not.
const UNREST_MAX: Duration = Duration::from_secs(5);

/// What two readings in a row agree on, or the last.
fn at_rest<T: PartialEq>(mut read: impl FnMut() -> Result<T, OsError>) -> Result<T, OsError> {
    let (mut before, mut seen) = (read()?, read()?);
    let end = Instant::now() + UNREST_MAX;
    while before != seen && Instant::now() < end {
        (before, seen) = (seen, read()?);
    }
    Ok(seen)
}

/// The pool of one page size, of the whole machine or of a node.
#[derive(Clone, Debug)]
pub struct Pool {
    size: PageSize,
    dir: PathBuf,
    /// The directory of the machine's pool, and the node, where this is the part on one.
    part_of: Option<(PathBuf, Node)>,
}

impl Pool {
    /// The machine's pool, where it lists one of this size.
    #[must_use]
    pub fn of(size: PageSize) -> Option<Self> {
        Self::below(Path::new(ROOT), size)
    }

    /// The pool below `root`, which is sysfs but for fixtures.
    #[must_use]
    pub fn below(root: &Path, size: PageSize) -> Option<Self> {
        Self::find(root, size).ok().flatten()
    }

    /// As [`Pool::below`], where it matters whether there is none.
    ///
    /// # Errors
    /// If it cannot be told.
    pub fn find(root: &Path, size: PageSize) -> Result<Option<Self>, OsError> {
        let dir = root.join(name(size));
        Ok(is_dir(&dir)?.then_some(Self { size, dir, part_of: None }))
    }

    /// The part of it on a node; `nodes` is where sysfs lists them, but for fixtures. `None` where
    /// the node has no part.
    ///
    /// # Errors
    /// If that cannot be told.
    pub(crate) fn on_node(&self, nodes: &Path, node: Node) -> Result<Option<Self>, OsError> {
        let dir = nodes.join(format!("node{}/hugepages", node.0)).join(name(self.size));
        let part_of = Some((self.dir.clone(), node));
        Ok(is_dir(&dir)?.then_some(Self { size: self.size, dir, part_of }))
    }

    /// The node of whose part this is, if it is not the whole pool.
    pub(crate) fn node(&self) -> Option<Node> {
        self.part_of.as_ref().map(|(_, node)| *node)
    }

    /// The size of its pages.
    #[must_use]
    pub fn size(&self) -> PageSize {
        self.size
    }

    /// The file that sets how many pages there are.
    #[must_use]
    pub fn path(&self) -> PathBuf {
        self.dir.join("nr_hugepages")
    }

    /// Whether the caller may change the number of pages.
    #[must_use]
    pub fn is_writable(&self) -> bool {
        file::check_writable(&self.path()).is_ok()
    }

    /// Reads the counters, one after the other: they may change in between. Total and surplus
    /// go together, since a page that ends as surplus between the two would look persistent.
    ///
    /// # Errors
    /// If one cannot be read.
    pub fn counts(&self) -> Result<Counts, OsError> {
        let (total, surplus) =
            at_rest(|| Ok((self.read("nr_hugepages")?, self.read("surplus_hugepages")?)))?;
        let free = self.read("free_hugepages")?;
        // Nobody counts where promised pages lie: all of them may lie on this node.
        let whole = self.part_of.as_ref().map_or(&self.dir, |(whole, _)| whole);
        let reserved = file::number(whole.join("resv_hugepages"))?;
        Ok(Counts { total, free, reserved, surplus })
    }

    /// All pages, surplus ones too: [`Counts::total`] alone.
    ///
    /// # Errors
    /// If it cannot be read.
    pub fn total(&self) -> Result<u64, OsError> {
        self.read("nr_hugepages")
    }

    /// The size into which a page of this pool can be split, if any (Linux 5.16).
    #[must_use]
    pub fn demote_size(&self) -> Option<PageSize> {
        let text = file::read_text(&self.dir.join("demote_size")).ok()?;
        let kib: u64 = text.trim().strip_suffix("kB")?.parse().ok()?;
        PageSize::new(kib.checked_mul(1 << 10)?)
    }

    /// Splits `pages` free pages into pages of [`Pool::demote_size`]. The kernel does what it
    /// can: read the counters of both pools after.
    ///
    /// # Errors
    /// If the file cannot be written.
    pub fn demote(&self, pages: u64) -> Result<(), OsError> {
        self.write("demote", pages)
    }

    /// Asks for `pages` persistent pages. The kernel does what it can: read the counters after.
    /// A signal would end that early, so that signals wait.
    ///
    /// # Errors
    /// If the file cannot be written.
    pub fn set_persistent(&self, pages: u64) -> Result<(), OsError> {
        let _later = signals::Blocked::new();
        self.write("nr_hugepages", pages)
    }

    /// How many surplus pages mappings may be given beyond the persistent ones.
    ///
    /// # Errors
    /// If it cannot be read.
    pub fn overcommit(&self) -> Result<u64, OsError> {
        self.read("nr_overcommit_hugepages")
    }

    /// Sets [`Pool::overcommit`].
    ///
    /// # Errors
    /// If the file cannot be written; EINVAL of pages that the kernel has only from
    /// `nr_hugepages`, as those of 1 GiB.
    pub fn set_overcommit(&self, pages: u64) -> Result<(), OsError> {
        self.write("nr_overcommit_hugepages", pages)
    }

    fn write(&self, name: &str, pages: u64) -> Result<(), OsError> {
        file::put(self.dir.join(name), &pages.to_string())
    }

    fn read(&self, name: &str) -> Result<u64, OsError> {
        file::number(self.dir.join(name))
    }
}

/// The name of a pool's directory.
fn name(size: PageSize) -> String {
    format!("hugepages-{}kB", size.bytes().get() >> 10)
}

/// Whether a directory is there.
fn is_dir(path: &Path) -> Result<bool, OsError> {
    match file::metadata_of(path) {
        Ok(meta) => Ok(meta.is_dir()),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(false),
        Err(source) => Err(OsError::new("stat", path.display().to_string(), source)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn surplus_and_promised_pages_are_told_apart() {
        let counts = Counts { total: 10, free: 4, reserved: 1, surplus: 3 };
        assert_eq!((counts.persistent(), counts.available()), (7, 3));
        let torn = Counts { total: 1, free: 1, reserved: 2, surplus: 3 };
        assert_eq!((torn.persistent(), torn.available()), (0, 0));
    }

    #[test]
    fn what_is_persistent_is_told_when_no_more_surplus_pages_go() {
        let mut left = 20_000_u64;
        // One goes between the reading of the total and that of the surplus.
        let pair = || {
            let total = 8 + left;
            left = left.saturating_sub(1);
            Ok((total, left))
        };
        assert_eq!(at_rest(pair).unwrap(), (8, 0));
    }

    #[test]
    fn every_listed_size_has_a_pool() {
        let sizes = sizes();
        assert!(sizes.is_sorted_by(|a, b| a > b));
        for size in sizes {
            let pool = Pool::of(size).unwrap();
            assert_eq!(pool.size(), size);
            pool.counts().unwrap();
        }
        assert!(Pool::of(PageSize::new(1 << 50).unwrap()).is_none());
    }
}
