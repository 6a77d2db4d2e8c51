//! Tests missing or wrong limits and files, refused parts, and several reclaimers.

use std::os::fd::{AsFd, AsRawFd};
use std::os::unix::net::UnixListener;
use std::process::Stdio;
use std::sync::Arc;
use std::time::{Duration, Instant};

use glebe::internal::reclaimer_below;
use glebe::reclaim::{Budget, Part, Policy, ReclaimError, Reclaimer};
use glebe::reserve::Reserve;
use glebe::units::Bytes;
use glebe::volatile::{Engine, Region};
use glebe::zpool::ObjectPool;
use glebe_testing::process::child_of;
use glebe_testing::time::{slowed, wait_until};

use super::fixture::Tree;

const LIMIT: Bytes = Bytes::mib(160);
const PATIENCE: Duration = Duration::from_secs(20);

/// Returns a policy that ignores the speed of a rise, because usage in these tests jumps.
fn policy() -> Policy {
    Policy::default().margin(Bytes::mib(8)).lead(Duration::ZERO)
}

/// Returns a reclaimer with a budget of 1 GiB, all in use, so that the reclaimer can ask for
/// memory.
fn with_budget(tree: &Tree) -> (Reclaimer, Budget) {
    let (reclaimer, budget) =
        (reclaimer_below(tree.root(), policy()).unwrap(), Budget::new(Bytes::gib(1)));
    budget.set_held(Bytes::gib(1));
    reclaimer.add(&budget).unwrap();
    (reclaimer, budget)
}

#[test]
fn without_proc_a_reclaimer_is_refused_with_what_is_missing() {
    let tree = Tree::new("empty");
    let error = reclaimer_below(tree.root(), policy()).unwrap_err();
    let text = error.to_string();
    assert!(matches!(error, ReclaimError::Blind { groups: None, .. }), "{text}");
    assert!(text.contains("no group with a limit") && text.contains("proc/meminfo"), "{text}");
}

#[test]
fn a_group_is_enough_where_the_machine_says_nothing() {
    let tree = Tree::v2("no-meminfo", LIMIT, Bytes::mib(158));
    std::fs::remove_file(tree.root().join("proc/meminfo")).unwrap();
    let (reclaimer, _budget) = with_budget(&tree);
    assert_eq!(reclaimer.poll().unwrap().asked, Bytes::mib(8));
}

#[test]
fn without_a_limit_the_machine_decides() {
    let tree = Tree::new("machine").machine(Bytes::gib(8), Bytes::mib(2));
    let (reclaimer, _budget) = with_budget(&tree);
    assert_eq!(reclaimer.poll().unwrap().asked, Bytes::mib(8));
    // The machine's memory also decides if less of it is available than in the group.
    let tree = Tree::v2("less", LIMIT, Bytes::mib(80)).machine(Bytes::gib(8), Bytes::mib(3));
    let (reclaimer, _budget) = with_budget(&tree);
    assert_eq!(reclaimer.poll().unwrap().asked, Bytes::mib(7));
}

#[test]
fn a_limit_that_is_no_number_is_told_and_the_machine_decides() {
    let tree = Tree::v2("garbage", LIMIT, Bytes::mib(158));
    let (reclaimer, _budget) = with_budget(&tree);
    for text in ["plenty\n", "-1\n", "", "99999999999999999999999\n", "\u{fffd}\0"] {
        tree.set("sys/fs/cgroup/a/memory.max", text);
        // The machine's memory counts instead and is not short; `watched` names the group with the
        // bad limit.
        let done = reclaimer.poll();
        assert!(done.is_ok_and(|done| done.asked == Bytes::ZERO), "{text:?}");
        let why = reclaimer.watched().unwrap().limit.unwrap_err();
        assert!(why.contains("sys/fs/cgroup/a"), "{why}");
        // A reclaimer cannot be made if the machine's figures are missing too.
        let (there, away) = (tree.root().join("proc/meminfo"), tree.root().join("meminfo"));
        std::fs::rename(&there, &away).unwrap();
        let error = reclaimer_below(tree.root(), policy()).unwrap_err();
        std::fs::rename(&away, &there).unwrap();
        assert!(matches!(&error, ReclaimError::Blind { groups: Some(_), .. }), "{error}");
    }
    tree.set("sys/fs/cgroup/a/memory.max", "max\n");
    assert_eq!(reclaimer.poll().unwrap().asked, Bytes::ZERO);
    assert_eq!(reclaimer.watched().unwrap().limit, Ok("the machine".to_owned()));
    tree.set("sys/fs/cgroup/a/memory.max", &LIMIT.get().to_string());
    assert_eq!(reclaimer.poll().unwrap().asked, Bytes::mib(8));
}

#[test]
fn a_group_that_shrinks_or_is_throttled_is_seen_at_the_next_look() {
    let tree = Tree::v2("shrinks", LIMIT, Bytes::mib(100));
    let (reclaimer, _budget) = with_budget(&tree);
    assert_eq!(reclaimer.poll().unwrap().asked, Bytes::ZERO);
    tree.set("sys/fs/cgroup/a/memory.max", &Bytes::mib(104).get().to_string());
    assert_eq!(reclaimer.poll().unwrap().asked, Bytes::mib(6));
    // The kernel throttles a group of version 2 above this limit.
    let tree = Tree::v2("high", LIMIT, Bytes::mib(100));
    tree.set("sys/fs/cgroup/a/memory.high", &Bytes::mib(103).get().to_string());
    let (reclaimer, _budget) = with_budget(&tree);
    assert_eq!(reclaimer.poll().unwrap().asked, Bytes::mib(7));
    // A limit below the usage, even zero, is no error.
    for limit in [Bytes::mib(50), Bytes::ZERO] {
        tree.set("sys/fs/cgroup/a/memory.max", &limit.get().to_string());
        assert!(reclaimer.poll().is_ok());
    }
}

#[test]
fn a_group_of_version_2_tells_that_it_met_its_limit() {
    let tree = Tree::v2("events", LIMIT, Bytes::mib(100));
    let events = |high, max| {
        let text = format!("low 0\nhigh {high}\nmax {max}\noom 0\noom_kill 0\n");
        tree.set("sys/fs/cgroup/a/memory.events", &text);
    };
    events(3, 4);
    let (reclaimer, _budget) = with_budget(&tree);
    let notices = || {
        reclaimer.poll().unwrap();
        reclaimer.stats().notices
    };
    assert_eq!((notices(), notices()), (0, 0), "what was before does not count");
    events(4, 4);
    assert_eq!((notices(), notices()), (1, 1));
    events(4, 9);
    assert_eq!(notices(), 2);
    // epoll cannot wait for a plain file, but the polls above read it.
    let why = reclaimer.watched().unwrap().threshold.unwrap_err();
    assert!(why.contains("epoll_ctl"), "{why}");
}

#[test]
fn a_reserve_that_makes_no_room_is_left_alone() {
    use glebe::contig::{Contig, Source};
    let tree = Tree::v2("futile", LIMIT, Bytes::mib(158));
    let reclaimer = reclaimer_below(tree.root(), policy()).unwrap();
    let plain = Contig::options().source(Source::Plain);
    let reserve = Reserve::options().room(Bytes::mib(64)).memory(plain);
    let reserve = reserve.build(Bytes::mib(64)).unwrap();
    reclaimer.add(Part::reserve(&reserve, Bytes::ZERO)).unwrap();
    // Usage in the tree never falls, so shrinking the reserve is futile.
    assert_eq!(reclaimer.poll().unwrap().freed(), Bytes::mib(8));
    assert_eq!(reclaimer.poll().unwrap().asked, Bytes::ZERO);
}

#[test]
fn the_page_cache_of_a_group_is_room_but_marked_memory_is_not() {
    let tree = Tree::v2("files", LIMIT, Bytes::mib(160));
    let stat = |inactive: u64, active: u64| {
        let text = format!("anon 1\ninactive_file {inactive}\nactive_file {active}\n");
        tree.set("sys/fs/cgroup/a/memory.stat", &text);
    };
    stat(16 << 20, 0);
    let (reclaimer, _budget) = with_budget(&tree);
    assert_eq!(reclaimer.poll().unwrap().asked, Bytes::ZERO);
    stat(4 << 20, 2 << 20);
    assert_eq!(reclaimer.poll().unwrap().asked, Bytes::mib(5));
}

#[test]
fn what_a_region_had_marked_is_no_file_as_far_as_the_kernel_says() {
    let set = |tree: &Tree, file: u64, shared: u64| {
        let stat =
            format!("file {}\nshmem {}\ninactive_file {}\n", file << 20, shared << 20, 16 << 20);
        tree.set("sys/fs/cgroup/a/memory.stat", &stat);
    };
    // The inactive list has 16 MiB, of which `others` MiB are no file pages. The reclaimer
    // subtracts `others` MiB from the list, but at most the region's 12 MiB.
    for (others, asked) in [(0, 0), (8, 0), (9, 3), (12, 6), (16, 6)] {
        let tree = Tree::v2("listed", LIMIT, LIMIT);
        set(&tree, 16 - others + 5, 5);
        let (reclaimer, _budget) = with_budget(&tree);
        let options = Region::options().engine(Engine::Tag);
        let region = Arc::new(options.build(Bytes::mib(12)).unwrap());
        reclaimer.add(&region).unwrap();
        assert_eq!(reclaimer.poll().unwrap().asked, Bytes::mib(asked), "{others}");
    }
}

#[test]
fn a_part_that_is_dropped_is_forgotten_and_one_reclaimer_has_each() {
    let tree = Tree::v2("taken", LIMIT, Bytes::mib(158));
    let make = || reclaimer_below(tree.root(), policy()).unwrap();
    let (one, other) = (make(), make());
    let region = Arc::new(Region::options().engine(Engine::Tag).build(Bytes::mib(1)).unwrap());
    let pool = Arc::new(ObjectPool::options().build().unwrap());
    let reserve = Reserve::options().room(Bytes::mib(8)).build(Bytes::mib(2)).unwrap();
    let budget = Budget::new(Bytes::mib(1));
    let add_all = |to: &Reclaimer| {
        let added = [
            to.add(&region),
            to.add(&pool),
            to.add(&budget),
            to.add(Part::reserve(&reserve, Bytes::ZERO)),
        ];
        added.map(|result| result.map_err(|error| error.to_string()))
    };
    assert!(add_all(&one).iter().all(Result::is_ok));
    for (refused, what) in
        add_all(&other).into_iter().zip(["region", "object pool", "budget", "reserve"])
    {
        assert!(refused.unwrap_err().contains(&format!("has this {what}")));
    }
    drop(one);
    assert!(add_all(&other).iter().all(Result::is_ok));
    other.poll().unwrap();
    drop((region, pool, reserve, budget));
    assert!(other.poll().is_ok());
    let fixed = Reserve::new(Bytes::mib(2)).unwrap();
    assert!(matches!(other.add(Part::reserve(&fixed, Bytes::ZERO)), Err(ReclaimError::Reserve(_))));
}

#[test]
fn the_thread_is_one_and_ends_with_the_reclaimer() {
    glebe_testing::alone!();
    let count = || {
        let tasks = std::fs::read_dir("/proc/self/task").unwrap().flatten();
        let names = tasks.filter_map(|task| std::fs::read_to_string(task.path().join("comm")).ok());
        names.filter(|name| name.trim() == "glebe-reclaim").count()
    };
    let tree = Tree::v2("thread", LIMIT, Bytes::mib(100));
    let (reclaimer, budget) = with_budget(&tree);
    reclaimer.start().unwrap();
    assert!(matches!(reclaimer.start(), Err(ReclaimError::Started)));
    tree.set_used(LIMIT);
    wait_until("the thread asks", PATIENCE, || budget.allowed() < Bytes::gib(1));
    assert_eq!(count(), 1);
    // The drop must wake the second reclaimer's thread, which waits long.
    let idle = Tree::new("idle").machine(Bytes::gib(8), Bytes::gib(8));
    let second = reclaimer_below(idle.root(), policy()).unwrap();
    second.start().unwrap();
    let begin = Instant::now();
    drop((reclaimer, second));
    assert!(begin.elapsed() < slowed(Duration::from_secs(5)));
}

#[test]
fn a_program_waits_for_the_descriptor_or_by_the_call() {
    let tree = Tree::v2("descriptor", LIMIT, Bytes::mib(158));
    let (reclaimer, budget) = with_budget(&tree);
    let is_readable = |millis| {
        let fd = reclaimer.as_fd().as_raw_fd();
        let mut asked = libc::pollfd { fd, events: libc::POLLIN, revents: 0 };
        // SAFETY: `poll` writes one local structure.
        #[allow(unsafe_code)]
        let told = unsafe { libc::poll(&raw mut asked, 1, millis) };
        told == 1
    };
    assert!(is_readable(5000), "a first look is due at once");
    assert_eq!(reclaimer.poll().unwrap().asked, Bytes::mib(8));
    assert!(is_readable(5000), "short memory is looked at again soon");
    budget.set_held(Bytes::ZERO);
    tree.set_used(Bytes::ZERO);
    std::thread::sleep(Duration::from_millis(1100));
    reclaimer.poll().unwrap();
    assert!(!is_readable(0), "calm memory is not");
    let begin = Instant::now();
    reclaimer.wait(Duration::from_millis(20)).unwrap();
    assert!(begin.elapsed() >= Duration::from_millis(20));
}

/// Runs in a child, because the environment belongs to the whole process.
#[test]
fn what_the_environment_names_is_watched_until_it_ends() {
    const PATH: &str = "GLEBE_TEST_PRESSURE";
    let tree = Tree::v2("pressure", LIMIT, Bytes::mib(100));
    if let Some(root) = std::env::var_os(PATH) {
        let reclaimer = reclaimer_below(root.as_ref(), policy()).unwrap();
        let stalls = || reclaimer.watched().unwrap().stalls;
        assert!(stalls().is_ok(), "{:?}", stalls());
        let look = || {
            reclaimer.wait(Duration::from_secs(1)).unwrap();
            reclaimer.poll().unwrap();
            reclaimer.stats().notices
        };
        wait_until("a notice comes", PATIENCE, || look() > 0);
        println!("\nnoticed");
        wait_until("the end is seen", PATIENCE, || look() > 0 && stalls().is_err());
        assert!(stalls().unwrap_err().contains("has ended"));
        return;
    }
    use std::io::{BufRead, BufReader, Read, Write};
    let path = tree.root().join("socket");
    let listener = UnixListener::bind(&path).unwrap();
    let mut child =
        child_of("reclaim::bad_days::what_the_environment_names_is_watched_until_it_ends");
    child.env(PATH, tree.root());
    child.env("MEMORY_PRESSURE_WATCH", &path).env("MEMORY_PRESSURE_WRITE", "aGVsbG8=");
    let mut child = child.stdout(Stdio::piped()).spawn().unwrap();
    let mut lines = BufReader::new(child.stdout.take().unwrap()).lines().map_while(Result::ok);
    let (mut manager, _) = listener.accept().unwrap();
    let mut hello = [0; 5];
    manager.read_exact(&mut hello).unwrap();
    assert_eq!(&hello, b"hello");
    manager.write_all(b"!").unwrap();
    assert!(lines.any(|line| line == "noticed"));
    drop(manager);
    lines.for_each(|line| println!("{line}"));
    assert!(child.wait().unwrap().success());
}

#[test]
fn notices_that_are_refused_are_named_and_no_error() {
    // A group of version 1 without `cgroup.event_control`, and no PSI.
    let mount = "33 20 0:29 / /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory\n";
    let dir = "sys/fs/cgroup/memory/a";
    let tree = Tree::new("refused")
        .machine(Bytes::gib(8), Bytes::gib(4))
        .file("proc/self/cgroup", "4:memory:/a\n")
        .file("proc/self/mountinfo", mount)
        .file(&format!("{dir}/memory.limit_in_bytes"), &LIMIT.get().to_string())
        .file(&format!("{dir}/memory.usage_in_bytes"), "0\n")
        .file(&format!("{dir}/memory.stat"), "inactive_file 99999999\ntotal_inactive_file 0\n");
    let (reclaimer, _budget) = with_budget(&tree);
    assert_eq!(reclaimer.poll().unwrap().asked, Bytes::ZERO);
    let used = Bytes::mib(158).get().to_string();
    tree.set(&format!("{dir}/memory.usage_in_bytes"), &used);
    assert_eq!(reclaimer.poll().unwrap().asked, Bytes::mib(8), "of the group and those below");
    tree.set(&format!("{dir}/memory.memsw.limit_in_bytes"), &Bytes::mib(170).get().to_string());
    tree.set(&format!("{dir}/memory.memsw.usage_in_bytes"), &Bytes::mib(169).get().to_string());
    let (other, _budget) = with_budget(&tree);
    assert_eq!(other.poll().unwrap().asked, Bytes::mib(9));
    let watched = reclaimer.watched().unwrap();
    let why = watched.threshold.unwrap_err();
    assert!(why.contains("cgroup.event_control"), "{why}");
    if std::env::var_os("MEMORY_PRESSURE_WATCH").is_none() {
        let why = watched.stalls.unwrap_err();
        assert!(why.contains("proc/pressure/memory"), "{why}");
    }
}
