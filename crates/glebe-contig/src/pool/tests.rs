//! Tests the protocol on plain files.

use std::fs;
use std::os::unix::fs::DirBuilderExt;

use super::*;
use glebe_os::internal::sys::machine::numa::Node;
use glebe_os::units::PageSize;

struct Fixture {
    root: PathBuf,
    place: Place,
}

fn size() -> PageSize {
    PageSize::new(2 << 20).unwrap()
}

impl Fixture {
    fn new(name: &str, total: u64, free: u64) -> Self {
        let root = std::env::temp_dir().join(format!("glebe-pool-{}-{name}", std::process::id()));
        let pools = root.join("pools");
        fs::create_dir_all(pools.join("hugepages-2048kB")).unwrap();
        let locks = vec![root.join("not/there/lock"), root.join("own/lock")];
        let nodes = root.join("nodes");
        let fixture = Self { root, place: Place { pools, nodes, locks } };
        fixture.set("nr_hugepages", total);
        fixture.set("free_hugepages", free);
        fixture.set("resv_hugepages", 0);
        fixture.set("surplus_hugepages", 0);
        fixture.set("nr_overcommit_hugepages", 0);
        fixture
    }

    fn set(&self, name: &str, value: u64) {
        let path = self.place.pools.join("hugepages-2048kB").join(name);
        fs::write(path, format!("{value}\n")).unwrap();
    }

    fn get(&self, name: &str) -> u64 {
        let path = self.place.pools.join("hugepages-2048kB").join(name);
        fs::read_to_string(path).unwrap().trim().parse().unwrap()
    }

    fn pool(&self) -> Pool {
        Pool::below(&self.place.pools, size()).unwrap()
    }

    fn lock(&self) -> PoolLock {
        self.try_lock().unwrap()
    }

    fn try_lock(&self) -> Result<PoolLock, OsError> {
        PoolLock::of(&self.place, Duration::from_secs(20))
    }
}

impl Drop for Fixture {
    fn drop(&mut self) {
        fs::remove_dir_all(&self.root).unwrap();
    }
}

fn window(counter: Counter, before: u64, by: u64) -> Window {
    Window { size: size(), counter, before, by, node: None }
}

#[test]
fn the_limit_is_raised_for_the_moment_of_a_mapping() {
    let pool = Fixture::new("surplus", 10, 10);
    pool.set("surplus_hugepages", 4);
    for (had, during) in [(0, 7), (5, 7), (100, 100)] {
        pool.set("nr_overcommit_hugepages", had);
        let seen = pool.lock().with_surplus(&pool.pool(), 3, || {
            Ok::<_, OsError>(pool.get("nr_overcommit_hugepages"))
        });
        assert_eq!((seen.unwrap(), pool.get("nr_overcommit_hugepages")), (during, had));
    }
}

#[test]
fn pages_are_added_and_taken_off_by_the_same_difference() {
    let pool = Fixture::new("pages", 10, 100);
    let lock = pool.lock();
    let came = lock.with_pages(&pool.pool(), 3, |came| {
        assert_eq!(pool.get("nr_hugepages"), 13);
        pool.set("nr_hugepages", 18); // another program adds five
        Ok::<_, OsError>(came)
    });
    assert_eq!((came.unwrap(), pool.get("nr_hugepages")), (3, 15));
    let (counts, kept) = lock.keep_pages(&pool.pool(), 2).unwrap();
    assert_eq!((counts.total, kept, pool.get("nr_hugepages")), (15, 2, 17));
    assert_eq!(lock.read().unwrap().0, []);
}

#[test]
fn the_parts_on_two_nodes_are_added_up_and_the_first_grows_first() {
    let pool = Fixture::new("nodes", 10, 6);
    pool.set("resv_hugepages", 1);
    let dir = |node| pool.place.nodes.join(format!("node{node}/hugepages/hugepages-2048kB"));
    let pages = |node| {
        let text = fs::read_to_string(dir(node).join("nr_hugepages")).unwrap();
        text.trim().parse::<u64>().unwrap()
    };
    for (node, total, free) in [(0, 4, 3), (2, 6, 4)] {
        fs::create_dir_all(dir(node)).unwrap();
        for (name, value) in [("nr", total), ("free", free), ("surplus", 0)] {
            fs::write(dir(node).join(format!("{name}_hugepages")), value.to_string()).unwrap();
        }
    }
    let both = pool.pool().on_nodes(&pool.place.nodes, &[Node(0), Node(2)]).unwrap().unwrap();
    let counts = both.counts().unwrap();
    assert_eq!(counts, PoolCounts { total: 10, free: 7, reserved: 1, surplus: 0 });
    assert_eq!((both.node(), both.nodes(), both.is_part()), (None, vec![Node(0), Node(2)], true));
    let missing = pool.pool().on_nodes(&pool.place.nodes, &[Node(0), Node(1)]).unwrap();
    assert!(missing.is_none(), "node 1 has no pages of this size");

    let lock = pool.lock();
    let came = lock.with_pages(&both, 3, |came| {
        assert_eq!((pages(0), pages(2), pool.get("nr_hugepages")), (7, 6, 10));
        Ok::<_, OsError>(came)
    });
    assert_eq!((came.unwrap(), pages(0), pages(2)), (3, 4, 6));
}

#[test]
fn the_part_on_a_node_is_counted_and_changed_by_itself() {
    let pool = Fixture::new("node", 10, 6);
    pool.set("resv_hugepages", 1);
    let dir = pool.place.nodes.join("node1/hugepages/hugepages-2048kB");
    let of_node = || fs::read_to_string(dir.join("nr_hugepages")).unwrap().trim().parse::<u64>();
    fs::create_dir_all(&dir).unwrap();
    for (name, value) in [("nr", "4"), ("free", "3"), ("surplus", "0")] {
        fs::write(dir.join(format!("{name}_hugepages")), value).unwrap();
    }
    let on = |node| pool.pool().on_nodes(&pool.place.nodes, &[Node(node)]).unwrap();
    assert!(on(0).is_none(), "a node without pages");
    let part = on(1).unwrap();
    let counts = part.counts().unwrap();
    assert_eq!(counts, PoolCounts { total: 4, free: 3, reserved: 1, surplus: 0 });
    assert_eq!(counts.available(), 2, "the page that is promised may be there");

    let lock = pool.lock();
    let came = lock.with_pages(&part, 3, |came| {
        assert_eq!((of_node().unwrap(), pool.get("nr_hugepages")), (7, 10));
        Ok::<_, OsError>(came)
    });
    assert_eq!((came.unwrap(), of_node().unwrap(), pool.get("nr_hugepages")), (3, 4, 10));
    lock.write(&[Window { node: Some(Node(1)), ..window(Counter::Pages, 4, 3) }]).unwrap();
    fs::write(dir.join("nr_hugepages"), "7").unwrap();
    drop(lock);
    assert_eq!(pool.lock().notes().len(), 1);
    assert_eq!((of_node().unwrap(), pool.get("nr_hugepages")), (4, 10));
}

#[test]
fn pages_are_added_step_by_step_and_all_go() {
    let pool = Fixture::new("steps", 10, 100);
    pool.set("surplus_hugepages", 4);
    let lock = pool.lock();
    let steps = lock.with_growth(&pool.pool(), 40, |growing| {
        pool.set("surplus_hugepages", 0); // the kernel makes surplus persistent
        let mut came = vec![growing.by(32)?];
        assert_eq!((pool.get("nr_hugepages"), lock.read()?.0[0].by), (42, 44));
        came.extend([growing.by(1)?, growing.by(64)?, growing.by(1)?]);
        assert_eq!(pool.get("nr_hugepages"), 50, "no more than was said");
        Ok::<_, OsError>(came)
    });
    assert_eq!(steps.unwrap(), [32, 1, 7, 0]);
    assert_eq!((pool.get("nr_hugepages"), lock.read().unwrap().0), (6, vec![]));
}

#[test]
fn a_body_that_panics_or_fails_leaves_the_pool_as_it_was() {
    let pool = Fixture::new("panic", 10, 100);
    let lock = pool.lock();
    let body = || lock.with_pages(&pool.pool(), 3, |_| -> Result<(), OsError> { panic!("here") });
    assert!(std::panic::catch_unwind(std::panic::AssertUnwindSafe(body)).is_err());
    assert_eq!(pool.get("nr_hugepages"), 10);
    let refused =
        lock.with_surplus(&pool.pool(), 3, || lock.with_surplus(&pool.pool(), 8, || lock.read()));
    assert_eq!(refused.unwrap().0.len(), 2, "one inside the other");
    assert_eq!((pool.get("nr_overcommit_hugepages"), lock.read().unwrap().0.len()), (0, 0));
}

#[test]
fn a_window_of_a_killed_process_is_closed_by_the_next() {
    let pool = Fixture::new("killed", 20, 100);
    pool.set("nr_overcommit_hugepages", 9);
    let windows = [
        window(Counter::Overcommit, 5, 4),
        window(Counter::Pages, 12, 3), // closes after the window opened inside it
        window(Counter::Pages, 15, 6), // one of six had not come
    ];
    pool.lock().write(&windows).unwrap();
    let lock = pool.lock();
    assert_eq!(lock.notes().len(), 3, "{:?}", lock.notes());
    assert_eq!((pool.get("nr_hugepages"), pool.get("nr_overcommit_hugepages")), (12, 5));
    drop(lock);
    assert!(pool.lock().notes().is_empty());
    assert_eq!(pool.get("nr_hugepages"), 12);
}

#[test]
fn a_garbled_record_takes_nothing_and_is_told() {
    let pool = Fixture::new("garbled", 20, 20);
    let mut text = window::format(&[window(Counter::Pages, 20, 5)], &boot_id().unwrap());
    text += "1 2 3\n?\n";
    pool.lock().locked.set_record(text.as_bytes()).unwrap();
    let lock = pool.lock();
    assert_eq!((pool.get("nr_hugepages"), lock.notes().len()), (20, 3), "{:?}", lock.notes());
    drop(lock);
    assert!(pool.lock().notes().is_empty());
}

#[test]
fn a_lock_that_somebody_else_could_have_made_is_refused() {
    let pool = Fixture::new("links", 20, 20);
    let (lock, other) = (pool.root.join("own/lock"), pool.root.join("other"));
    fs::DirBuilder::new().mode(0o700).create(pool.root.join("own")).unwrap();
    fs::write(&other, "").unwrap();
    std::os::unix::fs::symlink(&other, &lock).unwrap();
    assert!(pool.try_lock().is_err());
    fs::remove_file(&lock).unwrap();
    fs::hard_link(&other, &lock).unwrap();
    assert!(pool.try_lock().is_err());
    fs::remove_file(&lock).unwrap();
    let mode = |mode| {
        use std::os::unix::fs::PermissionsExt;
        fs::set_permissions(pool.root.join("own"), fs::Permissions::from_mode(mode)).unwrap();
    };
    mode(0o777);
    let error = pool.try_lock().unwrap_err();
    assert!(error.to_string().contains("mode 40777"), "{error}");
    mode(0o700);
    assert!(pool.try_lock().is_ok());
}

#[test]
fn holders_exclude_each_other() {
    let pool = Fixture::new("exclude", 0, 1000);
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                for _ in 0..10 {
                    let came = pool.lock().with_pages(&pool.pool(), 3, Ok::<_, OsError>);
                    assert_eq!(came.unwrap(), 3);
                }
            });
        }
    });
    assert_eq!(pool.get("nr_hugepages"), 0);
}

#[test]
fn a_split_that_the_kernel_does_not_make_leaves_both_pools_as_they_were() {
    let pool = Fixture::new("demote", 3, 100);
    let large = pool.place.pools.join("hugepages-1048576kB");
    fs::create_dir(&large).unwrap();
    for (name, value) in [
        ("nr_hugepages", "2"),
        ("free_hugepages", "9"),
        ("resv_hugepages", "0"),
        ("surplus_hugepages", "0"),
        ("demote", ""),
        ("demote_size", "2048kB"),
    ] {
        fs::write(large.join(name), value).unwrap();
    }
    let larger = Pool::below(&pool.place.pools, PageSize::new(1 << 30).unwrap()).unwrap();
    assert_eq!(larger.demote_size(), Some(size()));
    let came = pool.lock().with_split(&pool.pool(), &larger, 4, Ok::<_, OsError>);
    assert_eq!(came.unwrap(), 0);
    assert_eq!((pool.get("nr_hugepages"), larger.counts().unwrap().total), (3, 2));
}

#[test]
fn a_split_gives_contiguous_pages_and_all_are_given_back() {
    let place = Place::default();
    let (Some(small), Some(large)) = (
        Pool::below(&place.pools, size()),
        Pool::below(&place.pools, PageSize::new(1 << 30).unwrap()),
    ) else {
        println!("skipped: no pools of 2 MiB and 1 GiB");
        return;
    };
    if !small.is_writable() || large.demote_size() != Some(size()) {
        println!("skipped: the pools cannot be changed, or 1 GiB pages not split");
        return;
    }
    let persistent = || [&small, &large].map(|pool| pool.counts().unwrap().persistent());
    // The test may repeat, because programs may ignore the lock.
    let is_kept = |_| {
        let lock = PoolLock::acquire().unwrap();
        let before = persistent();
        let came = lock.with_split(&small, &large, 1, Ok::<_, OsError>).unwrap();
        let after = persistent();
        println!("{before:?} before, {after:?} after");
        assert!(came % (large.size().bytes().get() / size().bytes().get()) == 0);
        if came == 0 {
            println!("skipped: no page of 1 GiB could be had");
        }
        before == after
    };
    assert!((0..8).any(is_kept));
}
