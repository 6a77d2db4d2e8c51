//! The probe on directories that stand for machines this one is not.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

use super::machine::parse_list;
use super::{Mechanism, Roots, State, Support};

/// A directory with `proc`, `sys` and `dev`, removed when dropped.
struct Machine(PathBuf);

impl Machine {
    /// A machine with nothing; `name` is the test's, so that none shares a directory.
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
        let support = Support::probe_in(&Roots::below(&self.0));
        check_rows(&support);
        support
    }
}

impl Drop for Machine {
    fn drop(&mut self) {
        fs::remove_dir_all(&self.0).expect("the fixture directory is ours");
    }
}

/// What holds of every probe.
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
    for key in [
        "hugetlb",
        "thp",
        "thp.defrag",
        "pagemap.pfn",
        "pagemap.scan",
        "uffd.device",
        "psi",
        "psi.trigger",
        "cgroup.v1.memory",
        "cgroup.v2.memory",
        "cgroup.v2.delegated",
        "cgroup.hugetlb",
        "dma_heap",
        "udmabuf",
        "zram",
        "numa",
        "max_map_count",
        "capabilities",
    ] {
        assert_eq!(row(&support, key).state, State::No, "{key}");
        assert!(!support.has(key));
    }
    assert!(row(&support, "udmabuf").reason.contains("ENOENT"));
    assert!(row(&support, "udmabuf").remedy.contains("modprobe udmabuf"));
    assert_eq!(support.get("no.such.key"), None);
    assert!(!support.has("no.such.key"));
}

#[test]
fn dma_heaps() {
    let machine = Machine::new("dma-heaps");
    machine.file("dev/dma_heap/default_cma_region", "").file("dev/dma_heap/system", "");
    machine.file("dev/udmabuf", "").file("sys/module/udmabuf/parameters/size_limit_mb", "64\n");
    let support = machine.probe();
    assert_eq!(row(&support, "dma_heap.default_cma_region").state, State::Yes);
    // The system heap has buffers, and they are not contiguous.
    assert_eq!(row(&support, "dma_heap.system").state, State::Partly);
    assert_eq!(support.get("dma_heap"), None);
    assert_eq!(row(&support, "udmabuf").detail, "at most 64 MiB each");
}

#[test]
fn two_numa_nodes() {
    let machine = Machine::new("two-nodes");
    machine.file("sys/devices/system/node/has_memory", "0,2\n");
    for (node, kib) in [(0, 1 << 20), (2, 2 << 20)] {
        let dir = format!("sys/devices/system/node/node{node}");
        machine.file(&format!("{dir}/meminfo"), &format!("Node {node} MemTotal: {kib} kB\n"));
        let pool = format!("{dir}/hugepages/hugepages-2048kB");
        machine.file(&format!("{pool}/nr_hugepages"), "10\n");
        machine.file(&format!("{pool}/free_hugepages"), &format!("{node}\n"));
    }
    let support = machine.probe();
    assert_eq!(row(&support, "numa").detail, "2 (node 0, 2)");
    assert_eq!(row(&support, "numa.node0").detail, "1 GiB; 2048kB: 0 of 10 free");
    assert_eq!(row(&support, "numa.node2").detail, "2 GiB; 2048kB: 2 of 10 free");
    assert_eq!(support.get("numa.node1"), None);
}

#[test]
fn kernel_lists() {
    assert_eq!(parse_list("0-2,5"), [0, 1, 2, 5]);
    assert_eq!(parse_list("7"), [7]);
    assert_eq!(parse_list(""), []);
    assert_eq!(parse_list("3-1,x,-"), []);
    assert!(parse_list("0-18446744073709551615").len() < 1 << 12);
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
    assert!(odd.reason.contains("\"many\" is not a number"), "{odd:?}");
    // Smallest first, as numbers and not as names.
    let keys: Vec<&str> = support.mechanisms().iter().map(|row| &*row.key).take(3).collect();
    assert_eq!(keys, ["hugetlb.64kB", "hugetlb.32768kB", "hugetlb.1048576kB"]);
}

#[test]
fn a_size_inherits_the_top_level_mode() {
    let machine = Machine::new("thp");
    let dir = "sys/kernel/mm/transparent_hugepage";
    let modes = |top: &str| {
        machine.file(&format!("{dir}/enabled"), top);
        let own = |size: u32, text: &str| {
            machine.file(&format!("{dir}/hugepages-{size}kB/enabled"), text);
        };
        own(16, "always [inherit] madvise never\n");
        own(64, "[always] inherit madvise never\n");
        own(128, "always inherit madvise [never]\n");
        machine.file(&format!("{dir}/hugepages-8kB/shmem_enabled"), "[never]\n");
        let support = machine.probe();
        ["thp", "mthp.8kB", "mthp.16kB", "mthp.64kB", "mthp.128kB"]
            .map(|key| row(&support, key).state)
    };
    use State::{No, Yes};
    assert_eq!(modes("always [madvise] never\n"), [Yes, No, Yes, Yes, No]);
    assert_eq!(modes("always madvise [never]\n"), [No, No, No, Yes, No]);
    assert_eq!(modes("what is this\n"), [No, No, No, Yes, No]);
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
fn v2_memory_controller_with_the_least_limit_on_the_way_up() {
    let machine = Machine::new("v2");
    machine.file("proc/self/mountinfo", V2_MOUNT).file("proc/self/cgroup", "0::/a/b\n");
    let dir = "sys/fs/cgroup";
    machine.file(&format!("{dir}/a/memory.max"), "1048576\n");
    machine.file(&format!("{dir}/a/b/memory.max"), "2097152\n");
    machine.file(&format!("{dir}/memory.max"), "max\n");
    machine.file(&format!("{dir}/a/b/memory.current"), "4096\n");
    machine.file(&format!("{dir}/a/b/cgroup.controllers"), "cpu hugetlb memory\n");
    machine.file(&format!("{dir}/a/b/cgroup.procs"), "");
    machine.file(&format!("{dir}/a/b/cgroup.subtree_control"), "");
    machine.file(&format!("{dir}/a/b/hugetlb.2MB.max"), "2097152\n");
    machine.file(&format!("{dir}/a/b/hugetlb.2MB.rsvd.max"), "max\n");
    machine.file(&format!("{dir}/a/b/hugetlb.1GB.max"), "max\n");
    let support = machine.probe();
    let memory = row(&support, "cgroup.v2.memory");
    assert_eq!(memory.state, State::Yes);
    assert!(memory.detail.starts_with("limit 1 MiB, usage 4 KiB; "), "{memory:?}");
    assert!(memory.detail.ends_with("sys/fs/cgroup/a/b"), "{memory:?}");
    assert_eq!(row(&support, "cgroup.v2.delegated").state, State::Yes);
    assert_eq!(row(&support, "cgroup.v1.memory").state, State::No);
    let hugetlb = row(&support, "cgroup.hugetlb");
    assert!(hugetlb.detail.starts_with("1GB limit none, 2MB limit 2 MiB; "), "{hugetlb:?}");
}

#[test]
fn v2_without_the_memory_controller_says_why() {
    let machine = Machine::new("v2-none");
    machine.file("proc/self/mountinfo", V2_MOUNT).file("proc/self/cgroup", "0::/a/b\n");
    machine.file("sys/fs/cgroup/a/b/cgroup.controllers", "cpu\n");
    let memory = row(&machine.probe(), "cgroup.v2.memory").clone();
    assert_eq!(memory.state, State::No);
    assert!(memory.remedy.contains("echo +memory > "), "{memory:?}");
    assert!(memory.remedy.ends_with("sys/fs/cgroup/a/cgroup.subtree_control"), "{memory:?}");

    machine.file("proc/cgroups", "#subsys_name\thierarchy\nmemory\t0\t1\t0\n");
    let memory = row(&machine.probe(), "cgroup.v2.memory").clone();
    assert!(memory.remedy.contains("cgroup_disable=memory"), "{memory:?}");

    let v1 = "35 31 0:32 / /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory\n";
    machine.file("proc/self/mountinfo", &format!("{v1}{V2_MOUNT}")).file("proc/cgroups", "");
    let memory = row(&machine.probe(), "cgroup.v2.memory").clone();
    assert!(memory.remedy.contains("cgroup_no_v1=memory"), "{memory:?}");
}

#[test]
fn v1_in_a_container_that_sees_the_hosts_path() {
    let machine = Machine::new("v1");
    // The mount's root is the container's group; white space in it is escaped.
    let mounts = "35 31 0:32 /docker\\040x /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory\n";
    machine.file("proc/self/mountinfo", mounts);
    machine.file("proc/self/cgroup", "4:cpu:/\n5:memory:/docker x/job\n0::/\n");
    let dir = "sys/fs/cgroup/memory/job";
    machine.file(&format!("{dir}/memory.usage_in_bytes"), "2097152\n");
    machine.file(&format!("{dir}/memory.stat"), "cache 1\nhierarchical_memory_limit 4194304\n");
    machine.file(&format!("{dir}/cgroup.event_control"), "");
    let detail = row(&machine.probe(), "cgroup.v1.memory").detail.clone();
    assert!(detail.starts_with("limit 4 MiB, usage 2 MiB; "), "{detail}");
    assert!(detail.ends_with("memory/job"), "{detail}");

    // No limit is a number near the largest, whatever the page size.
    machine.file(&format!("{dir}/memory.stat"), "hierarchical_memory_limit 9223372036854771712\n");
    let detail = row(&machine.probe(), "cgroup.v1.memory").detail.clone();
    assert!(detail.starts_with("limit none, usage 2 MiB; "), "{detail}");
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
fn zram_and_map_count() {
    let machine = Machine::new("zram");
    machine.file("sys/block/zram10/disksize", "0\n").file("sys/block/zramp/disksize", "0\n");
    machine.file("proc/sys/vm/max_map_count", "1000\n");
    let support = machine.probe();
    assert_eq!(row(&support, "zram").detail, "zram10");
    assert_eq!(row(&support, "max_map_count").state, State::Partly);
}

#[test]
fn leaves_a_machine_as_it_was() {
    let machine = Machine::new("untouched");
    machine.pool("2048kB", [4, 4, 0, 0, 0]).file("proc/pressure/memory", "some avg10=0.00\n");
    machine.file("sys/class/zram-control/hot_add", "").file("dev/dma_heap/cma", "x");
    machine.file("dev/userfaultfd", "x").file("dev/udmabuf", "x");
    let before = contents(&machine.0);
    let first = machine.probe();
    assert_eq!(row(&first, "psi.trigger").state, State::Yes);
    assert_eq!(first, machine.probe());
    assert_eq!(contents(&machine.0), before);
}

/// The key as the manual has it, with what the machine lists replaced.
fn documented(key: &str) -> String {
    let families =
        [("hugetlb.", "SIZE"), ("demote.", "SIZE"), ("mthp.", "SIZE"), ("dma_heap.", "NAME")];
    let digits = key.trim_end_matches(|c: char| c.is_ascii_digit());
    match families.iter().find(|(family, _)| key.starts_with(family)) {
        Some((family, what)) => format!("`{family}{what}`"),
        None if digits == "numa.node" => "`numa.nodeN`".to_owned(),
        None => format!("`{key}`"),
    }
}

#[test]
fn every_row_is_in_the_manual() {
    let manual = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/kernel.md");
    let Ok(manual) = fs::read_to_string(manual) else {
        println!("skipped: docs/kernel.md is not beside the crate");
        return;
    };
    let machine = Machine::new("manual");
    machine.file("dev/dma_heap/cma", "");
    for support in [Support::probe(), machine.probe()] {
        for row in support.mechanisms().iter().filter(|row| row.key != "hugetlb") {
            let key = documented(&row.key);
            assert!(manual.contains(&key), "docs/kernel.md lacks {key}");
        }
    }
}
