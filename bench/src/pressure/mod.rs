//! Real memory pressure: [`Group`], a memory cgroup of this run's own with a limit and no swap, and
//! a child of this program inside it.
//!
//! This process itself stays outside, so that it can tell of a child that the kernel killed. When a
//! group is dropped, whoever is inside is killed, what it holds of the page cache is dropped, and
//! its directory is removed. A run that was killed leaves the directory; the next run removes it.
//! Source: admin-guide/cgroup-v1/memory, admin-guide/cgroup-v2, cgroups(7).

use std::fs::{self, File};
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use glebe::sys::cgroup::{group_of, value_of, Mount};
use glebe::units::Bytes;
use rustix::process::{kill_process, Pid, Signal};

use crate::child::Child;
use crate::{clock, Failure, Outcome};

const PREFIX: &str = "glebe-pressure-";
/// How long the kernel may take to do what it has been told.
const KERNEL_MAX: Duration = Duration::from_secs(10);
/// No child takes as long on a machine that does anything else at all.
const PATIENCE: Duration = Duration::from_secs(300);

/// What the files of a version of cgroups are called.
#[derive(Debug, PartialEq, Eq)]
struct Names {
    limit: &'static str,
    usage: &'static str,
    /// Set to 0, where the kernel has swap. Version 1 could limit memory and swap together, but
    /// counts no hits of that limit.
    swap: &'static str,
    /// Has a line with the number of processes that were killed.
    events: &'static str,
}

const V1: Names = Names {
    limit: "memory.limit_in_bytes",
    usage: "memory.usage_in_bytes",
    swap: "memory.swappiness",
    events: "memory.oom_control",
};
const V2: Names = Names {
    limit: "memory.max",
    usage: "memory.current",
    swap: "memory.swap.max",
    events: "memory.events",
};

/// The directories below which a group may be made, best first: of version 1 the mount of the
/// memory controller, or this process's own group, which somebody may have given to an unprivileged
/// user; of version 2 the nearest one from this process's own upwards that passes the controller on
/// to its children. Nothing is switched on for it. `root` is `/` but for fixtures.
fn places(root: &Path) -> Outcome<Vec<(&'static Names, PathBuf)>> {
    let read = |path: &str| fs::read_to_string(root.join(path)).unwrap_or_default();
    let (mountinfo, groups) = (read("proc/self/mountinfo"), read("proc/self/cgroup"));
    let mounts: Vec<_> = mountinfo.lines().filter_map(Mount::parse).collect();
    if let Some(mount) = mounts.iter().find(|mount| !mount.is_v2() && mount.has("memory")) {
        let dirs = mount.dirs(root, group_of(&groups, Some("memory")).unwrap_or("/"));
        let ends = [dirs.last(), dirs.first()].into_iter().flatten();
        return Ok(ends.map(|dir| (&V1, dir.clone())).collect());
    }
    let Some(mount) = mounts.iter().find(|mount| mount.is_v2()) else {
        return Err("no memory cgroup: none is mounted".into());
    };
    let passes_on = |dir: &PathBuf| {
        let listed = fs::read_to_string(dir.join("cgroup.subtree_control"));
        listed.is_ok_and(|text| text.split_whitespace().any(|name| name == "memory"))
    };
    let dirs = mount.dirs(root, group_of(&groups, None).unwrap_or("/"));
    let place = dirs.into_iter().find(passes_on);
    let why = "no memory cgroup: no group above this process passes the memory controller on";
    Ok(vec![(&V2, place.ok_or(why)?)])
}

/// A memory cgroup, removed when dropped.
pub(crate) struct Group {
    names: &'static Names,
    dir: PathBuf,
}

impl Group {
    /// A group that may hold `limit`, where this machine lets one be made, or why it does not.
    pub(crate) fn new(limit: Bytes) -> Outcome<Self> {
        let mut made = Err("no memory cgroup: no place".into());
        for (names, parent) in places(Path::new("/"))? {
            made = made.or_else(|_: Failure| Self::below(&parent, names, limit));
        }
        made
    }

    fn below(parent: &Path, names: &'static Names, limit: Bytes) -> Outcome<Self> {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        sweep(parent);
        let nth = NEXT.fetch_add(1, Ordering::Relaxed);
        let dir = parent.join(format!("{PREFIX}{}-{nth}", std::process::id()));
        fs::create_dir(&dir).map_err(|e| format!("no memory cgroup: {}: {e}", dir.display()))?;
        // From here on the drop removes it.
        let group = Self { names, dir };
        group.write(names.limit, &limit.get().to_string())?;
        if group.dir.join(names.swap).exists() {
            group.write(names.swap, "0")?;
        }
        Ok(group)
    }

    fn write(&self, name: &str, value: &str) -> Outcome {
        let path = self.dir.join(name);
        Ok(fs::write(&path, value)
            .map_err(|e| format!("no memory cgroup: {}: {e}", path.display()))?)
    }

    /// Has a child of this program do `task` inside, with the group's directory and `word`; the
    /// child calls [`enter`] first of all. Returns what it wrote, or `None` if the kernel killed it
    /// for want of memory, and how many it killed; an error if it failed, or took too long.
    pub(crate) fn ask(&self, task: &str, word: &str) -> Outcome<(Option<String>, u64)> {
        let child = Child::start(task, &[&self.dir.display().to_string(), word])?;
        match (child.answer(PATIENCE)?, self.oom_kills()?) {
            (None, 0) => Err("a child of this program was killed".into()),
            answer_and_kills => Ok(answer_and_kills),
        }
    }

    /// Processes killed for want of memory; an error if that cannot be read, which is no 0.
    fn oom_kills(&self) -> Outcome<u64> {
        let path = self.dir.join(self.names.events);
        let found = fs::read_to_string(&path).map(|text| value_of(&text, "oom_kill"));
        Ok(found.ok().flatten().ok_or_else(|| format!("{}: no oom_kill", path.display()))?)
    }

    fn members(&self) -> Vec<Pid> {
        let text = fs::read_to_string(self.dir.join("cgroup.procs")).unwrap_or_default();
        let pids = text.lines().filter_map(|line| line.trim().parse().ok());
        pids.filter(|&pid| pid > 1).filter_map(Pid::from_raw).collect()
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        let emptied = patiently(|| {
            let members = self.members();
            for &pid in &members {
                let _ = kill_process(pid, Signal::KILL);
            }
            if members.is_empty() {
                Ok(())
            } else {
                Err(io::ErrorKind::ResourceBusy.into())
            }
        });
        if *self.names == V1 {
            // Else what it holds of the page cache keeps the group alive, though unseen.
            let _ = self.write("memory.force_empty", "0");
        }
        if let Err(error) = emptied.and_then(|()| patiently(|| fs::remove_dir(&self.dir))) {
            // Standard error may be closed.
            let _ = writeln!(io::stderr(), "left behind: {}: {error}", self.dir.display());
        }
    }
}

/// Tries until it succeeds or [`KERNEL_MAX`] is over.
pub(crate) fn patiently<T>(mut step: impl FnMut() -> io::Result<T>) -> io::Result<T> {
    let deadline = clock::wall() + KERNEL_MAX;
    loop {
        match step() {
            Err(_) if clock::wall() < deadline => std::thread::sleep(Duration::from_millis(5)),
            done => return done,
        }
    }
}

/// In a child, before it has a second thread: puts it into the group at `dir`.
pub(crate) fn enter(dir: &Path) -> Outcome {
    let procs = dir.join("cgroup.procs");
    Ok(fs::write(&procs, "0").map_err(|e| format!("write({}): {e}", procs.display()))?)
}

/// What the group at `dir` holds now.
pub(crate) fn usage(dir: &Path) -> Outcome<Bytes> {
    let read = |names: &Names| fs::read_to_string(dir.join(names.usage));
    Ok(Bytes::new(read(&V1).or_else(|_| read(&V2))?.trim().parse()?))
}

/// Removes what killed runs have left; a group with anyone inside cannot be removed.
fn sweep(parent: &Path) {
    for entry in fs::read_dir(parent).into_iter().flatten().flatten() {
        let name = entry.file_name();
        let pid = name.to_str().and_then(|name| name.strip_prefix(PREFIX)?.split('-').next());
        if pid.is_some_and(|pid| !Path::new("/proc").join(pid).exists()) {
            let _ = fs::remove_dir(entry.path());
        }
    }
}

/// A sparse file of `len` that ends with its last descriptor.
pub(crate) fn nameless(dir: &Path, len: Bytes) -> Outcome<File> {
    let file = tempfile::tempfile_in(dir).and_then(|file| file.set_len(len.get()).map(|()| file));
    Ok(file.map_err(|e| format!("open({}): {e}", dir.display()))?)
}

#[cfg(test)]
mod tests;
