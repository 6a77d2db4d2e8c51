//! Changes a NUMA node's part of the 2 MiB pool, as an administrator would.

use std::fs;
use std::path::{Path, PathBuf};

use glebe::contig::{Contig, Node, PoolLock};
use glebe::internal::sys::machine::numa;
use glebe::internal::sys::page_size;

use glebe_testing::turn::POOL;

const BLOCKS: &str = "/sys/devices/system/memory";

/// Idle pages added to a node.
pub struct Idle {
    file: PathBuf,
    before: u64,
}

impl Idle {
    pub fn on(node: Node, pages: u64) -> Option<Self> {
        let _lock = PoolLock::acquire().unwrap();
        let whole = Path::new(POOL);
        if count(whole, "nr_hugepages") != count(whole, "free_hugepages") {
            println!("skipped: the pool is in use");
            return None;
        }
        let (file, before) = (dir(node).join("nr_hugepages"), counts(node)[0]);
        let idle = Self { file, before };
        if let Err(error) = fs::write(&idle.file, (before + pages).to_string()) {
            println!("skipped: {}: {error}", idle.file.display());
            return None;
        }
        let came = counts(node)[0] - before;
        if came < pages {
            println!("skipped: {came} of {pages} idle pages came on {node}");
            return None;
        }
        Some(idle)
    }
}

impl Drop for Idle {
    fn drop(&mut self) {
        let _ = fs::write(&self.file, self.before.to_string());
    }
}

pub fn counts(node: Node) -> [u64; 3] {
    ["nr_hugepages", "free_hugepages", "surplus_hugepages"].map(|name| count(&dir(node), name))
}

fn dir(node: Node) -> PathBuf {
    let part = format!("/sys/devices/system/node/node{}/hugepages/hugepages-2048kB", node.0);
    Some(PathBuf::from(part)).filter(|dir| dir.exists()).unwrap_or_else(|| PathBuf::from(POOL))
}

fn count(dir: &Path, name: &str) -> u64 {
    fs::read_to_string(dir.join(name)).unwrap().trim().parse().unwrap()
}

pub fn is_on(frame: u64, node: Node) -> bool {
    if numa::online().len() == 1 {
        return true;
    }
    let text = fs::read_to_string(Path::new(BLOCKS).join("block_size_bytes")).unwrap();
    let size = u64::from_str_radix(text.trim(), 16).unwrap();
    let block = frame / (size / page_size().bytes().get());
    Path::new(BLOCKS).join(format!("memory{block}/node{}", node.0)).exists()
}

pub fn is_all_on(memory: &Contig, node: Node) -> bool {
    memory.runs().iter().all(|run| {
        let first = run.pfn.unwrap().get();
        is_on(first, node) && is_on(first + run.pages.len() - 1, node)
    })
}

pub fn several() -> Option<Vec<Node>> {
    let nodes = numa::online();
    if nodes.len() < 2 {
        println!("skipped: the machine has one NUMA node");
        return None;
    }
    Some(nodes)
}
