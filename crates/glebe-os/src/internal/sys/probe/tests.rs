//! Tests the probe on directories that represent other machines.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

use super::{Mechanism, State, Support};

struct Machine(PathBuf);

impl Machine {
    fn new(name: &str) -> Self {
        let dir = std::env::temp_dir().join(format!("glebe-probe-{}-{name}", std::process::id()));
        for root in ["proc", "sys", "dev"] {
            fs::create_dir_all(dir.join(root)).unwrap();
        }
        Self(dir)
    }

    fn file(&self, path: &str, text: &str) -> &Self {
        let path = self.0.join(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, text).unwrap();
        self
    }

    fn pool(&self, size: &str, counts: [u64; 5]) -> &Self {
        let names = ["nr", "free", "resv", "surplus", "nr_overcommit"];
        for (name, count) in names.iter().zip(counts) {
            let path = format!("sys/kernel/mm/hugepages/hugepages-{size}/{name}_hugepages");
            self.file(&path, &format!("{count}\n"));
        }
        self
    }

    fn probe(&self) -> Support {
        let support = Support::probe_below(&self.0);
        check_rows(&support);
        support
    }
}

impl Drop for Machine {
    fn drop(&mut self) {
        fs::remove_dir_all(&self.0).expect("the fixture directory is ours");
    }
}

fn check_rows(support: &Support) {
    let mut keys = BTreeSet::new();
    for row in support.mechanisms() {
        assert!(keys.insert(&row.key), "{} twice", row.key);
        assert!(!row.key.contains(char::is_whitespace), "{row:?}");
        assert!(!row.name.is_empty(), "{row:?}");
        let plain = row.state == State::Yes;
        assert_eq!(plain, row.reason.is_empty(), "{row:?}");
        assert_eq!(plain, row.remedy.is_empty(), "{row:?}");
        for text in [&row.name, &row.detail, &row.reason, &row.remedy] {
            assert!(!text.contains('\n'), "{row:?}");
        }
    }
}

fn row<'a>(support: &'a Support, key: &str) -> &'a Mechanism {
    support.get(key).unwrap_or_else(|| panic!("no row {key}: {support:#?}"))
}

fn contents(dir: &Path) -> BTreeMap<PathBuf, Vec<u8>> {
    let mut all = BTreeMap::new();
    for entry in fs::read_dir(dir).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            all.extend(contents(&path));
        } else {
            all.insert(path.clone(), fs::read(&path).unwrap());
        }
    }
    all
}

#[test]
fn this_machine() {
    check_rows(&Support::probe());
}

#[test]
fn an_empty_machine_has_a_reason_for_everything() {
    let machine = Machine::new("empty");
    let support = machine.probe();
    assert_eq!(support.release(), "");
    for key in ["hugetlb", "thp", "thp.defrag", "dma_heap", "numa", "max_map_count", "capabilities"]
    {
        assert_eq!(row(&support, key).state, State::No, "{key}");
        assert!(!support.has(key));
    }
    assert!(row(&support, "numa").reason.contains("No such file"));
    assert_eq!(row(&support, "cgroup.memory").detail, "no limit");
    assert_eq!(support.get("no.such.key"), None);
    assert!(!support.has("no.such.key"));
}

#[test]
fn dma_heaps() {
    let machine = Machine::new("dma-heaps");
    machine.file("dev/dma_heap/default_cma_region", "").file("dev/dma_heap/system", "");
    let support = machine.probe();
    assert_eq!(row(&support, "dma_heap.default_cma_region").state, State::Yes);
    assert_eq!(row(&support, "dma_heap.system").state, State::Partly);
    assert_eq!(support.get("dma_heap"), None);
}

#[test]
fn two_numa_nodes() {
    let machine = Machine::new("two-nodes");
    machine.file("sys/devices/system/node/has_memory", "0,2\n");
    assert_eq!(row(&machine.probe(), "numa").detail, "2 (node 0, 2)");
}

#[test]
fn pools_of_every_size() {
    let machine = Machine::new("pools");
    machine.pool("64kB", [1, 2, 3, 4, 5]).pool("1048576kB", [2, 2, 0, 0, 0]);
    machine.file("sys/kernel/mm/hugepages/hugepages-1048576kB/demote", "");
    machine.file("sys/kernel/mm/hugepages/hugepages-1048576kB/demote_size", "64kB\n");
    machine.file("sys/kernel/mm/hugepages/hugepages-32768kB/nr_hugepages", "many\n");
    let support = machine.probe();
    let small = row(&support, "hugetlb.64kB");
    assert_eq!(small.state, State::Yes);
    assert!(small.detail.starts_with("nr 1, free 2, reserved 3, surplus 4, overcommit 5; can"));
    assert!(row(&support, "hugetlb.1048576kB").name.contains("1 GiB"));
    assert_eq!(row(&support, "demote.1048576kB").detail, "to 64kB");
    let odd = row(&support, "hugetlb.32768kB");
    assert_eq!(odd.state, State::No);
    assert!(odd.reason.contains("\"many\""), "{odd:?}");
    // Sorted as numbers, not as names.
    let keys: Vec<&str> = support.mechanisms().iter().map(|row| &*row.key).take(3).collect();
    assert_eq!(keys, ["hugetlb.64kB", "hugetlb.32768kB", "hugetlb.1048576kB"]);
}

#[test]
fn transparent_huge_pages_that_are_off() {
    let machine = Machine::new("thp");
    let dir = "sys/kernel/mm/transparent_hugepage";
    let state = |top: &str| {
        machine.file(&format!("{dir}/enabled"), top);
        row(&machine.probe(), "thp").state
    };
    assert_eq!(state("always [madvise] never\n"), State::Yes);
    assert_eq!(state("always madvise [never]\n"), State::No);
    assert_eq!(state("what is this\n"), State::No);
}

#[test]
fn defrag_that_never_compacts() {
    let machine = Machine::new("defrag");
    let file = "sys/kernel/mm/transparent_hugepage/defrag";
    let state = |text: &str| row(&machine.file(file, text).probe(), "thp.defrag").state;
    assert_eq!(state("always defer defer+madvise [madvise] never\n"), State::Yes);
    assert_eq!(state("always [defer] defer+madvise madvise never\n"), State::No);
    assert_eq!(state("always defer defer+madvise madvise [never]\n"), State::No);
}

const V2_MOUNT: &str =
    "25 1 0:22 / /sys/fs/cgroup rw,nosuid shared:4 - cgroup2 cgroup2 rw,nsdelegate\n";

#[test]
fn the_least_limit_on_the_way_up_is_told() {
    let machine = Machine::new("v2");
    machine.file("proc/self/mountinfo", V2_MOUNT).file("proc/self/cgroup", "0::/a/b\n");
    let dir = "sys/fs/cgroup";
    for (group, limit) in [("a/", "1048576\n"), ("a/b/", "2097152\n"), ("", "max\n")] {
        machine.file(&format!("{dir}/{group}memory.max"), limit);
        machine.file(&format!("{dir}/{group}memory.current"), "4096\n");
    }
    machine.pool("2048kB", [0; 5]).pool("1048576kB", [0; 5]);
    machine.file(&format!("{dir}/a/b/hugetlb.2MB.max"), "2097152\n");
    machine.file(&format!("{dir}/a/b/hugetlb.2MB.current"), "0\n");
    machine.file(&format!("{dir}/a/b/hugetlb.1GB.max"), "max\n");
    let support = machine.probe();
    let memory = row(&support, "cgroup.memory");
    assert!(memory.detail.starts_with("limit 1 MiB, usage 4 KiB, "), "{memory:?}");
    assert!(memory.detail.ends_with("sys/fs/cgroup/a/memory.max"), "{memory:?}");
    let hugetlb = row(&support, "cgroup.hugetlb");
    assert!(hugetlb.detail.starts_with("1 GiB: no limit; 2 MiB: limit 2 MiB, "), "{hugetlb:?}");
}

#[test]
fn v1_in_a_container_that_sees_the_hosts_path() {
    let machine = Machine::new("v1");
    let mounts = "35 31 0:32 /docker\\040x /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory\n";
    machine.file("proc/self/mountinfo", mounts);
    machine.file("proc/self/cgroup", "4:cpu:/\n5:memory:/docker x/job\n0::/\n");
    let dir = "sys/fs/cgroup/memory/job";
    machine.file(&format!("{dir}/memory.usage_in_bytes"), "2097152\n");
    machine.file(&format!("{dir}/memory.limit_in_bytes"), "4194304\n");
    let detail = row(&machine.probe(), "cgroup.memory").detail.clone();
    assert!(detail.starts_with("limit 4 MiB, usage 2 MiB, "), "{detail}");
    assert!(detail.ends_with("memory/job/memory.limit_in_bytes"), "{detail}");

    // Without a limit the file holds a number near the maximum.
    machine.file(&format!("{dir}/memory.limit_in_bytes"), "9223372036854771712\n");
    assert_eq!(row(&machine.probe(), "cgroup.memory").detail, "no limit");
}

#[test]
fn capabilities_by_name() {
    let machine = Machine::new("capabilities");
    // CAP_IPC_LOCK and CAP_SYS_ADMIN.
    machine.file("proc/self/status", "Name:\tx\nCapEff:\t0000000000204000\n");
    let support = machine.probe();
    let held = row(&support, "capabilities");
    assert_eq!(held.state, State::Partly);
    assert!(held.detail.contains("CAP_IPC_LOCK") && held.detail.contains("CAP_SYS_ADMIN"));
    assert!(!held.detail.contains("CAP_SYS_NICE") && held.reason.contains("CAP_SYS_NICE"));
    assert!(held.remedy.contains("cap_sys_nice") && !held.remedy.contains("cap_sys_admin"));
    assert_eq!(row(&support, "mlock").state, State::Yes);
}

#[test]
fn few_mappings() {
    let machine = Machine::new("mappings");
    machine.file("proc/sys/vm/max_map_count", "1000\n");
    assert_eq!(row(&machine.probe(), "max_map_count").state, State::Partly);
}

#[test]
fn leaves_a_machine_as_it_was() {
    let machine = Machine::new("untouched");
    machine.pool("2048kB", [4, 4, 0, 0, 0]).file("dev/dma_heap/cma", "x");
    machine.file("sys/kernel/mm/hugepages/hugepages-2048kB/demote", "x");
    machine.file("sys/kernel/mm/hugepages/hugepages-2048kB/demote_size", "4kB\n");
    let before = contents(&machine.0);
    let first = machine.probe();
    assert_eq!(row(&first, "demote.2048kB").state, State::Yes);
    assert_eq!(first, machine.probe());
    assert_eq!(contents(&machine.0), before);
}

fn documented(key: &str) -> String {
    let families = [("hugetlb.", "SIZE"), ("demote.", "SIZE"), ("dma_heap.", "NAME")];
    match families.iter().find(|(family, _)| key.starts_with(family)) {
        Some((family, what)) => format!("`{family}{what}`"),
        None => format!("`{key}`"),
    }
}

#[test]
fn every_row_is_in_the_manual() {
    let manual = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/internals/kernel.md");
    let Ok(manual) = fs::read_to_string(manual) else {
        println!("skipped: docs/internals/kernel.md is not beside the crate");
        return;
    };
    let machine = Machine::new("manual");
    machine.file("dev/dma_heap/cma", "");
    for support in [Support::probe(), machine.probe()] {
        for row in support.mechanisms().iter().filter(|row| row.key != "hugetlb") {
            let key = documented(&row.key);
            assert!(manual.contains(&key), "docs/internals/kernel.md lacks {key}");
        }
    }
}
