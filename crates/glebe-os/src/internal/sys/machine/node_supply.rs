//! [`Supply`] is what a NUMA node has: pools of huge pages, memory, and its longest free block.
//!
//! The kernel counts reserved huge pages for the whole machine, so any of a node's free huge pages
//! may be reserved. Cost: two small files a node, and five a pool of a node. Source:
//! admin-guide/mm/hugetlbpage.

use std::path::Path;

use super::buddyinfo;
use super::hugetlb::{self, Pool, PoolCounts};
use super::meminfo::Machine;
use super::node_memory;
use super::numa::{self, Node};
use crate::error::OsError;
use crate::internal::sys::files::file;
use crate::units::{Bytes, PageSize};

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Supply {
    pub node: Node,
    pub memory: Machine,
    /// The longest block in the kernel's free lists; `None` if they are hidden.
    pub longest_block: Option<Bytes>,
    /// Pools with the largest pages first. `reserved` is the machine's.
    pub pools: Vec<(PageSize, PoolCounts)>,
}

impl Supply {
    /// Returns the supply of each node that has memory, from the files below `root`.
    pub fn below(root: &Path) -> Result<Vec<Self>, OsError> {
        numa::with_memory_below(root).into_iter().map(|node| Self::of(root, node)).collect()
    }

    fn of(root: &Path, node: Node) -> Result<Self, OsError> {
        let [machine, nodes] =
            [hugetlb::ROOT, numa::ROOT].map(|dir| root.join(dir.trim_start_matches('/')));
        let mut pools = Vec::new();
        for size in file::page_sizes(&machine) {
            let pool = Pool::below(&machine, size);
            let part = pool.map(|pool| pool.on_nodes(&nodes, &[node])).transpose()?.flatten();
            if let Some(part) = part {
                pools.push((size, part.counts()?));
            }
        }
        let longest_block = buddyinfo::longest_free_block_on(root, node).ok();
        Ok(Self { node, memory: node_memory::below(root, node)?, longest_block, pools })
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use glebe_testing::two_nodes;

    use super::*;
    use crate::internal::sys::page_size;
    use crate::units::Pages;

    #[test]
    fn each_node_with_memory_has_its_own_pools_and_memory() {
        let scratch = two_nodes();
        let all = Supply::below(scratch.path()).unwrap();
        let numbers: Vec<u32> = all.iter().map(|supply| supply.node.0).collect();
        assert_eq!(numbers, [0, 2]);
        let counts = |total, free, surplus, reserved| PoolCounts { total, free, reserved, surplus };
        let pools = |of: &Supply| of.pools.iter().map(|(_, counts)| *counts).collect::<Vec<_>>();
        assert_eq!(pools(&all[0]), [counts(0, 0, 0, 0), counts(64, 8, 0, 3)]);
        assert_eq!(pools(&all[1]), [counts(1, 1, 0, 0), counts(32, 32, 6, 3)]);
        let kib =
            |of: &Supply| [of.memory.free, of.memory.available].map(|bytes| bytes.get() >> 10);
        assert_eq!([kib(&all[0]), kib(&all[1])], [[100, 110], [7000, 7010]]);
        let blocks = all.iter().map(|of| of.longest_block.unwrap().pages_down(page_size()));
        assert_eq!(blocks.collect::<Vec<_>>(), [Pages::new(2), Pages::new(4)]);
    }

    #[test]
    fn hidden_free_lists_are_no_error_and_missing_memory_is() {
        let scratch = two_nodes();
        fs::remove_file(scratch.path().join("proc/buddyinfo")).unwrap();
        let all = Supply::below(scratch.path()).unwrap();
        assert!(all.iter().all(|of| of.longest_block.is_none()), "{all:?}");
        let meminfo = "sys/devices/system/node/node2/meminfo";
        fs::remove_file(scratch.path().join(meminfo)).unwrap();
        let error = Supply::below(scratch.path()).unwrap_err().to_string();
        assert!(error.contains(meminfo), "{error}");
        assert_eq!(Supply::below("/nowhere".as_ref()).unwrap(), []);
    }

    #[test]
    fn the_nodes_of_this_machine_have_all_of_its_huge_pages() {
        let sum = || -> Vec<(PageSize, u64)> {
            let all = Supply::below("/".as_ref()).unwrap();
            let of = |size| {
                let pools = all.iter().flat_map(|supply| &supply.pools);
                (size, pools.filter(|pool| pool.0 == size).map(|pool| pool.1.total).sum())
            };
            hugetlb::sizes().into_iter().map(of).collect()
        };
        let total = |size| Pool::of(size).unwrap().total().unwrap();
        let whole = || -> Vec<(PageSize, u64)> {
            hugetlb::sizes().into_iter().map(|size| (size, total(size))).collect()
        };
        if !file::exists(numa::ROOT.as_ref()).unwrap_or(false) {
            return println!("skipped: the machine lists no nodes");
        }
        // Other tests change the pools meanwhile.
        assert!((0..1000).any(|_| sum() == whole()), "{:?} of {:?}", sum(), whole());
    }
}
