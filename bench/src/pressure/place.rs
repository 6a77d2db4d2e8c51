//! [`Place`]: the directory below which memory cgroups may be made.
//!
//! Version 1: the mount of the memory controller, or this process's own group ([`Place::own`]).
//! Version 2: the nearest group from this process's own upwards that passes the memory controller
//! on to its children; nothing is switched on for it, since that would change the machine.
//! Source: cgroups(7), proc_pid_mountinfo(5).

use std::fs;
use std::path::{Path, PathBuf};

use super::Error;

/// Which interface the files follow.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Version {
    /// `memory.limit_in_bytes` and its like.
    V1,
    /// `memory.max` and its like.
    V2,
}

/// Where groups can be made.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Place {
    pub(super) version: Version,
    pub(super) parent: PathBuf,
}

/// A cgroup mount, from a line of mountinfo. Paths with escapes do not occur in practice: such a
/// mount is not found, and that is said.
struct Mount<'a> {
    top: &'a str,
    point: PathBuf,
    v2: bool,
    memory: bool,
}

impl Place {
    /// Looks for it below `root`, which is `/` but for fixtures.
    ///
    /// # Errors
    /// [`Error::NoGroup`] with the reason.
    pub fn find(root: &Path) -> Result<Self, Error> {
        let read = |path: &str| fs::read_to_string(root.join(path)).unwrap_or_default();
        let mountinfo = read("proc/self/mountinfo");
        let mounts: Vec<_> =
            mountinfo.lines().filter_map(|line| Mount::parse(line, root)).collect();
        if let Some(mount) = mounts.iter().find(|mount| !mount.v2 && mount.memory) {
            return Ok(Self { version: Version::V1, parent: mount.point.clone() });
        }
        let Some(mount) = mounts.iter().find(|mount| mount.v2) else {
            return Err(Error::NoGroup("none is mounted".into()));
        };
        let groups = read("proc/self/cgroup");
        let own = groups.lines().find_map(|line| line.strip_prefix("0::")).unwrap_or("/");
        let seen = Path::new(own).strip_prefix(mount.top).unwrap_or(Path::new(""));
        let passes_on = |dir: &PathBuf| {
            let listed = fs::read_to_string(dir.join("cgroup.subtree_control"));
            listed.is_ok_and(|text| text.split_whitespace().any(|name| name == "memory"))
        };
        let dirs = seen.ancestors().map(|dir| mount.point.join(dir));
        match dirs.into_iter().find(passes_on) {
            Some(parent) => Ok(Self { version: Version::V2, parent }),
            None => Err(Error::NoGroup(format!(
                "no group above this process passes the memory controller on below {}",
                mount.point.display()
            ))),
        }
    }
}

impl Place {
    /// Below this process's own group, where groups of version 1 are not made at the top: somebody
    /// may have given it to an unprivileged user.
    pub(super) fn own(&self, root: &Path) -> Option<Self> {
        let groups = fs::read_to_string(root.join("proc/self/cgroup")).ok()?;
        let own = groups.lines().find_map(|line| {
            let (controllers, path) = line.split_once(':')?.1.split_once(':')?;
            controllers.split(',').any(|name| name == "memory").then_some(path)
        })?;
        let parent = self.parent.join(own.trim_start_matches('/'));
        (self.version == Version::V1).then_some(Self { version: self.version, parent })
    }
}

impl<'a> Mount<'a> {
    fn parse(line: &'a str, root: &Path) -> Option<Self> {
        let (left, right) = line.split_once(" - ")?;
        let mut right = right.split(' ');
        let kind = right.next().filter(|kind| matches!(*kind, "cgroup" | "cgroup2"))?;
        let memory = right.nth(1).is_some_and(|o| o.split(',').any(|name| name == "memory"));
        let mut left = left.split(' ').skip(3);
        let top = left.next()?;
        let point = left.next()?;
        let point = root.join(point.strip_prefix('/').unwrap_or(point));
        Some(Self { top, point, v2: kind == "cgroup2", memory })
    }
}
