//! Tests that limits and usage are those of the machine's own cgroup, of version 1 or 2.

use std::fs;
use std::path::Path;

use glebe_os::internal::sys::machine::cgroup::usage::Charged;
use glebe_os::internal::sys::machine::cgroup::{Limits, Resource};
use glebe_os::units::Bytes;
use glebe_testing::inside::{inside, InsideEnd};

/// A multiple of every page size. The kernel rounds limits down to whole pages.
const LIMIT: Bytes = Bytes::mib(64);
const TOUCHED: Bytes = Bytes::mib(16);
/// The kernel charges pages in batches on each processor.
const BATCHED: Bytes = Bytes::mib(8);

#[test]
fn the_limit_and_the_usage_of_the_own_group_are_found() {
    let test = "cgroup_limits::the_limit_and_the_usage_of_the_own_group_are_found";
    let end = inside(LIMIT, test, || {
        let root = Path::new("/");
        let limits = Limits::find(root, Resource::Memory).unwrap();
        let charged = Charged::open(root).unwrap().expect("the files are there");
        let (before, used_before) = (limits.tightest().unwrap().expect("a limit"), used(&charged));
        assert_eq!(before.limit, LIMIT, "{before:?}");
        assert!(before.path.to_str().is_some_and(|path| path.contains("glebe-test-")));
        let touched = vec![1_u8; TOUCHED.as_usize()];
        let (after, used_after) = (limits.tightest().unwrap().expect("a limit"), used(&charged));
        for (before, after) in [(before.usage, after.usage), (used_before, used_after)] {
            assert!(after <= LIMIT, "{after}");
            assert!(after + BATCHED >= before + TOUCHED, "{before} before, {after} after");
        }
        assert_eq!(touched[0], 1);
    });
    assert_ne!(end, InsideEnd::Killed);
}

/// Checks the group of `charged` with its own files, and returns the bytes used.
fn used(charged: &Charged) -> Bytes {
    let (group, usage) = charged.tightest().unwrap().expect("a limited group");
    assert_eq!(usage.limit, LIMIT);
    assert_eq!(group.is_v2(), group.dir().join("memory.max").exists());
    let stat = fs::read_to_string(group.dir().join("memory.stat")).unwrap();
    assert_eq!(usage.refaults.is_some(), stat.contains("workingset_refault_file "), "{usage:?}");
    assert!(usage.no_files.is_some(), "{usage:?}");
    usage.used
}
