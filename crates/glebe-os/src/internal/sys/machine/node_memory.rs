//! Reads the memory of NUMA nodes from `/sys/devices/system/node/nodeN/meminfo`. If `/proc/meminfo`
//! is hidden (`ProcSubset=pid`), adds up the nodes or asks sysinfo(2).
//!
//! A node's file has no available memory, so [`of`] adds free memory, half of the file pages and
//! half of the reclaimable slabs, which is usually less than the kernel's estimate. Source:
//! drivers/base/node.c, sysinfo(2).
#![allow(unsafe_code)]

use std::fs::{File, OpenOptions};
use std::path::{Path, PathBuf};

use crate::error::OsError;
use crate::internal::sys::call::answer;
use crate::internal::sys::files::file;
use crate::internal::sys::machine::meminfo::{no_files, parse, Machine};
use crate::internal::sys::machine::numa::{self, Node};
use crate::units::Bytes;

const TEXT_MAX: usize = 4 << 10;

pub fn of(node: Node) -> Result<Machine, OsError> {
    below(Path::new("/"), node)
}

/// Reads the node's file below `root` instead of `/`.
pub fn below(root: &Path, node: Node) -> Result<Machine, OsError> {
    let path = path(&root.join(numa::ROOT.trim_start_matches('/')), node);
    let text = file::text(&path)?;
    read(&text).ok_or_else(|| file::strange(&path, "no MemTotal or MemFree"))
}

pub fn of_machine() -> Option<Machine> {
    let nodes = numa::online();
    let all: Option<Vec<Machine>> = nodes.into_iter().map(|node| of(node).ok()).collect();
    all.map(sum).or_else(rough)
}

/// Asks sysinfo(2), which omits the page cache of files, so available memory is too small.
/// Allocates nothing.
pub fn rough() -> Option<Machine> {
    // SAFETY: zeros are valid.
    let mut info: libc::sysinfo = unsafe { std::mem::zeroed() };
    // SAFETY: the kernel fills the local.
    answer("sysinfo", || unsafe { libc::sysinfo(&raw mut info) }).ok()?;
    let bytes = |units: u64| Bytes::new(units.saturating_mul(u64::from(info.mem_unit.max(1))));
    let available = bytes(info.freeram.saturating_add(info.bufferram));
    let (total, free) = (bytes(info.totalram), bytes(info.freeram));
    Some(Machine { total, free, available, no_files: None })
}

#[derive(Debug, Default)]
pub struct Nodes(Vec<File>);

impl Nodes {
    /// Opens the file of each online node, or none if one fails.
    pub fn open(root: &Path) -> Self {
        let dir = root.join(numa::ROOT.trim_start_matches('/'));
        let listed = file::read_text(&dir.join("online")).unwrap_or_default();
        let open = |node| file::open(&path(&dir, node), OpenOptions::new().read(true)).ok();
        Self(numa::listed(&listed).into_iter().map(open).collect::<Option<_>>().unwrap_or_default())
    }

    /// Returns `None` if no file is open or one cannot be read. Allocates nothing.
    pub fn look(&self) -> Option<Machine> {
        let look = |file: &File| {
            let mut buf = [0; TEXT_MAX];
            let len = file::read_some_at(file, &mut buf, 0).ok()?;
            read(std::str::from_utf8(&buf[..len]).ok()?)
        };
        let mut sum = None;
        for file in &self.0 {
            let node = look(file)?;
            sum = Some(sum.map_or(node, |sum| plus(sum, node)));
        }
        sum
    }
}

fn path(root: &Path, node: Node) -> PathBuf {
    root.join(format!("node{}/meminfo", node.0))
}

fn sum(nodes: Vec<Machine>) -> Machine {
    let none = Machine { no_files: Some(Bytes::ZERO), ..Machine::default() };
    nodes.into_iter().fold(none, plus)
}

fn plus(one: Machine, other: Machine) -> Machine {
    Machine {
        total: one.total + other.total,
        free: one.free + other.free,
        available: one.available + other.available,
        no_files: one.no_files.zip(other.no_files).map(|(one, other)| one + other),
    }
}

/// Parses lines like "Node 0 MemTotal:  24346680 kB".
fn read(text: &str) -> Option<Machine> {
    let line = |name| parse(text, name);
    let (total, free) = (line("MemTotal")?, line("MemFree")?);
    let half = |name| Bytes::new(line(name).map_or(0, |bytes| bytes.get() / 2));
    let given_back = half("Active(file)") + half("Inactive(file)") + half("SReclaimable");
    let available = free + given_back;
    // In some virtual machines MemTotal is too small, while MemFree is right.
    let total = total.max(available);
    // Swap cache does not count, as in `Cached` of `/proc/meminfo`.
    let cached = line("FilePages")
        .map(|pages| pages.saturating_sub(line("SwapCached").unwrap_or(Bytes::ZERO)));
    Some(Machine { total, free, available, no_files: no_files(text, cached) })
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: &str = "Node 1 MemTotal:  1000 kB\nNode 1 MemFree:  100 kB\n\
        Node 1 SwapCached:  5 kB\nNode 1 Active(file):  60 kB\nNode 1 Inactive(file):  80 kB\n\
        Node 1 FilePages:  135 kB\nNode 1 Shmem:  20 kB\nNode 1 SReclaimable:  40 kB\n";

    #[test]
    fn half_of_what_the_kernel_can_drop_is_available() {
        let kib = |kib: u64| Bytes::new(kib << 10);
        let node = read(TEXT).unwrap();
        assert_eq!((node.total, node.free, node.available), (kib(1000), kib(100), kib(190)));
        assert_eq!(node.no_files, Some(kib(30)), "140 on the lists, 110 of them files");
        let two = sum(vec![node, node]);
        assert_eq!((two.available, two.no_files), (kib(380), Some(kib(60))));
        assert_eq!(read("Node 1 MemTotal: 9 kB\n"), None);
        let half_counted = read("Node 1 MemTotal: 9 kB\nNode 1 MemFree: 30 kB\n").unwrap();
        assert_eq!((half_counted.total, half_counted.available), (kib(30), kib(30)));
    }

    #[test]
    fn the_nodes_and_the_call_say_what_the_list_of_the_machine_says() {
        let total = || crate::internal::sys::machine::meminfo::read("MemTotal").unwrap();
        let mut before = total();
        let (rough, nodes) = loop {
            let told = (rough().unwrap(), of_machine().unwrap());
            match total() {
                after if after == before => break told,
                after => before = after,
            }
        };
        assert_eq!(rough.total, before);
        assert!(nodes.total <= before, "{} of {before}", nodes.total);
        assert!(rough.available <= rough.total && rough.free <= rough.available);
        assert!(nodes.free <= nodes.available && nodes.available <= nodes.total);
        let open = Nodes::open(Path::new("/")).look();
        assert_eq!(open.is_some(), of(Node(0)).is_ok());
        assert_eq!(Nodes::open(Path::new("/nowhere")).look(), None);
    }
}
