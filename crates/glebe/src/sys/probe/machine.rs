//! The machine's shape: NUMA nodes, memory policy, the limit on mappings.
//!
//! Source: `Documentation/admin-guide/mm/numaperf.rst`, mbind(2),
//! `Documentation/admin-guide/sysctl/vm.rst`.

use std::path::Path;

use super::call::Scratch;
use super::mechanism::{Mechanism, State};
use super::roots::{number, page_sizes, remedy, text, why, why_path, Roots};
use crate::units::Bytes;

/// The kernel's default of `vm.max_map_count`.
const MAP_COUNT_DEFAULT: u64 = 65_530;

/// More nodes than any kernel is built for, so that a wild list ends.
const NODES_MAX: usize = 1 << 10;

pub(super) fn rows(roots: &Roots, out: &mut Vec<Mechanism>) {
    node_rows(roots, out);
    let name = "memory policy of a range (mbind)";
    out.push(match Scratch::new().and_then(|page| page.bind_default()) {
        Ok(()) => Mechanism::yes("numa.policy", name, ""),
        Err(error) => Mechanism::no(
            "numa.policy",
            name,
            why("mbind(2)", &error),
            remedy("mbind", &error, "a kernel with CONFIG_NUMA=y"),
        ),
    });
    out.push(map_count_row(roots));
}

fn node_rows(roots: &Roots, out: &mut Vec<Mechanism>) {
    let dir = roots.sys.join("devices/system/node");
    let file = dir.join("has_memory");
    let name = "NUMA nodes with memory";
    let nodes = text(&file).map(|list| parse_list(&list));
    match nodes {
        Ok(nodes) if !nodes.is_empty() => {
            let list: Vec<String> = nodes.iter().map(u64::to_string).collect();
            let detail = format!("{} (node {})", nodes.len(), list.join(", "));
            out.push(Mechanism::yes("numa", name, detail));
            out.extend(nodes.iter().map(|node| node_row(&dir.join(format!("node{node}")), *node)));
        }
        Ok(_) => out.push(Mechanism::no(
            "numa",
            name,
            format!("{} lists none", file.display()),
            "a kernel with CONFIG_NUMA=y",
        )),
        Err(error) => out.push(Mechanism::no(
            "numa",
            name,
            why_path(&file, &error),
            "a kernel with CONFIG_NUMA=y, and /sys mounted",
        )),
    }
}

fn node_row(dir: &Path, node: u64) -> Mechanism {
    let key = format!("numa.node{node}");
    let name = format!("memory of node {node}");
    let file = dir.join("meminfo");
    let meminfo = match text(&file) {
        Ok(meminfo) => meminfo,
        Err(error) => return Mechanism::no(key, name, why_path(&file, &error), "mount /sys"),
    };
    let mut words = meminfo.split_whitespace().skip_while(|word| *word != "MemTotal:").skip(1);
    let total: u64 = words.next().and_then(|kib| kib.parse().ok()).unwrap_or_default();
    let mut detail = Bytes::new(total << 10).to_string();
    for (_, size) in page_sizes(&dir.join("hugepages")) {
        let pool = dir.join("hugepages").join(format!("hugepages-{size}"));
        let count = |name: &str| number(&pool.join(name)).unwrap_or_default();
        let (free, nr) = (count("free_hugepages"), count("nr_hugepages"));
        detail.push_str(&format!("; {size}: {free} of {nr} free"));
    }
    Mechanism::yes(key, name, detail)
}

/// Numbers of a kernel list such as `0-2,5`; what cannot be read is left out.
pub(super) fn parse_list(list: &str) -> Vec<u64> {
    let mut numbers = Vec::new();
    for part in list.split(',') {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        if let (Ok(first), Ok(last)) = (first.trim().parse::<u64>(), last.trim().parse()) {
            numbers.extend((first..=last).take(NODES_MAX));
        }
    }
    numbers
}

fn map_count_row(roots: &Roots) -> Mechanism {
    const KEY: &str = "max_map_count";
    const NAME: &str = "mappings a process may have";
    let path = roots.proc.join("sys/vm/max_map_count");
    let remedy = format!("as root: sysctl -w vm.max_map_count={MAP_COUNT_DEFAULT}");
    match number(&path) {
        Ok(n) if n >= MAP_COUNT_DEFAULT => Mechanism::yes(KEY, NAME, n.to_string()),
        Ok(n) => {
            let reason = format!("{n} is fewer than the kernel's default");
            Mechanism::yes(KEY, NAME, n.to_string()).lacking(State::Partly, reason, remedy)
        }
        Err(error) => Mechanism::no(KEY, NAME, why_path(&path, &error), remedy),
    }
}
