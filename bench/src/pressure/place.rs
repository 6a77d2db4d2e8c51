//! [`Place`]: the directories below which memory cgroups may be made.
//!
//! Version 1: the mount of the memory controller, or this process's own group, which somebody may
//! have given to an unprivileged user. Version 2: the nearest group from this process's own upwards
//! that passes the memory controller on to its children; nothing is switched on for it, since that
//! would change the machine. Source: cgroups(7), proc_pid_mountinfo(5).

use std::fs;
use std::path::{Path, PathBuf};

use glebe::sys::cgroup::{group_of, Mount};

use super::Error;

/// Which interface the files follow.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Version {
    /// `memory.limit_in_bytes` and its like.
    V1,
    /// `memory.max` and its like.
    V2,
}

/// Where groups can be made.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Place {
    pub(super) version: Version,
    pub(super) parent: PathBuf,
}

impl Place {
    /// Looks for places below `root`, which is `/` but for fixtures; the best one first.
    ///
    /// # Errors
    /// [`Error::NoGroup`] with the reason why there is none.
    pub(super) fn find(root: &Path) -> Result<Vec<Self>, Error> {
        let read = |path: &str| fs::read_to_string(root.join(path)).unwrap_or_default();
        let (mountinfo, groups) = (read("proc/self/mountinfo"), read("proc/self/cgroup"));
        let mounts: Vec<_> = mountinfo.lines().filter_map(Mount::parse).collect();
        if let Some(mount) = mounts.iter().find(|mount| !mount.is_v2() && mount.has("memory")) {
            let own = group_of(&groups, Some("memory")).unwrap_or("/");
            let dirs = mount.dirs(root, own);
            let ends = [dirs.last(), dirs.first()].into_iter().flatten();
            let place = |dir: &PathBuf| Self { version: Version::V1, parent: dir.clone() };
            return Ok(ends.map(place).collect());
        }
        let Some(mount) = mounts.iter().find(|mount| mount.is_v2()) else {
            return Err(Error::NoGroup("none is mounted".into()));
        };
        let passes_on = |dir: &PathBuf| {
            let listed = fs::read_to_string(dir.join("cgroup.subtree_control"));
            listed.is_ok_and(|text| text.split_whitespace().any(|name| name == "memory"))
        };
        let dirs = mount.dirs(root, group_of(&groups, None).unwrap_or("/"));
        match dirs.into_iter().find(passes_on) {
            Some(parent) => Ok(vec![Self { version: Version::V2, parent }]),
            None => Err(Error::NoGroup(
                "no group above this process passes the memory controller on".into(),
            )),
        }
    }
}
