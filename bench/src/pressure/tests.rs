//! Groups on this machine where they may be made, of version 2 on a fixture tree.

use std::process::Command;

use tempfile::{tempdir, TempDir};

use super::*;

const MOUNT_V1: &str = "41 30 0:33 / /sys/fs/cgroup/memory rw,nosuid - cgroup cgroup rw,memory\n";
const MOUNT_V2: &str = "42 30 0:34 / /sys/fs/cgroup rw,nosuid - cgroup2 cgroup2 rw,nsdelegate\n";

/// A tree that looks like a machine with these mounts, and these groups that pass controllers on.
fn fixture(mounts: &str, own: &str, groups: &[(&str, &str)]) -> TempDir {
    let root = tempdir().unwrap();
    fs::create_dir_all(root.path().join("proc/self")).unwrap();
    fs::write(root.path().join("proc/self/mountinfo"), mounts).unwrap();
    fs::write(root.path().join("proc/self/cgroup"), own).unwrap();
    for (dir, controllers) in groups {
        let dir = root.path().join("sys/fs/cgroup").join(dir);
        fs::create_dir_all(&dir).unwrap();
        fs::write(dir.join("cgroup.subtree_control"), controllers).unwrap();
    }
    root
}

#[test]
fn groups_are_made_below_version_1_or_where_version_2_passes_memory_on() {
    let root = fixture(&format!("{MOUNT_V2}{MOUNT_V1}"), "4:memory:/a\n0::/\n", &[]);
    let dirs = ["sys/fs/cgroup/memory", "sys/fs/cgroup/memory/a"];
    assert_eq!(places(root.path()).unwrap(), dirs.map(|dir| (&V1, root.path().join(dir))));

    let passed_on = [("", "cpu memory\n"), ("user", "memory pids\n"), ("user/7", "memory_not\n")];
    let root = fixture(MOUNT_V2, "0::/user/7/session\n", &passed_on);
    let place = (&V2, root.path().join("sys/fs/cgroup/user"));
    assert_eq!(places(root.path()).unwrap(), [place]);

    for (mounts, said) in [("", "none is mounted"), (MOUNT_V2, "passes the memory controller on")] {
        let root = fixture(mounts, "0::/a\n", &[("", "cpu\n")]);
        let error = places(root.path()).unwrap_err().to_string();
        assert!(error.contains(said), "{error}");
    }
}

#[test]
fn version_2_on_a_fixture_tree() {
    let parent = tempdir().unwrap();
    let group = Group::below(parent.path(), &V2, Bytes::mib(64)).unwrap();
    let dir = group.dir.clone();
    assert_eq!(fs::read_to_string(dir.join("memory.max")).unwrap(), (64 << 20).to_string());
    assert!(group.oom_kills().is_err(), "a counter that is not there is no 0");
    fs::write(dir.join("memory.events"), "oom 3\noom_kill 4\noom_group_kill 5\n").unwrap();
    fs::write(dir.join("memory.current"), "4096\n").unwrap();
    assert_eq!((group.oom_kills().unwrap(), usage(&dir).unwrap()), (4, Bytes::new(4096)));
    for name in ["memory.events", "memory.current", "memory.max"] {
        fs::remove_file(dir.join(name)).unwrap();
    }
    // As one that a killed run left.
    let left = parent.path().join(format!("{PREFIX}{}-0", u32::MAX));
    fs::create_dir(&left).unwrap();
    sweep(parent.path());
    assert!(!left.exists() && dir.exists());
    drop(group);
    assert!(!dir.exists());
}

#[test]
fn who_is_inside_is_limited_and_ends_with_the_group() {
    let Some(group) = crate::had(Group::new(Bytes::mib(16))) else { return };
    let dir = group.dir.clone();
    let script = "echo 0 >$0/cgroup.procs; exec python3 -c 'x = bytearray(64 << 20)'";
    let status = Command::new("sh").args(["-c", script]).arg(&dir).status().unwrap();
    assert!(!status.success());
    assert_eq!(group.oom_kills().unwrap(), 1);

    let mut child = Command::new("sleep").arg("1000").spawn().unwrap();
    fs::write(dir.join("cgroup.procs"), child.id().to_string()).unwrap();
    assert_eq!(group.members().len(), 1);
    let unwound = std::panic::catch_unwind(std::panic::AssertUnwindSafe(move || {
        let _group = group;
        std::panic::resume_unwind(Box::new(1));
    }));
    assert!(unwound.is_err() && !dir.exists());
    assert!(!child.wait().unwrap().success());
}
