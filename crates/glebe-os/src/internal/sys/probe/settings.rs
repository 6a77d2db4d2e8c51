//! Finds which mechanisms the machine's pools, modes, devices, limits and capabilities allow.
//!
//! All files are below a root, which a test replaces. Source: admin-guide/mm (hugetlbpage,
//! transhuge), userspace-api/dma-buf-heaps, capabilities(7), mlock(2).

use std::path::Path;

use super::{Mechanism, State};
use crate::error::OsError;
use crate::internal::sys::files::file;
use crate::internal::sys::machine::cgroup::{Limits, Resource};
use crate::internal::sys::machine::hugetlb::Pool;
use crate::internal::sys::machine::limits;
use crate::internal::sys::machine::numa;
use crate::units::{Bytes, PageSize};

const MAP_COUNT_DEFAULT: u64 = 65_530;
/// Prefix of heaps whose buffers are not physically contiguous.
const SCATTERED_HEAP: &str = "system";
/// Bit and name of a capability, and its use in glebe.
const WANTED: [(u32, &str, &str); 5] = [
    (1, "CAP_DAC_OVERRIDE", "pools and cgroups"),
    (IPC_LOCK, "CAP_IPC_LOCK", "mlock without limit"),
    (19, "CAP_SYS_PTRACE", "userfaultfd of kernel faults"),
    (21, "CAP_SYS_ADMIN", "page frame numbers"),
    (23, "CAP_SYS_NICE", "memory policies where a profile asks for it"),
];
const IPC_LOCK: u32 = 14;

pub(super) fn rows(root: &Path) -> Vec<Mechanism> {
    let mut rows = Vec::new();
    let pools = root.join("sys/kernel/mm/hugepages");
    let sizes = file::page_sizes(&pools);
    let row = Mechanism::yes("hugetlb", "hugetlb pools", "");
    if sizes.is_empty() {
        let reason = format!("no pool below {}", pools.display());
        rows.push(row.not(reason, "a kernel with CONFIG_HUGETLBFS=y, and /sys mounted"));
    }
    rows.extend(sizes.iter().rev().map(|size| pool(&pools, *size)));
    rows.extend(sizes.iter().rev().filter_map(|size| demotion(&pools, *size)));
    transparent(&root.join("sys/kernel/mm/transparent_hugepage"), &mut rows);
    heaps(&root.join("dev/dma_heap"), &mut rows);
    rows.push(nodes(&root.join("sys/devices/system/node/has_memory")));
    rows.push(map_count(&root.join("proc/sys/vm/max_map_count")));
    let held = capabilities(&root.join("proc/self/status"));
    rows.push(locked_memory(*held.as_ref().unwrap_or(&0) >> IPC_LOCK & 1 == 1));
    rows.push(groups("cgroup.memory", "memory cgroups above", root, &[Resource::Memory]));
    let sizes: Vec<_> = sizes.into_iter().map(Resource::Hugetlb).collect();
    rows.push(groups("cgroup.hugetlb", "hugetlb cgroups above", root, &sizes));
    rows.push(capability_row(held));
    rows
}

fn named(size: PageSize) -> String {
    format!("{}kB", size.bytes().get() >> 10)
}

fn echo(what: &str, path: &Path) -> String {
    format!("as root: echo {what} > {}", path.display())
}

fn pool(pools: &Path, size: PageSize) -> Mechanism {
    let key = format!("hugetlb.{}", named(size));
    let row = Mechanism::yes(key, format!("hugetlb pool of {} pages", size.bytes()), "");
    let nr = pools.join(format!("hugepages-{}/nr_hugepages", named(size)));
    let read = Pool::find(pools, size).and_then(|pool| match pool {
        Some(pool) => Ok(Some((pool.counts()?, pool.overcommit()?))),
        None => Ok(None),
    });
    let (counts, overcommit) = match read {
        Ok(read) => read.unwrap_or_default(),
        Err(error) => return row.not(error, echo("N", &nr)),
    };
    let writable = file::check_writable(&nr);
    let detail = format!(
        "nr {}, free {}, reserved {}, surplus {}, overcommit {overcommit}; {}",
        counts.total,
        counts.free,
        counts.reserved,
        counts.surplus,
        if writable.is_ok() { "can be grown" } else { "cannot be grown by this process" }
    );
    let row = Mechanism { detail, ..row };
    // A mapping could get this many pages without a larger pool.
    let available = counts.available() + overcommit.saturating_sub(counts.surplus);
    match writable {
        Ok(()) => row,
        Err(error) if available > 0 => row.but(State::Partly, error, echo("N", &nr)),
        Err(error) => row.not(format!("no page is free and {error}"), echo("N", &nr)),
    }
}

fn demotion(pools: &Path, size: PageSize) -> Option<Mechanism> {
    let to = Pool::find(pools, size).ok()??.demote_size()?;
    let name = format!("demotion of free {} pages", size.bytes());
    let row = Mechanism::yes(format!("demote.{}", named(size)), name, format!("to {}", named(to)));
    let path = pools.join(format!("hugepages-{}/demote", named(size)));
    Some(match file::check_writable(&path) {
        Ok(()) => row,
        Err(error) => row.not(error, echo("N", &path)),
    })
}

fn transparent(dir: &Path, rows: &mut Vec<Mechanism>) {
    const NEEDS: &str = "a kernel with CONFIG_TRANSPARENT_HUGEPAGE=y";
    let mode_row = |key: &str, name: &str, path: &Path, good: &dyn Fn(&str) -> bool| {
        let row = Mechanism::yes(key, name, "");
        match file::chosen(path) {
            Ok(mode) if good(&mode) => Mechanism { detail: mode, ..row },
            Ok(mode) => {
                let reason = format!("{} is {mode}", path.display());
                Mechanism { detail: mode, ..row }.not(reason, echo("madvise", path))
            }
            Err(error) => row.not(error, NEEDS),
        }
    };
    let (name, is_on) = ("transparent huge pages", |mode: &str| mode != "never");
    rows.push(mode_row("thp", name, &dir.join("enabled"), &is_on));
    let compacts = |mode: &str| ["always", "defer+madvise", "madvise"].contains(&mode);
    let name = "compaction at the fault of an advised range";
    rows.push(mode_row("thp.defrag", name, &dir.join("defrag"), &compacts));
}

fn heaps(dir: &Path, rows: &mut Vec<Mechanism>) {
    const NEEDS: &str = "a CMA heap: boot with cma=SIZE, CONFIG_DMABUF_HEAPS_CMA=y";
    let mut heaps = file::names(dir).unwrap_or_default();
    heaps.sort_unstable();
    if heaps.is_empty() {
        let reason = format!("no device below {}", dir.display());
        rows.push(Mechanism::yes("dma_heap", "dma-heaps", "").not(reason, NEEDS));
    }
    for heap in heaps {
        let path = dir.join(&heap);
        let (key, name) = (format!("dma_heap.{heap}"), format!("dma-heap {heap}"));
        let row = Mechanism::yes(key, name, "physically contiguous buffers");
        rows.push(match file::check_writable(&path) {
            Err(error) => {
                row.not(error, format!("as root: chmod o+rw {} (or a udev rule)", path.display()))
            }
            Ok(()) if heap.starts_with(SCATTERED_HEAP) => {
                let row = Mechanism { detail: "buffers of scattered pages".into(), ..row };
                row.but(State::Partly, "this heap promises no physical contiguity", NEEDS)
            }
            Ok(()) => row,
        });
    }
}

fn nodes(path: &Path) -> Mechanism {
    let row = Mechanism::yes("numa", "NUMA nodes with memory", "");
    match file::text(path) {
        Ok(text) => {
            let nodes = numa::listed(&text);
            let list: Vec<String> = nodes.iter().map(|node| node.0.to_string()).collect();
            Mechanism { detail: format!("{} (node {})", nodes.len(), list.join(", ")), ..row }
        }
        Err(error) => row.not(error, "a kernel with CONFIG_NUMA=y, and /sys mounted"),
    }
}

fn map_count(path: &Path) -> Mechanism {
    let row = Mechanism::yes("max_map_count", "mappings a process may have", "");
    let remedy = format!("as root: sysctl -w vm.max_map_count={MAP_COUNT_DEFAULT}");
    match file::number(path) {
        Ok(count) => {
            let row = Mechanism { detail: count.to_string(), ..row };
            let reason = format!("{count} is fewer than the kernel's default");
            match count {
                MAP_COUNT_DEFAULT.. => row,
                _ => row.but(State::Partly, reason, remedy),
            }
        }
        Err(error) => row.not(error, remedy),
    }
}

fn locked_memory(without_limit: bool) -> Mechanism {
    const NEEDS: &str = "CAP_IPC_LOCK, or ulimit -l unlimited (systemd: LimitMEMLOCK=infinity)";
    let row = |detail: String| Mechanism::yes("mlock", "locked memory (mlock)", detail);
    match limits::limit(libc::RLIMIT_MEMLOCK) {
        _ if without_limit => row("no limit with CAP_IPC_LOCK".into()),
        None => row("RLIMIT_MEMLOCK is unlimited".into()),
        Some(Bytes::ZERO) => row(String::new()).not("RLIMIT_MEMLOCK is 0", NEEDS),
        Some(most) => {
            let reason = format!("at most {most} can be locked");
            row(format!("RLIMIT_MEMLOCK is {most}")).but(State::Partly, reason, NEEDS)
        }
    }
}

fn groups(key: &str, name: &str, root: &Path, resources: &[Resource]) -> Mechanism {
    let row = Mechanism::yes(key, name, "");
    let mut told = Vec::new();
    for resource in resources {
        let what = match resource {
            Resource::Memory => String::new(),
            Resource::Hugetlb(size) => format!("{}: ", size.bytes()),
        };
        match Limits::find(root, *resource).and_then(|limits| limits.tightest()) {
            Ok(None) => told.push(format!("{what}no limit")),
            Ok(Some(limit)) => told.push(format!(
                "{what}limit {}, usage {}, {}",
                limit.limit,
                limit.usage,
                limit.path.display()
            )),
            Err(error) => return row.not(error, "read permission on the cgroup's files"),
        }
    }
    Mechanism { detail: told.join("; "), ..row }
}

fn capabilities(status: &Path) -> Result<u64, OsError> {
    let text = file::text(status)?;
    let line = text.lines().find_map(|line| line.strip_prefix("CapEff:"));
    let mask = line.and_then(|hex| u64::from_str_radix(hex.trim(), 16).ok());
    mask.ok_or_else(|| file::strange(status, &text))
}

fn capability_row(held: Result<u64, OsError>) -> Mechanism {
    let row = Mechanism::yes("capabilities", "effective capabilities", "");
    let mask = match held {
        Ok(mask) => mask,
        Err(error) => return row.not(error, "mount /proc: mount -t proc proc /proc"),
    };
    let list = |held: bool, show: &dyn Fn(&str, &str) -> String| -> Vec<String> {
        let named = WANTED.iter().filter(|(bit, ..)| (mask >> bit & 1 == 1) == held);
        named.map(|(_, name, opens)| show(name, opens)).collect()
    };
    let opens = |name: &str, opens: &str| format!("{name} ({opens})");
    let (held, missing) = (list(true, &opens), list(false, &opens));
    let row = Mechanism { detail: held.join(", "), ..row };
    if missing.is_empty() {
        return row;
    }
    let set = list(false, &|name, _| format!("{}+ep", name.to_lowercase())).join(" ");
    let remedy = format!(
        "as root: setcap '{set}' PROGRAM (or docker --cap-add, systemd AmbientCapabilities=)"
    );
    let state = if held.is_empty() { State::No } else { State::Partly };
    row.but(state, format!("not held: {}", missing.join(", ")), remedy)
}
