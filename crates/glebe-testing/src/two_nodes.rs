//! [`two_nodes`] writes the kernel's files of a machine with NUMA nodes 0 and 2, and with node 1,
//! which has no memory.

use std::fs;

use crate::Scratch;

/// Huge pages: size in KiB; total, free and surplus of node 0 and of node 2; reserved.
const POOLS: [(u32, [u64; 3], [u64; 3], u64); 2] =
    [(2048, [64, 8, 0], [32, 32, 6], 3), (1_048_576, [0, 0, 0], [1, 1, 0], 0)];

/// Returns the folder that has the files in place of `/`: pools, `meminfo` of the nodes,
/// `/proc/buddyinfo` and `/proc/zoneinfo`. Node 0 has the first gibibyte if a page has 4 KiB.
pub fn two_nodes() -> Scratch {
    let scratch = Scratch::new("two-nodes");
    let put = |path: String, text: &str| {
        let path = scratch.path().join(path);
        fs::create_dir_all(path.parent().expect("the path has folders")).expect("a folder");
        fs::write(path, text).expect("a file");
    };
    let [machine, nodes] = ["sys/kernel/mm/hugepages", "sys/devices/system/node"];
    for (kib, first, last, reserved) in POOLS {
        let sum = [0, 1, 2].map(|nth| first[nth] + last[nth]);
        let parts = [(0, first), (2, last)]
            .map(|(node, counts)| (format!("{nodes}/node{node}/hugepages"), counts));
        for (dir, counts) in parts.into_iter().chain([(machine.to_owned(), sum)]) {
            for (name, value) in ["nr", "free", "surplus"].into_iter().zip(counts) {
                put(format!("{dir}/hugepages-{kib}kB/{name}_hugepages"), &format!("{value}\n"));
            }
        }
        put(format!("{machine}/hugepages-{kib}kB/resv_hugepages"), &format!("{reserved}\n"));
    }
    put(format!("{nodes}/online"), "0-2\n");
    put(format!("{nodes}/has_memory"), "0,2\n");
    for (node, free) in [(0, 100), (2, 7000)] {
        let text = format!(
            "Node {node} MemTotal:       8000 kB\nNode {node} MemFree:        {free} kB\n\
             Node {node} Active(file):      20 kB\n"
        );
        put(format!("{nodes}/node{node}/meminfo"), &text);
    }
    let blocks = "Node 0, zone      DMA      0      0      0\n\
        Node 0, zone   Normal      5      1      0\nNode 2, zone   Normal      0      0      4\n";
    put("proc/buddyinfo".to_owned(), blocks);
    let zone = |node: u32, first: u64, len: u64| {
        format!(
            "Node {node}, zone   Normal\n  pages free     0\n        high     0\n\
             \x20       spanned  {len}\n        present  {len}\n  start_pfn:           {first}\n"
        )
    };
    let border = 1 << 18;
    put("proc/zoneinfo".to_owned(), &(zone(0, 1, border - 1) + &zone(2, border, 1 << 40)));
    scratch
}
