//! [`Pool`] reads and changes a hugetlb pool: a directory of counters for each page size.
//!
//! Counts are huge pages. A write to `nr_hugepages` asks for *persistent* pages. Other pages are
//! *surplus*: the kernel takes them back after use. Every write opens the file anew, because the
//! kernel ignores a write at an offset. A NUMA node has its own counters, except for reserved pages
//! and the limit on surplus. The part of a pool on several nodes has the sum of their counters, and
//! is changed node by node. Source: admin-guide/mm/hugetlbpage.

use std::io;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use crate::error::OsError;
use crate::internal::sys::files::file;
use crate::internal::sys::machine::numa::Node;
use crate::internal::sys::page_size;
use crate::internal::sys::processes::signals;
use crate::units::PageSize;

pub const ROOT: &str = "/sys/kernel/mm/hugepages";

/// Returns the page sizes, largest first.
#[must_use]
pub fn sizes() -> Vec<PageSize> {
    file::page_sizes(Path::new(ROOT))
}

#[must_use]
pub fn smallest() -> PageSize {
    sizes().pop().unwrap_or_else(page_size)
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PoolCounts {
    /// Pages, surplus included.
    pub total: u64,
    /// Unused pages, reserved included.
    pub free: u64,
    /// The machine's free pages reserved for untouched mappings.
    pub reserved: u64,
    /// Pages beyond the number written to `nr_hugepages`.
    pub surplus: u64,
}

impl PoolCounts {
    #[must_use]
    pub fn persistent(&self) -> u64 {
        self.total.saturating_sub(self.surplus)
    }

    #[must_use]
    pub fn available(&self) -> u64 {
        self.free.saturating_sub(self.reserved)
    }
}

const UNREST_MAX: Duration = Duration::from_secs(5);

/// Reads until two readings in a row agree, but at most for [`UNREST_MAX`].
fn at_rest<T: PartialEq>(mut read: impl FnMut() -> Result<T, OsError>) -> Result<T, OsError> {
    let (mut before, mut seen) = (read()?, read()?);
    let end = Instant::now() + UNREST_MAX;
    while before != seen && Instant::now() < end {
        (before, seen) = (seen, read()?);
    }
    Ok(seen)
}

#[derive(Clone, Debug)]
pub struct Pool {
    size: PageSize,
    /// Directory of the machine's pool.
    dir: PathBuf,
    /// Nodes whose parts of the pool this is, with their directories; empty for the whole pool.
    nodes: Vec<(Node, PathBuf)>,
}

impl Pool {
    #[must_use]
    pub fn of(size: PageSize) -> Option<Self> {
        Self::below(Path::new(ROOT), size)
    }

    #[must_use]
    pub fn below(root: &Path, size: PageSize) -> Option<Self> {
        Self::find(root, size).ok().flatten()
    }

    pub fn find(root: &Path, size: PageSize) -> Result<Option<Self>, OsError> {
        let dir = root.join(name(size));
        Ok(is_dir(&dir)?.then_some(Self { size, dir, nodes: Vec::new() }))
    }

    /// Returns the part of the pool on `nodes`, or `None` if one of them has none.
    pub fn on_nodes(&self, root: &Path, nodes: &[Node]) -> Result<Option<Self>, OsError> {
        let mut found = Vec::with_capacity(nodes.len());
        for node in nodes {
            let dir = root.join(format!("node{}/hugepages", node.0)).join(name(self.size));
            if !is_dir(&dir)? {
                return Ok(None);
            }
            found.push((*node, dir));
        }
        Ok(Some(Self { size: self.size, dir: self.dir.clone(), nodes: found }))
    }

    /// Returns the node of a pool that is the part of one node.
    #[must_use]
    pub fn node(&self) -> Option<Node> {
        match self.nodes[..] {
            [(node, _)] => Some(node),
            _ => None,
        }
    }

    /// Returns true if this is the part of some nodes.
    #[must_use]
    pub fn is_part(&self) -> bool {
        !self.nodes.is_empty()
    }

    /// Returns the nodes of a part; none for the whole pool.
    #[must_use]
    pub fn nodes(&self) -> Vec<Node> {
        self.nodes.iter().map(|(node, _)| *node).collect()
    }

    /// Returns the part of each node, or the whole pool alone. Only these can be changed.
    #[must_use]
    pub fn parts(&self) -> Vec<Self> {
        let part = |of: &(Node, PathBuf)| Self { nodes: vec![of.clone()], ..self.clone() };
        match self.nodes[..] {
            [] => vec![self.clone()],
            _ => self.nodes.iter().map(part).collect(),
        }
    }

    /// Returns the first directory of counters.
    fn first_dir(&self) -> &Path {
        self.nodes.first().map_or(&self.dir, |(_, dir)| dir)
    }

    #[must_use]
    pub fn size(&self) -> PageSize {
        self.size
    }

    #[must_use]
    pub fn path(&self) -> PathBuf {
        self.first_dir().join("nr_hugepages")
    }

    #[must_use]
    pub fn is_writable(&self) -> bool {
        self.parts().iter().all(|part| file::check_writable(&part.path()).is_ok())
    }

    /// Reads total and surplus by `at_rest`, because a surplus page freed between the two reads
    /// would look persistent.
    pub fn counts(&self) -> Result<PoolCounts, OsError> {
        let (total, surplus) =
            at_rest(|| Ok((self.read("nr_hugepages")?, self.read("surplus_hugepages")?)))?;
        let free = self.read("free_hugepages")?;
        // Nodes do not count reserved pages. All the machine's reserved pages may be on this node.
        let reserved = file::number(self.dir.join("resv_hugepages"))?;
        Ok(PoolCounts { total, free, reserved, surplus })
    }

    pub fn total(&self) -> Result<u64, OsError> {
        self.read("nr_hugepages")
    }

    /// Returns the size into which pages can be split (Linux 5.16).
    #[must_use]
    pub fn demote_size(&self) -> Option<PageSize> {
        let text = file::read_text(&self.first_dir().join("demote_size")).ok()?;
        let kib: u64 = text.trim().strip_suffix("kB")?.parse().ok()?;
        PageSize::new(kib.checked_mul(1 << 10)?)
    }

    /// Splits free pages into pages of [`Pool::demote_size`]. The kernel may split fewer.
    pub fn demote(&self, pages: u64) -> Result<(), OsError> {
        self.write("demote", pages)
    }

    /// Asks for `pages` persistent pages. The kernel may give fewer. Blocks signals, which would
    /// end the write early.
    pub fn set_persistent(&self, pages: u64) -> Result<(), OsError> {
        let _later = signals::Blocked::new();
        self.write("nr_hugepages", pages)
    }

    pub fn overcommit(&self) -> Result<u64, OsError> {
        self.read("nr_overcommit_hugepages")
    }

    /// Sets the limit on surplus pages. Fails with EINVAL for page sizes without surplus pages,
    /// such as 1 GiB.
    pub fn set_overcommit(&self, pages: u64) -> Result<(), OsError> {
        self.write("nr_overcommit_hugepages", pages)
    }

    fn write(&self, name: &str, pages: u64) -> Result<(), OsError> {
        assert!(self.nodes.len() < 2, "a counter of several nodes cannot be set");
        file::put(self.first_dir().join(name), &pages.to_string())
    }

    fn read(&self, name: &str) -> Result<u64, OsError> {
        match &self.nodes[..] {
            [] => file::number(self.dir.join(name)),
            nodes => nodes.iter().map(|(_, dir)| file::number(dir.join(name))).sum(),
        }
    }
}

fn name(size: PageSize) -> String {
    format!("hugepages-{}kB", size.bytes().get() >> 10)
}

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
        let counts = PoolCounts { total: 10, free: 4, reserved: 1, surplus: 3 };
        assert_eq!((counts.persistent(), counts.available()), (7, 3));
        let torn = PoolCounts { total: 1, free: 1, reserved: 2, surplus: 3 };
        assert_eq!((torn.persistent(), torn.available()), (0, 0));
    }

    #[test]
    fn what_is_persistent_is_told_when_no_more_surplus_pages_go() {
        let mut left = 20_000_u64;
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
