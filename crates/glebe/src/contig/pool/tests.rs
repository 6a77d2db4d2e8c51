//! The protocol on a fixture: pools that are plain files, so that the machine's are left alone.
//! A fixture never grows by itself; `Counts` are what a test wrote or the claim asked for.
//!
//! # Safety
//! fork and waitpid only; the child does what is tested and leaves by _exit.
#![allow(unsafe_code)]

use std::fs;

use super::*;
use crate::sys::child::in_child;
use crate::units::Bytes;

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
        let place = Place { pools, locks: vec![root.join("missing/lock"), root.join("lock")] };
        let fixture = Self { root, place };
        fixture.set("nr_hugepages", total);
        fixture.set("free_hugepages", free);
        fixture.set("resv_hugepages", 0);
        fixture.set("surplus_hugepages", 0);
        fixture
    }

    fn set(&self, name: &str, value: u64) {
        let path = self.place.pools.join("hugepages-2048kB").join(name);
        fs::write(path, format!("{value}\n")).unwrap();
    }

    fn total(&self) -> u64 {
        self.place.pool(size()).unwrap().counts().unwrap().total
    }

    fn claim(&self) -> PoolClaim {
        PoolClaim::new(self.place.pool(size()).unwrap(), self.place.clone())
    }

    fn record(&self) -> Vec<Claim> {
        let text = fs::read(self.root.join("lock.claims")).unwrap();
        claims::parse(&text, &boot_id().unwrap()).0
    }

    fn write_record(&self, claims: &[Claim]) {
        let text = claims::format(claims, &boot_id().unwrap());
        replace_private(&self.root.join("lock.claims"), text.as_bytes()).unwrap();
    }
}

impl Drop for Fixture {
    fn drop(&mut self) {
        fs::remove_dir_all(&self.root).unwrap();
    }
}

fn key(process: Process, number: u64) -> Key {
    Key { process, size: size(), number }
}

fn ended(pages: u64) -> Claim {
    Claim { pages, ..Claim::new(key(Process::this().unwrap().none(), 0)) }
}

#[test]
fn two_claims_give_back_what_each_added() {
    let pool = Fixture::new("two", 10, 100);
    let (mut a, mut b) = (pool.claim(), pool.claim());
    {
        let lock = PoolLock::acquire(&pool.place).unwrap();
        assert_eq!(a.grow(&lock, 32).unwrap(), 32);
        assert_eq!(b.grow(&lock, 5).unwrap(), 5);
        assert_eq!(b.shrink(&lock, 2).unwrap(), 2);
    }
    let recorded = || pool.record().iter().map(|claim| claim.pages).sum::<u64>();
    assert_eq!((pool.total(), recorded()), (45, 35));
    drop(a);
    assert_eq!((pool.total(), recorded()), (13, 3));
    drop(b);
    assert_eq!((pool.total(), pool.record().len()), (10, 0));
}

#[test]
fn only_free_pages_are_given_back_and_the_rest_when_it_is_free() {
    let pool = Fixture::new("busy", 0, 100);
    let mut claim = pool.claim();
    claim.grow(&PoolLock::acquire(&pool.place).unwrap(), 10).unwrap();
    pool.set("free_hugepages", 7);
    pool.set("resv_hugepages", 3);
    drop(claim);
    assert_eq!(pool.total(), 6, "four were free and promised to nobody");
    assert_eq!(pool.record()[0].pages, 6);
    pool.set("free_hugepages", 9);
    drop(PoolLock::acquire(&pool.place).unwrap());
    assert_eq!((pool.total(), pool.record().len()), (0, 0));
}

#[test]
fn a_forked_child_gives_nothing_back() {
    let pool = Fixture::new("forked", 0, 100);
    let mut claim = pool.claim();
    claim.grow(&PoolLock::acquire(&pool.place).unwrap(), 10).unwrap();
    let recorded = pool.record();
    let mut claim = Some(claim);
    // SAFETY: see the head of the file.
    let left = unsafe {
        in_child(|| {
            drop(claim.take());
            true
        })
    };
    assert!(left);
    assert_eq!((pool.total(), pool.record()), (10, recorded));
    drop(claim);
    assert_eq!((pool.total(), pool.record().len()), (0, 0));
}

#[test]
fn a_pool_that_somebody_emptied_is_left_at_zero() {
    let pool = Fixture::new("emptied", 0, 100);
    let mut claim = pool.claim();
    claim.grow(&PoolLock::acquire(&pool.place).unwrap(), 10).unwrap();
    pool.set("nr_hugepages", 0);
    pool.set("free_hugepages", 0);
    drop(claim);
    assert_eq!(pool.total(), 0);
    drop(PoolLock::acquire(&pool.place).unwrap());
    assert_eq!(pool.total(), 0);
}

#[test]
fn surplus_pages_are_not_counted_as_added() {
    let pool = Fixture::new("surplus", 10, 100);
    pool.set("surplus_hugepages", 4);
    let mut claim = pool.claim();
    claim.grow(&PoolLock::acquire(&pool.place).unwrap(), 3).unwrap();
    // The kernel would lower the surplus; the file of the fixture stays: 9 - 4 persistent.
    assert_eq!(pool.total(), 9);
    assert_eq!(claim.pages(), 0);
}

#[test]
fn what_an_ended_process_added_is_given_back_once() {
    let pool = Fixture::new("ended", 20, 100);
    let alive = Claim { pages: 4, ..Claim::new(key(Process::this().unwrap(), u64::MAX)) };
    pool.write_record(&[ended(5), alive]);
    drop(PoolLock::acquire(&pool.place).unwrap());
    assert_eq!((pool.total(), pool.record()), (15, vec![alive]));
    drop(PoolLock::acquire(&pool.place).unwrap());
    assert_eq!(pool.total(), 15);
}

#[test]
fn an_ended_change_is_settled_before_it_is_given_back() {
    let pool = Fixture::new("unsettled", 20, 100);
    // Killed between the growth by 6 and the note of it.
    pool.write_record(&[Claim { before: 14, change: 6, ..ended(0) }]);
    drop(PoolLock::acquire(&pool.place).unwrap());
    assert_eq!(pool.total(), 14);
    // Killed between the note of a growth by 6 and the growth.
    pool.write_record(&[Claim { before: 14, change: 6, ..ended(0) }]);
    drop(PoolLock::acquire(&pool.place).unwrap());
    assert_eq!(pool.total(), 14);
}

#[test]
fn a_garbled_record_takes_nothing_and_is_told() {
    let pool = Fixture::new("garbled", 20, 20);
    let mut text = claims::format(&[ended(21)], &boot_id().unwrap()).into_bytes();
    text.extend(b"1 2 3\n\xff\xfe\n");
    replace_private(&pool.root.join("lock.claims"), &text).unwrap();
    let lock = PoolLock::acquire(&pool.place).unwrap();
    assert_eq!(pool.total(), 20);
    assert_eq!(lock.notes().len(), 3, "{:?}", lock.notes());
    drop(lock);
    assert!(PoolLock::acquire(&pool.place).unwrap().notes().is_empty());
}

#[test]
fn a_lock_through_a_link_or_with_two_names_is_refused() {
    let pool = Fixture::new("links", 20, 20);
    let (lock, other) = (pool.root.join("lock"), pool.root.join("other"));
    fs::write(&other, "").unwrap();
    std::os::unix::fs::symlink(&other, &lock).unwrap();
    assert!(PoolLock::acquire(&pool.place).is_err());
    fs::remove_file(&lock).unwrap();
    fs::hard_link(&other, &lock).unwrap();
    assert!(PoolLock::acquire(&pool.place).is_err());
    fs::remove_file(&other).unwrap();
    assert!(PoolLock::acquire(&pool.place).is_ok());
}

#[test]
fn holders_exclude_each_other() {
    let pool = Fixture::new("exclude", 0, 1000);
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                for _ in 0..10 {
                    let mut claim = pool.claim();
                    claim.grow(&PoolLock::acquire(&pool.place).unwrap(), 3).unwrap();
                    assert_eq!(claim.pages(), 3);
                }
            });
        }
    });
    assert_eq!((pool.total(), pool.record().len()), (0, 0));
    assert_eq!(size().bytes(), Bytes::mib(2));
}

#[test]
fn a_demotion_that_the_kernel_does_not_make_leaves_both_pools_as_they_were() {
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
    let larger = pool.place.pool(PageSize::new(1 << 30).unwrap()).unwrap();
    assert_eq!(larger.demote_size(), Some(size()));
    let mut claim = pool.claim();
    {
        let lock = PoolLock::acquire(&pool.place).unwrap();
        assert_eq!(claim.grow_by_demotion(&lock, larger.clone(), 4).unwrap(), 0);
    }
    assert_eq!((pool.total(), larger.counts().unwrap().total), (3, 2));
    assert_eq!((pool.record().len(), claim.pages()), (0, 0));
}

#[test]
fn a_demotion_gives_contiguous_pages_and_all_are_given_back() {
    let place = Place::machine();
    let (Some(small), Some(large)) =
        (place.pool(size()), place.pool(PageSize::new(1 << 30).unwrap()))
    else {
        println!("skipped: no pools of 2 MiB and 1 GiB");
        return;
    };
    if !small.is_writable() || large.demote_size() != Some(size()) {
        println!("skipped: the pools cannot be changed, or 1 GiB pages not split");
        return;
    }
    let mut claim = PoolClaim::new(small.clone(), place.clone());
    let lock = PoolLock::acquire(&place).unwrap();
    let before = (small.counts().unwrap().persistent(), large.counts().unwrap().persistent());
    let added = claim.grow_by_demotion(&lock, large.clone(), 1).unwrap();
    let between = (small.counts().unwrap().persistent(), large.counts().unwrap().persistent());
    let back = claim.shrink(&lock, added).unwrap();
    let after = (small.counts().unwrap().persistent(), large.counts().unwrap().persistent());
    drop(lock);
    if added == 0 {
        println!("skipped: no page of 1 GiB could be had");
        return;
    }
    println!("pages before {before:?}, between {between:?}, after {after:?}");
    assert_eq!((added, back, claim.pages()), (512, 512, 0));
}
