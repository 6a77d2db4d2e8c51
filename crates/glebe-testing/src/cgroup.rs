//! Makes a memory cgroup without swap below this process's own group or an ancestor of it. A child
//! of the test runs inside, so the kernel kills the child and not the test.
//!
//! The group is of version 1, or of version 2 below a group that already passes on the memory
//! controller. Its drop kills the processes that a failed test left in it, and removes it. The next
//! run removes the directory of a killed run.
//!
//! Source: admin-guide/cgroup-v1/memory, admin-guide/cgroup-v2, cgroups(7).

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use glebe_os::internal::sys::machine::cgroup::{group_of, value_of, Mount};
use glebe_os::units::Bytes;

use crate::time::slowed;

const PREFIX: &str = "glebe-test-";
const PATIENCE: Duration = Duration::from_secs(5);

#[derive(Debug)]
pub struct Group {
    dir: PathBuf,
    is_v2: bool,
}

impl Group {
    pub fn make(limit: Bytes) -> Result<Self, String> {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        let (parent, is_v2) = parent(Path::new("/"))?;
        sweep(&parent);
        let nth = NEXT.fetch_add(1, Ordering::Relaxed);
        let dir = parent.join(format!("{PREFIX}{}-{nth}", std::process::id()));
        fs::create_dir(&dir).map_err(|e| format!("no memory cgroup: {}: {e}", dir.display()))?;
        let group = Self { dir, is_v2 };
        group.set_limit(limit).map_err(|error| format!("no memory cgroup: the limit: {error}"))?;
        // Sets no limit on memory plus swap in version 1, because the kernel would enforce that
        // limit before the memory limit.
        let swap = if is_v2 { "memory.swap.max" } else { "memory.swappiness" };
        // A kernel without swap lacks `memory.swap.max`.
        let _ = fs::write(group.dir.join(swap), "0");
        Ok(group)
    }

    pub fn set_limit(&self, limit: Bytes) -> std::io::Result<()> {
        let name = if self.is_v2 { "memory.max" } else { "memory.limit_in_bytes" };
        fs::write(self.dir.join(name), limit.get().to_string())
    }

    pub fn dir(&self) -> &Path {
        &self.dir
    }

    pub fn allow_swap(&self) -> std::io::Result<()> {
        match self.is_v2 {
            true => fs::write(self.dir.join("memory.swap.max"), "max"),
            false => fs::write(self.dir.join("memory.swappiness"), "100"),
        }
    }

    pub fn kills(&self) -> u64 {
        let name = if self.is_v2 { "memory.events" } else { "memory.oom_control" };
        let text = fs::read_to_string(self.dir.join(name)).expect("it is there");
        value_of(&text, "oom_kill").expect("a counter that is not there is no 0")
    }
}

pub fn enter(dir: &Path) {
    fs::write(dir.join("cgroup.procs"), std::process::id().to_string()).unwrap();
}

pub fn lift(dir: &Path) -> std::io::Result<()> {
    match dir.join("memory.max") {
        v2 if v2.exists() => fs::write(v2, "max"),
        _ => fs::write(dir.join("memory.limit_in_bytes"), "-1"),
    }
}

/// Returns the directory for new groups, and true for version 2. `root` is `/` except in fixtures.
pub fn parent(root: &Path) -> Result<(PathBuf, bool), String> {
    let read = |path: &str| fs::read_to_string(root.join(path)).unwrap_or_default();
    let (mountinfo, groups) = (read("proc/self/mountinfo"), read("proc/self/cgroup"));
    let mounts: Vec<_> = mountinfo.lines().filter_map(Mount::parse).collect();
    let v1 = mounts.iter().find(|mount| !mount.is_v2() && mount.has("memory"));
    let mount = v1.or(mounts.iter().find(|mount| mount.is_v2()));
    let mount = mount.ok_or("no memory cgroup: none is mounted")?;
    let own = group_of(&groups, v1.map(|_| "memory")).unwrap_or("/");
    let passes_on = |dir: &Path| {
        let listed = fs::read_to_string(dir.join("cgroup.subtree_control")).unwrap_or_default();
        listed.split_whitespace().any(|name| name == "memory")
    };
    let mut dirs = mount.dirs(root, own).into_iter();
    let found = dirs.find(|dir| if mount.is_v2() { passes_on(dir) } else { dir.is_dir() });
    let why = "no memory cgroup: no group above this process passes the memory controller on";
    Ok((found.ok_or(why)?, mount.is_v2()))
}

/// Kills the processes in a group, except this one. Returns false if none can be killed.
fn kill_others(dir: &Path) -> bool {
    let listed = fs::read_to_string(dir.join("cgroup.procs")).unwrap_or_default();
    let own = std::process::id().to_string();
    // The number 0 stands for a process of another PID namespace.
    let others: Vec<_> = listed.lines().filter(|pid| *pid != own && *pid != "0").collect();
    if others.is_empty() {
        return false;
    }
    let mut kill = Command::new("kill");
    let done = kill.arg("-KILL").args(others).stderr(Stdio::null()).status();
    done.is_ok_and(|status| status.success())
}

/// Removes groups of killed runs. The kernel refuses to remove a group that has processes.
fn sweep(parent: &Path) {
    for entry in fs::read_dir(parent).into_iter().flatten().flatten() {
        let name = entry.file_name();
        let pid = name.to_str().and_then(|name| name.strip_prefix(PREFIX)?.split('-').next());
        if pid.is_some_and(|pid| !Path::new("/proc").join(pid).exists()) {
            let _ = fs::remove_dir(entry.path());
        }
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        let begin = Instant::now();
        // A test that failed may have left processes in the group.
        while kill_others(&self.dir) && begin.elapsed() < slowed(PATIENCE) {
            std::thread::sleep(Duration::from_millis(10));
        }
        // Drops page cache, which would keep a group of version 1 alive.
        let _ = fs::write(self.dir.join("memory.force_empty"), "0");
        if let Err(error) = fs::remove_dir(&self.dir) {
            eprintln!("{} is left: {error}", self.dir.display());
        }
    }
}
