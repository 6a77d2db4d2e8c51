//! Tests that a probe leaves no descriptor, mapping or locked page, and changes no hugetlb pool.

use std::collections::BTreeMap;
use std::fs;
use std::thread;
use std::time::Duration;

use glebe_os::internal::sys::probe::{Mechanism, State, Support};

fn descriptors() -> usize {
    // Each count includes this directory's own descriptor.
    fs::read_dir("/proc/self/fd").expect("/proc is mounted").count()
}

fn mappings() -> usize {
    fs::read_to_string("/proc/self/maps").expect("/proc is mounted").lines().count()
}

fn status(field: &str) -> Option<String> {
    let status = fs::read_to_string("/proc/self/status").expect("/proc is mounted");
    status.lines().find_map(|line| Some(line.strip_prefix(field)?.trim().to_owned()))
}

fn pools() -> BTreeMap<String, String> {
    let mut all = BTreeMap::new();
    for pool in fs::read_dir("/sys/kernel/mm/hugepages").into_iter().flatten().flatten() {
        for file in fs::read_dir(pool.path()).into_iter().flatten().flatten() {
            let path = file.path();
            if let Ok(text) = fs::read_to_string(&path) {
                all.insert(path.display().to_string(), text);
            }
        }
    }
    all
}

/// Clears the results in rows that other processes may change.
fn lasting(support: &Support) -> Vec<Mechanism> {
    let changing = |key: &str| ["hugetlb.", "cgroup."].iter().any(|prefix| key.starts_with(prefix));
    let mut rows = support.mechanisms().to_vec();
    for row in rows.iter_mut().filter(|row| changing(&row.key)) {
        row.state = State::Yes;
        row.detail.clear();
        row.reason.clear();
        row.remedy.clear();
    }
    rows
}

#[test]
fn leaves_nothing() {
    glebe_testing::alone!();
    // The first probe sizes the allocator's arenas and the harness's buffers.
    let first = Support::probe();
    let before = (descriptors(), mappings(), status("VmLck:"), status("VmPin:"));
    for _ in 0..20 {
        assert_eq!(lasting(&Support::probe()), lasting(&first));
    }
    let after = (descriptors(), mappings(), status("VmLck:"), status("VmPin:"));
    assert_eq!(before, after, "(descriptors, mappings, locked, pinned)");

    // Other processes may change a pool, but not at every probe.
    let untouched = (0..200).any(|_| {
        let before = pools();
        drop(Support::probe());
        pools() == before || {
            thread::sleep(Duration::from_millis(20));
            false
        }
    });
    assert!(untouched, "every probe of 200 saw a pool change");
}
