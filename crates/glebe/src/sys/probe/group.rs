//! Memory cgroups: where this process is, what bounds it, and what it may change there.
//!
//! Limits are the least on the way to the root; amounts in bytes.
//! Source: cgroups(7), `Documentation/admin-guide/cgroup-v1/memory.rst`, `cgroup-v2.rst`.

use std::path::{Path, PathBuf};

use super::mechanism::{Mechanism, State};
use super::roots::{names, number, text, why_path, writable, Roots};
use crate::units::Bytes;

/// What v1 prints for "no limit", rounded down to any page size.
const V1_UNLIMITED: u64 = i64::MAX as u64 >> 16 << 16;

/// One mounted hierarchy and this process's place in it.
struct Hierarchy {
    mount: PathBuf,
    dir: PathBuf,
}

pub(super) fn rows(roots: &Roots, out: &mut Vec<Mechanism>) {
    let v1 = find(roots, Some("memory"));
    let v2 = find(roots, None);
    out.push(v1_row(v1.as_ref()));
    out.push(v2_memory_row(roots, v2.as_ref(), v1.is_some()));
    out.push(v2_delegated_row(v2.as_ref()));
    out.push(hugetlb_row(find(roots, Some("hugetlb")), v2.as_ref()));
}

/// The v1 hierarchy of `controller`, or the v2 hierarchy.
fn find(roots: &Roots, controller: Option<&str>) -> Option<Hierarchy> {
    let mounts = text(&roots.proc.join("self/mountinfo")).ok()?;
    let (root, mount) = mounts.lines().find_map(|line| parse_mount(line, controller))?;
    let groups = text(&roots.proc.join("self/cgroup")).unwrap_or_default();
    let path = groups.lines().find_map(|line| {
        let mut fields = line.splitn(3, ':').skip(1);
        let (controllers, path) = (fields.next()?, fields.next()?);
        let ours = match controller {
            Some(name) => controllers.split(',').any(|c| c == name),
            None => controllers.is_empty(),
        };
        ours.then(|| path.to_owned())
    });
    let mount = roots.resolve(Path::new(&mount));
    // Below the mount point stands only what is below the mount's root; a path outside it (a
    // container with the host's /proc) leaves the mount point itself.
    let below = path.as_deref().and_then(|path| Path::new(path).strip_prefix(&root).ok());
    let dir = match below {
        Some(below) if below != Path::new("") && mount.join(below).is_dir() => mount.join(below),
        _ => mount.clone(),
    };
    Some(Hierarchy { mount, dir })
}

/// `(root, mount point)` of a mountinfo line if it mounts the hierarchy.
fn parse_mount(line: &str, controller: Option<&str>) -> Option<(String, String)> {
    let (mount, fs) = line.split_once(" - ")?;
    let mut mount = mount.split(' ').skip(3);
    let (root, point) = (unescape(mount.next()?), unescape(mount.next()?));
    let mut fs = fs.split(' ');
    let (kind, options) = (fs.next()?, fs.nth(1).unwrap_or_default());
    let ours = match controller {
        Some(name) => kind == "cgroup" && options.split(',').any(|option| option == name),
        None => kind == "cgroup2",
    };
    ours.then_some((root, point))
}

/// Undoes mountinfo's octal escapes of white space and backslash.
fn unescape(field: &str) -> String {
    let pairs = [("\\040", " "), ("\\011", "\t"), ("\\012", "\n"), ("\\134", "\\")];
    pairs.iter().fold(field.to_owned(), |text, (from, to)| text.replace(from, to))
}

fn limit_and_usage(limit: Option<u64>, usage: Option<u64>) -> String {
    let limit = limit.map_or("none".to_owned(), |bytes| Bytes::new(bytes).to_string());
    let usage = usage.map_or("unknown".to_owned(), |bytes| Bytes::new(bytes).to_string());
    format!("limit {limit}, usage {usage}")
}

fn v1_row(v1: Option<&Hierarchy>) -> Mechanism {
    const KEY: &str = "cgroup.v1.memory";
    const NAME: &str = "memory cgroup v1";
    let Some(Hierarchy { dir, .. }) = v1 else {
        return Mechanism::no(
            KEY,
            NAME,
            "no v1 hierarchy with the memory controller is mounted",
            "nothing where cgroup.v2.memory is yes; else boot with \
             systemd.unified_cgroup_hierarchy=0",
        );
    };
    let stat = text(&dir.join("memory.stat")).unwrap_or_default();
    let limit = stat
        .lines()
        .find_map(|line| line.strip_prefix("hierarchical_memory_limit ")?.parse().ok())
        .filter(|limit| *limit < V1_UNLIMITED);
    let usage = match number(&dir.join("memory.usage_in_bytes")) {
        Ok(usage) => usage,
        Err(error) => {
            let reason = why_path(&dir.join("memory.usage_in_bytes"), &error);
            return Mechanism::no(KEY, NAME, reason, "read permission on the cgroup's files");
        }
    };
    let detail = format!("{}; {}", limit_and_usage(limit, Some(usage)), dir.display());
    let row = Mechanism::yes(KEY, NAME, detail);
    let control = dir.join("cgroup.event_control");
    match writable(&control) {
        Ok(()) => row,
        Err(error) => row.lacking(
            State::Partly,
            format!("no thresholds: {}", why_path(&control, &error)),
            format!("as root: chown USER {}", control.display()),
        ),
    }
}

fn v2_missing(key: &str, name: &str) -> Mechanism {
    Mechanism::no(
        key,
        name,
        "no v2 hierarchy is mounted",
        "as root: mount -t cgroup2 none /sys/fs/cgroup/unified",
    )
}

fn has_controller(dir: &Path, controller: &str) -> bool {
    text(&dir.join("cgroup.controllers"))
        .is_ok_and(|list| list.split_whitespace().any(|name| name == controller))
}

fn v2_memory_row(roots: &Roots, v2: Option<&Hierarchy>, on_v1: bool) -> Mechanism {
    const KEY: &str = "cgroup.v2.memory";
    const NAME: &str = "memory cgroup v2";
    let Some(Hierarchy { mount, dir }) = v2 else { return v2_missing(KEY, NAME) };
    if has_controller(dir, "memory") {
        // The root group has neither file and no limit.
        let usage = number(&dir.join("memory.current")).ok();
        let detail = limit_and_usage(least_limit(dir, mount), usage);
        return Mechanism::yes(KEY, NAME, format!("{detail}; {}", dir.display()));
    }
    let cgroups = text(&roots.proc.join("cgroups")).unwrap_or_default();
    let disabled = cgroups.lines().any(|line| {
        let fields: Vec<&str> = line.split_whitespace().collect();
        fields.first() == Some(&"memory") && fields.get(3) == Some(&"0")
    });
    let (reason, remedy) = if disabled {
        ("the memory controller is disabled", "boot without cgroup_disable=memory".to_owned())
    } else if on_v1 {
        ("the memory controller is on v1", "boot with cgroup_no_v1=memory".to_owned())
    } else {
        let parent = dir.parent().filter(|_| dir != mount).unwrap_or(dir);
        let file = parent.join("cgroup.subtree_control");
        (
            "memory is not among the group's controllers",
            format!("as root: echo +memory > {}", file.display()),
        )
    };
    Mechanism::no(KEY, NAME, reason, remedy).with_detail(dir.display().to_string())
}

/// The least `memory.max` from `dir` up to `mount`.
fn least_limit(dir: &Path, mount: &Path) -> Option<u64> {
    dir.ancestors()
        .take_while(|dir| dir.starts_with(mount))
        .filter_map(|dir| number(&dir.join("memory.max")).ok())
        .min()
}

fn v2_delegated_row(v2: Option<&Hierarchy>) -> Mechanism {
    const KEY: &str = "cgroup.v2.delegated";
    const NAME: &str = "child groups of the v2 group";
    let Some(Hierarchy { dir, .. }) = v2 else { return v2_missing(KEY, NAME) };
    let needed = [dir.clone(), dir.join("cgroup.procs"), dir.join("cgroup.subtree_control")];
    let refused = needed.iter().find_map(|path| Some((path, writable(path).err()?)));
    let row = Mechanism::yes(KEY, NAME, dir.display().to_string());
    match refused {
        Some((path, error)) => row.lacking(
            State::No,
            why_path(path, &error),
            "systemd-run --user --scope -p Delegate=yes PROGRAM, or as root",
        ),
        None if has_controller(dir, "memory") => row,
        None => row.lacking(
            State::Partly,
            "children would have no memory controller",
            "what cgroup.v2.memory asks for",
        ),
    }
}

fn hugetlb_row(v1: Option<Hierarchy>, v2: Option<&Hierarchy>) -> Mechanism {
    const KEY: &str = "cgroup.hugetlb";
    const NAME: &str = "hugetlb cgroup";
    let v2 = v2.filter(|v2| has_controller(&v2.dir, "hugetlb"));
    let (dir, suffix) = match (&v1, v2) {
        (Some(v1), _) => (&v1.dir, ".limit_in_bytes"),
        (None, Some(v2)) => (&v2.dir, ".max"),
        (None, None) => {
            return Mechanism::no(
                KEY,
                NAME,
                "the hugetlb controller is in no mounted hierarchy",
                "v1, as root: mkdir DIR && mount -t cgroup -o hugetlb none DIR; \
                 v2: echo +hugetlb > cgroup.subtree_control of the parent",
            );
        }
    };
    let mut limits = Vec::new();
    for name in names(dir) {
        let size = name.strip_prefix("hugetlb.").and_then(|name| name.strip_suffix(suffix));
        // `hugetlb.2MB.rsvd.max` bounds reservations; the page limit is shown.
        if let Some(size) = size.filter(|size| !size.contains('.')) {
            let limit = number(&dir.join(&name)).ok().filter(|limit| *limit < V1_UNLIMITED);
            let limit = limit.map_or("none".to_owned(), |bytes| Bytes::new(bytes).to_string());
            limits.push(format!("{size} limit {limit}"));
        }
    }
    let limits = match limits.len() {
        0 => "no limit at the root".to_owned(),
        _ => limits.join(", "),
    };
    Mechanism::yes(KEY, NAME, format!("{limits}; {}", dir.display()))
}
