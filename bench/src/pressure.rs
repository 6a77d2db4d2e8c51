//! Real memory pressure: a child in a memory cgroup ([`Group`], shared with the library's tests).
//!
//! This process stays outside the group, so that it can report a child that the kernel killed.

use std::fs::{self, File};
use std::io;
use std::path::Path;
use std::time::Duration;

use glebe::units::Bytes;

use crate::child::Child;
use crate::{clock, Outcome};

pub(crate) use glebe_testing::cgroup::{enter, lift, Group};

const KERNEL_MAX: Duration = Duration::from_secs(10);

/// Runs a child for `task` with the group's directory and `word`. The child first calls [`enter`].
/// Returns the child's output (`None` if killed for lack of memory) and the number of kills in the
/// group. Fails if the child failed, was killed for another reason, or took too long.
pub(crate) fn ask(group: &Group, task: &str, word: &str) -> Outcome<(Option<String>, u64)> {
    let child = Child::start(task, &[&group.dir().display().to_string(), word])?;
    match (child.answer()?, group.kills()) {
        (None, 0) => Err("a child of this program was killed".into()),
        answer_and_kills => Ok(answer_and_kills),
    }
}

/// Repeats `step` until it succeeds or [`KERNEL_MAX`] is over.
pub(crate) fn patiently<T>(mut step: impl FnMut() -> io::Result<T>) -> io::Result<T> {
    let deadline = clock::wall() + KERNEL_MAX;
    loop {
        match step() {
            Err(_) if clock::wall() < deadline => std::thread::sleep(Duration::from_millis(5)),
            done => return done,
        }
    }
}

pub(crate) fn usage(dir: &Path) -> Outcome<Bytes> {
    let read = |name: &str| fs::read_to_string(dir.join(name));
    let text = read("memory.usage_in_bytes").or_else(|_| read("memory.current"))?;
    Ok(Bytes::new(text.trim().parse()?))
}

/// Makes a sparse file of `len` bytes without a name.
pub(crate) fn nameless(dir: &Path, len: Bytes) -> Outcome<File> {
    let file = tempfile::tempfile_in(dir).and_then(|file| file.set_len(len.get()).map(|()| file));
    Ok(file.map_err(|e| format!("open({}): {e}", dir.display()))?)
}

#[cfg(test)]
mod tests {
    use std::process::Command;

    use super::*;

    const V1: &str = "41 30 0:33 / /sys/fs/cgroup/memory rw,nosuid - cgroup cgroup rw,memory\n";
    const V2: &str = "42 30 0:34 / /sys/fs/cgroup rw,nosuid - cgroup2 cgroup2 rw,nsdelegate\n";

    /// Returns the parent directory of new groups and whether its cgroups are version 2. `groups`
    /// lists directories and the controllers that they pass on.
    fn parent(mounts: &str, own: &str, groups: &[(&str, &str)]) -> Result<(String, bool), String> {
        let root = tempfile::tempdir().unwrap();
        fs::create_dir_all(root.path().join("proc/self")).unwrap();
        fs::write(root.path().join("proc/self/mountinfo"), mounts).unwrap();
        fs::write(root.path().join("proc/self/cgroup"), own).unwrap();
        for (dir, controllers) in groups {
            let dir = root.path().join("sys/fs/cgroup").join(dir);
            fs::create_dir_all(&dir).unwrap();
            fs::write(dir.join("cgroup.subtree_control"), controllers).unwrap();
        }
        let (dir, is_v2) = glebe_testing::cgroup::parent(root.path())?;
        let dir = dir.strip_prefix(root.path().join("sys/fs/cgroup")).unwrap();
        Ok((dir.display().to_string(), is_v2))
    }

    #[test]
    fn groups_are_made_below_version_1_or_where_version_2_passes_memory_on() {
        let (both, own) = (format!("{V2}{V1}"), "4:memory:/a\n0::/\n");
        assert_eq!(parent(&both, own, &[("memory/a", "")]), Ok(("memory/a".into(), false)));
        assert_eq!(parent(&both, own, &[("memory", "")]), Ok(("memory".into(), false)));
        let passed_on = [("", "cpu memory\n"), ("user", "memory pids\n"), ("user/7", "mem\n")];
        assert_eq!(parent(V2, "0::/user/7/session\n", &passed_on), Ok(("user".into(), true)));
        for (mounts, said) in [("", "none is mounted"), (V2, "passes the memory controller on")] {
            let error = parent(mounts, "0::/a\n", &[("", "cpu\n")]).unwrap_err();
            assert!(error.contains(said), "{error}");
        }
    }

    #[test]
    fn who_is_inside_is_limited_and_the_group_goes() {
        let Some(group) = crate::had(Group::make(Bytes::mib(16)).map_err(Into::into)) else {
            return;
        };
        let dir = group.dir().to_owned();
        let script = "echo 0 >$0/cgroup.procs; exec python3 -c 'x = bytearray(64 << 20)'";
        let status = Command::new("sh").args(["-c", script]).arg(&dir).status().unwrap();
        assert!(!status.success());
        assert_eq!(group.kills(), 1);
        drop(group);
        assert!(!dir.exists());
    }
}
