//! Tests on file trees.

use super::super::pressure::Scope;
use super::*;
use crate::reclaim::plan::plan;

const LIMIT: Bytes = Bytes::mib(256);

struct Tree(std::path::PathBuf);

impl Tree {
    fn new(name: &str, used: Bytes, inactive_files: Bytes) -> Self {
        let name = format!("glebe-gauge-{}-{name}", std::process::id());
        let tree = Self(std::env::temp_dir().join(name));
        let mount = "30 20 0:26 / /sys/fs/cgroup rw - cgroup2 cgroup2 rw\n";
        tree.set("proc/self/mountinfo", mount);
        tree.set("proc/self/cgroup", "0::/a\n");
        let machine = "MemTotal: 8388608 kB\nMemFree: 4194304 kB\nMemAvailable: 4194304 kB\n";
        tree.set("proc/meminfo", machine);
        tree.set("sys/fs/cgroup/a/memory.max", &LIMIT.get().to_string());
        tree.set("sys/fs/cgroup/a/memory.current", &used.get().to_string());
        let stat = format!("inactive_file {}\nactive_file 0\n", inactive_files.get());
        tree.set("sys/fs/cgroup/a/memory.stat", &stat);
        tree
    }

    fn set(&self, path: &str, text: &str) {
        let path = self.0.join(path);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(path, text).unwrap();
    }

    fn gauge(&self) -> Gauge {
        Gauge::below(&self.0, Policy::default()).unwrap()
    }
}

impl Drop for Tree {
    fn drop(&mut self) {
        std::fs::remove_dir_all(&self.0).unwrap();
    }
}

fn free(marked: u64, unmarked: u64) -> Free {
    Free { marked: Bytes::mib(marked), unmarked: Bytes::mib(unmarked), ..Free::default() }
}

#[test]
fn with_room_nothing_goes_and_near_the_limit_what_is_missing_and_no_more() {
    let tree = Tree::new("near", Bytes::mib(100), Bytes::ZERO);
    let mut gauge = tree.gauge();
    let calm = gauge.look(free(10, 10));
    assert_eq!((calm.short, calm.crowded, calm.is_stale), (Bytes::ZERO, Bytes::ZERO, false));
    assert_eq!(calm.pressure.map(|pressure| (pressure.scope, pressure.limit)), {
        Some((Scope::Group, LIMIT))
    });
    assert_eq!(calm.margin, Bytes::mib(16));

    tree.set("sys/fs/cgroup/a/memory.current", &Bytes::mib(250).get().to_string());
    // The margin plus a quarter is 20 MiB; 6 MiB are free.
    let mut gauge = tree.gauge();
    assert_eq!(gauge.look(free(0, 100)).short, Bytes::mib(14));
    assert_eq!(gauge.look(free(3, 4)).short, Bytes::mib(7), "all there is");
    assert!(gauge.look(free(0, 0)).pause <= Duration::from_millis(2));
}

#[test]
fn what_is_marked_counts_as_used_and_makes_way_for_files() {
    // 40 MiB of the group's files are the allocator's marked memory.
    let tree = Tree::new("marked", Bytes::mib(250), Bytes::mib(100));
    let reading = tree.gauge().look(free(40, 8));
    assert_eq!(reading.short, Bytes::ZERO, "60 MiB of files go before");
    assert_eq!(reading.crowded, Bytes::mib(14));
    assert_eq!(tree.gauge().look(free(5, 8)).crowded, Bytes::mib(5), "no more than is marked");
}

#[test]
fn what_was_marked_and_written_since_is_no_file() {
    let tree = Tree::new("rewritten", Bytes::mib(250), Bytes::mib(100));
    assert_eq!(tree.gauge().look(free(0, 50)).short, Bytes::ZERO, "100 MiB of files go before");
    let rewritten = Free { rewritten: Bytes::mib(100), ..free(0, 50) };
    assert_eq!(tree.gauge().look(rewritten).short, Bytes::mib(14), "they are the program's memory");
}

#[test]
fn it_asks_for_what_a_plan_for_one_part_does() {
    let policy = Policy::default().lead(Duration::ZERO);
    for (marked, unmarked, files, used) in (0..256).map(|nth: u64| {
        (8 * (nth & 3), 8 * (nth >> 2 & 3), 20 * (nth >> 4 & 3), 225 + 10 * (nth >> 6))
    }) {
        let tree = Tree::new("plan", Bytes::mib(used), Bytes::mib(files + marked));
        let mut gauge = Gauge::below(&tree.0, policy).unwrap();
        let free = free(marked, unmarked);
        let reading = gauge.look(free);
        let planned = plan(&[part(free)], &reading.pressure.unwrap(), &policy).total();
        let text = format!("{free:?}, {files} of files, {used} used: {reading:?}");
        assert_eq!(reading.short.max(reading.crowded), planned, "{text}");
    }
}

#[test]
fn groups_are_to_be_found_anew_after_a_while_and_when_one_cannot_be_read() {
    let tree = Tree::new("stale", Bytes::mib(250), Bytes::ZERO);
    let mut gauge = tree.gauge();
    let now = Instant::now();
    assert!(!gauge.look_at(free(0, 40), now).is_stale);
    assert!(gauge.look_at(free(0, 40), now + Duration::from_secs(6)).is_stale);
    gauge.find().unwrap();
    assert!(!gauge.look(free(0, 40)).is_stale);

    tree.set("proc/self/cgroup", "0::/b\n");
    tree.set("sys/fs/cgroup/b/memory.max", &Bytes::mib(128).get().to_string());
    tree.set("sys/fs/cgroup/b/memory.current", "0");
    tree.set("sys/fs/cgroup/a/memory.current", "gone");
    let reading = gauge.look(free(0, 40));
    let scope = |reading: Reading| reading.pressure.map(|pressure| pressure.scope);
    assert_eq!((scope(reading), reading.is_stale), (Some(Scope::Machine), true));
    assert!(gauge.limit().unwrap_err().contains("gone"));
    gauge.find().unwrap();
    let reading = gauge.look(free(0, 40));
    assert_eq!(reading.pressure.unwrap().limit, Bytes::mib(128));
    assert!(!reading.is_stale && gauge.limit().unwrap().ends_with("/b"));
}

#[test]
fn a_program_without_lists_of_groups_any_more_keeps_its_limit() {
    let tree = Tree::new("confined", Bytes::mib(250), Bytes::ZERO);
    let mut gauge = tree.gauge();
    for list in ["proc/self/cgroup", "proc/self/mountinfo"] {
        std::fs::remove_file(tree.0.join(list)).unwrap();
        gauge.find().unwrap();
        assert_eq!(gauge.look(free(0, 0)).pressure.unwrap().limit, LIMIT, "{list}");
    }
    gauge.close();
    gauge.find().unwrap();
    assert_eq!(gauge.look(free(0, 0)).pressure.unwrap().scope, Scope::Machine);
}

#[test]
fn without_a_list_of_groups_it_sees_the_machine_until_there_is_one() {
    let tree = Tree::new("unlisted", Bytes::mib(250), Bytes::ZERO);
    let list = tree.0.join("proc/self/cgroup");
    std::fs::remove_file(&list).unwrap();
    std::fs::create_dir(&list).unwrap();
    let mut gauge = tree.gauge();
    let scope = |reading: Reading| reading.pressure.map(|pressure| pressure.scope);
    assert_eq!(scope(gauge.look(free(0, 0))), Some(Scope::Machine));
    std::fs::remove_dir(&list).unwrap();
    tree.set("proc/self/cgroup", "0::/a\n");
    gauge.find().unwrap();
    assert_eq!(scope(gauge.look(free(0, 0))), Some(Scope::Group));
}

#[test]
fn without_any_limit_it_is_blind_and_sees_again() {
    let tree = Tree::new("blind", Bytes::mib(250), Bytes::ZERO);
    let mut gauge = tree.gauge();
    tree.set("sys/fs/cgroup/a/memory.current", "");
    tree.set("proc/meminfo", "MemTotal: 1 kB\n");
    let blind = Reading { pause: PAUSE_BLIND, is_stale: true, ..Reading::default() };
    assert_eq!(gauge.look(free(40, 40)), blind);
    let why = Gauge::below(&tree.0, Policy::default()).unwrap_err().to_string();
    assert!(why.contains("memory") && why.contains("no MemFree"), "{why}");
    tree.set("sys/fs/cgroup/a/memory.current", "1");
    assert!(gauge.look(free(40, 40)).pressure.is_some());

    gauge.close();
    assert_eq!(gauge.look(free(40, 40)), blind);
    gauge.find().unwrap();
    assert_eq!(gauge.look(free(40, 40)).pressure.unwrap().limit, LIMIT);
}

#[test]
fn what_the_allocator_gives_back_and_takes_is_no_rise_and_hides_none() {
    let used = |mib: u64| Bytes::mib(mib).get().to_string();
    let rise = |taken, given, now_used| {
        let tree = Tree::new("rise", Bytes::mib(100), Bytes::ZERO);
        let mut gauge = tree.gauge();
        let now = Instant::now();
        let _ = gauge.look_at(free(0, 40), now);
        gauge.exchanged(Bytes::mib(taken), Bytes::mib(given));
        tree.set("sys/fs/cgroup/a/memory.current", &used(now_used));
        let reading = gauge.look_at(free(0, 0), now + Duration::from_secs(1));
        reading.pressure.unwrap().rise_a_second
    };
    assert_eq!(rise(0, 0, 100), Bytes::ZERO);
    assert_eq!(rise(40, 0, 140), Bytes::ZERO, "the program's own");
    // The gauge measures from its creation, over a second ago.
    for seen in [rise(0, 40, 100), rise(0, 0, 140)] {
        assert!(seen > Bytes::mib(35) && seen <= Bytes::mib(40), "{seen}");
    }
}
