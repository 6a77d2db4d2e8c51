//! Groups of version 1 on this machine where that may be made, of version 2 on a fixture tree.

use std::fs;
use std::panic;
use std::path::Path;

use glebe::units::Bytes;

use super::place::{Place, Version};
use super::*;
use tempfile::{tempdir, TempDir};

const MOUNT_V1: &str = "41 30 0:33 / /sys/fs/cgroup/memory rw,nosuid - cgroup cgroup rw,memory\n";
const MOUNT_V2: &str = "42 30 0:34 / /sys/fs/cgroup rw,nosuid - cgroup2 cgroup2 rw,nsdelegate\n";
const OTHER: &str = "22 1 254:0 / / rw - ext4 /dev/vda rw\n";

/// A tree that looks like a machine with these mounts.
fn fixture(mounts: &str, own: &str) -> TempDir {
    let root = tempdir().unwrap();
    fs::create_dir_all(root.path().join("proc/self")).unwrap();
    fs::write(root.path().join("proc/self/mountinfo"), format!("{OTHER}{mounts}")).unwrap();
    fs::write(root.path().join("proc/self/cgroup"), own).unwrap();
    root
}

/// Directories below the fixture's root that pass these controllers on.
fn groups(root: &TempDir, dirs: &[(&str, &str)]) {
    for (dir, controllers) in dirs {
        let dir = root.path().join("sys/fs/cgroup").join(dir);
        fs::create_dir_all(&dir).unwrap();
        fs::write(dir.join("cgroup.subtree_control"), controllers).unwrap();
    }
}

#[test]
fn version_1_is_made_below_its_mount() {
    let root = fixture(&format!("{MOUNT_V2}{MOUNT_V1}"), "4:memory:/a\n0::/\n");
    let parents = ["sys/fs/cgroup/memory", "sys/fs/cgroup/memory/a"];
    let places = parents.map(|dir| Place { version: Version::V1, parent: root.path().join(dir) });
    assert_eq!(Place::find(root.path()).unwrap(), places);
}

#[test]
fn version_2_is_made_where_memory_is_passed_on() {
    let root = fixture(MOUNT_V2, "0::/user.slice/user-7.slice/session\n");
    groups(
        &root,
        &[("", "cpu memory\n"), ("user.slice", "memory pids\n"), ("user.slice/user-7.slice", "\n")],
    );
    let parent = root.path().join("sys/fs/cgroup/user.slice");
    assert_eq!(Place::find(root.path()).unwrap(), [Place { version: Version::V2, parent }]);
}

#[test]
fn a_machine_without_says_why() {
    let root = fixture("", "");
    assert!(matches!(Place::find(root.path()), Err(Error::NoGroup(why)) if why.contains("none")));
    let root = fixture(MOUNT_V2, "0::/a\n");
    groups(&root, &[("", "cpu\n"), ("a", "memory_not\n")]);
    let error = Place::find(root.path()).unwrap_err().to_string();
    assert!(error.contains("passes the memory controller on"), "{error}");
    let nowhere = Place { version: Version::V2, parent: root.path().join("no/such") };
    let error = Group::new(&nowhere, Bytes::mib(1)).unwrap_err().to_string();
    assert!(error.contains("mkdir("), "{error}");
}

#[test]
fn version_2_on_a_fixture_tree() {
    let root = fixture(MOUNT_V2, "0::/\n");
    groups(&root, &[("", "memory\n")]);
    let group = Group::new(&Place::find(root.path()).unwrap()[0], Bytes::mib(64)).unwrap();
    let dir = group.dir().to_path_buf();
    assert_eq!(fs::read_to_string(dir.join("memory.max")).unwrap(), (64 << 20).to_string());
    assert!(group.counters().is_err(), "a counter that is not there is no 0");

    let events = "low 0\nhigh 1\nmax 22\noom 3\noom_kill 4\noom_group_kill 5\n";
    let stat = "anon 1\nworkingset_refault_anon 6\nworkingset_refault_file 77\n";
    let files = [("memory.events", events), ("memory.stat", stat), ("memory.current", "4096\n")];
    for (name, text) in files {
        fs::write(dir.join(name), text).unwrap();
    }
    let expected = Counters { usage_bytes: 4096, limit_hits: 22, oom_kills: 4, refaults: 77 };
    assert_eq!(group.counters().unwrap(), expected);

    for name in ["memory.events", "memory.stat", "memory.current", "memory.max"] {
        fs::remove_file(dir.join(name)).unwrap();
    }
    drop(group);
    assert!(!dir.exists());
}

/// A group on this machine, or why there is none.
fn group(limit: Bytes) -> Option<Group> {
    match Group::of(limit) {
        Ok(group) => Some(group),
        Err(error) => {
            println!("skipped: {error}");
            None
        }
    }
}

#[test]
fn a_group_is_removed_by_panic_too() {
    let Some(kept) = group(Bytes::mib(32)) else { return };
    let counters = kept.counters().unwrap();
    assert_eq!((counters.oom_kills, counters.limit_hits), (0, 0));
    let dir = kept.dir().to_path_buf();
    assert!(dir.join("cgroup.procs").exists());
    let ended = panic::catch_unwind(panic::AssertUnwindSafe(move || {
        let _kept = kept;
        panic::resume_unwind(Box::new(1));
    }));
    assert!(ended.is_err() && !dir.exists());
}

#[test]
fn whoever_is_inside_is_ended_with_the_group() {
    let Some(group) = group(Bytes::mib(32)) else { return };
    let dir = group.dir().to_path_buf();
    let mut child = std::process::Command::new("sleep").arg("1000").spawn().unwrap();
    fs::write(dir.join("cgroup.procs"), child.id().to_string()).unwrap();
    let inside = fs::read_to_string(format!("/proc/{}/cgroup", child.id())).unwrap();
    let name = dir.file_name().unwrap().to_str().unwrap();
    assert!(inside.contains(name), "{inside}");
    drop(group);
    assert!(!Path::new(&dir).exists());
    assert!(!child.wait().unwrap().success());
}

#[test]
fn memory_beyond_the_limit_is_an_oom_kill() {
    let Some(group) = group(Bytes::mib(16)) else { return };
    let script = format!(
        "echo 0 > {}/cgroup.procs; exec python3 -c 'x = bytearray(64 << 20)'",
        group.dir().display()
    );
    let status = std::process::Command::new("sh").args(["-c", &script]).status().unwrap();
    assert!(!status.success());
    let counters = group.counters().unwrap();
    assert!(counters.oom_kills == 1 && counters.limit_hits > 0, "{counters:?}");
}
