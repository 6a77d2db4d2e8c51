//! Tests the memory cgroup that tests of several crates run in.

use std::fs;
use std::os::unix::process::ExitStatusExt;
use std::panic::{catch_unwind, AssertUnwindSafe};
use std::process::{Command, Stdio};

use glebe_os::units::Bytes;
use glebe_testing::cgroup::{parent, Group};
use glebe_testing::Scratch;

#[test]
fn a_group_goes_with_the_processes_that_a_failed_test_left() {
    let group = match Group::make(Bytes::mib(64)) {
        Ok(group) => group,
        Err(why) => return println!("skipped: {why}"),
    };
    let dir = group.dir().to_owned();
    let mut left = Command::new("sleep").arg("600").stdout(Stdio::null()).spawn().unwrap();
    if let Err(error) = fs::write(dir.join("cgroup.procs"), left.id().to_string()) {
        left.kill().unwrap();
        panic!("{}: {error}", dir.display());
    }
    let failed = catch_unwind(AssertUnwindSafe(move || {
        group.set_limit(Bytes::mib(32)).unwrap();
        panic!("on purpose, with a process in {}", group.dir().display());
    }));
    assert!(failed.is_err() && !dir.exists(), "{} is left", dir.display());
    assert_eq!(left.wait().unwrap().signal(), Some(libc::SIGKILL));
}

#[test]
fn groups_are_made_where_the_memory_controller_is_passed_on() {
    let scratch = Scratch::new("test-group");
    let root = scratch.path();
    let groups = root.join("sys/fs/cgroup");
    fs::create_dir_all(root.join("proc/self")).unwrap();
    fs::create_dir_all(groups.join("a/b")).unwrap();
    let set = |path: &str, text: &str| fs::write(root.join(path), text).unwrap();
    assert!(parent(root).unwrap_err().contains("none is mounted"));
    set("proc/self/cgroup", "4:memory:/a\n0::/a/b\n");
    set("proc/self/mountinfo", "30 20 0:26 / /sys/fs/cgroup rw - cgroup2 cgroup2 rw\n");
    assert!(parent(root).unwrap_err().contains("passes the memory controller on"));
    set("sys/fs/cgroup/a/b/cgroup.subtree_control", "cpu\n");
    set("sys/fs/cgroup/a/cgroup.subtree_control", "cpu memory\n");
    assert_eq!(parent(root).unwrap(), (groups.join("a"), true));
    set("proc/self/mountinfo", "30 20 0:26 / /sys/fs/cgroup rw - cgroup cgroup rw,memory\n");
    assert_eq!(parent(root).unwrap(), (groups.join("a"), false));
}
