//! Tests shared files as parts of a reclaimer: the order of purges, and files that are not purged.

use std::os::fd::OwnedFd;
use std::sync::Arc;

use glebe::internal::reclaimer_below;
use glebe::reclaim::{Class, Reclaimer};
use glebe::units::Bytes;
use glebe::volatile::{Engine, Order, Priority, Purger, Region, Shared};

use super::fixture::Tree;
use super::order::{mib, policy, tree};

fn shared(len: u64) -> (Shared, Arc<Purger>) {
    let granule = Bytes::new(64 << 10);
    let shared = Shared::options().granule(granule).create(Bytes::mib(len)).unwrap();
    let pin = shared.pin(mib(0, len)).unwrap();
    (0..len).for_each(|at| pin.write(Bytes::mib(at), &vec![1; 1 << 20]).unwrap());
    drop(pin);
    let purger = Purger::adopt(shared.fd().try_clone_to_owned().unwrap()).unwrap();
    (shared, Arc::new(purger))
}

fn mark(shared: &Shared, range: std::ops::Range<Bytes>) {
    shared.mark(range, Priority::NORMAL, Order::Fifo).unwrap();
}

fn lost(shared: &Shared) -> Vec<u64> {
    let page = glebe::page_size().bytes().get();
    let lost = shared.unmark(Bytes::ZERO..shared.len()).unwrap();
    let mut mib: Vec<u64> = lost
        .runs()
        .iter()
        .flat_map(|run| run.start()..run.end())
        .map(|at| (at * page) >> 20)
        .collect();
    mib.dedup();
    mib
}

#[test]
fn files_and_regions_give_by_age_and_last_in_goes_before_all() {
    let ((one, of_one), (other, of_other)) = (shared(4), shared(4));
    let region = Region::options().engine(Engine::Tag).build(Bytes::mib(4)).unwrap();
    region.write(Bytes::ZERO, &vec![7; 4 << 20]).unwrap();
    let region = Arc::new(region);
    let tree = tree("files", 100);
    let reclaimer = reclaimer_below(tree.root(), policy()).unwrap();
    reclaimer.add(&region).unwrap();
    reclaimer.add(&of_one).unwrap();
    reclaimer.add(&of_other).unwrap();
    assert!(reclaimer.add(&of_one).is_ok(), "it is its own");
    mark(&one, mib(3, 4));
    mark(&other, mib(0, 1));
    region.mark(mib(0, 1), Priority::NORMAL).unwrap();
    mark(&one, mib(0, 2));
    mark(&other, mib(2, 3));
    other.mark(mib(3, 4), Priority::NORMAL, Order::Lifo).unwrap();
    one.mark(mib(2, 3), Priority::HIGHEST, Order::Lifo).unwrap();
    let done = reclaimer.shed(Bytes::mib(5)).unwrap();
    assert_eq!(done.freed_of(Class::Volatile(Priority::NORMAL)), Bytes::mib(5), "{done:?}");
    assert_eq!(region.unmark(mib(0, 4)).unwrap().runs().len(), 1);
    assert_eq!(of_one.freed()[4] + of_other.freed()[4], Bytes::mib(4));
    assert_eq!((lost(&one), lost(&other)), (vec![0, 3], vec![0, 3]));
}

#[test]
fn what_a_file_has_marked_is_no_page_cache_and_goes_when_memory_is_short() {
    let (file, purger) = shared(32);
    mark(&file, mib(0, 32));
    let tree = tree("short", 100);
    tree.set("sys/fs/cgroup/a/memory.stat", "inactive_file 8388608\nactive_file 0\n");
    let reclaimer = reclaimer_below(tree.root(), policy().keep_files(false)).unwrap();
    reclaimer.add(&purger).unwrap();
    assert_eq!(reclaimer.poll().unwrap().asked, Bytes::ZERO);
    // Page cache counts as room, whatever is marked.
    tree.set_used(Bytes::mib(158));
    assert_eq!(reclaimer.poll().unwrap().asked, Bytes::ZERO);
    tree.set_used(Bytes::mib(164));
    tree.set("sys/fs/cgroup/a/memory.stat", "inactive_file 4194304\nactive_file 0\n");
    let done = reclaimer.poll().unwrap();
    assert!(done.freed() >= Bytes::mib(10) && done.failed == 0, "{done:?}");
}

#[test]
fn a_file_that_cannot_be_purged_keeps_no_other() {
    let ((bad, of_bad), (good, of_good)) = (shared(2), shared(2));
    let (unused, of_unused) = shared(2);
    for file in [&bad, &good, &unused] {
        mark(file, mib(0, 2));
    }
    drop(unused);
    let pin = bad.pin(mib(0, 2)).unwrap();
    let tree = tree("bad", 100);
    let reclaimer = reclaimer_below(tree.root(), policy()).unwrap();
    for purger in [&of_unused, &of_bad, &of_good] {
        reclaimer.add(purger).unwrap();
    }
    assert_eq!(reclaimer.shed(Bytes::mib(1)).unwrap().freed(), Bytes::mib(1));
    drop(pin);
    assert_eq!((lost(&bad).len(), lost(&good)), (0, vec![0]));
    drop(of_good);
    assert_eq!(reclaimer.shed(Bytes::mib(2)).unwrap().freed(), Bytes::ZERO);
}

#[test]
fn one_purger_has_a_file_until_it_is_dropped() {
    let (file, first) = shared(1);
    let fd = || -> OwnedFd { file.fd().try_clone_to_owned().unwrap() };
    let second = Purger::adopt(fd()).unwrap();
    assert!(first.claim().unwrap() && first.claim().unwrap());
    assert!(!second.claim().unwrap());
    // A purger without the claim can still purge.
    mark(&file, mib(0, 1));
    assert_eq!(second.purge(Bytes::mib(1), Priority::HIGHEST).unwrap(), Bytes::mib(1));
    assert_eq!(second.freed()[4], Bytes::mib(1));
    drop(first);
    assert!(second.claim().unwrap());
}

#[test]
fn what_would_go_is_what_goes() {
    let (file, purger) = shared(4);
    file.mark(mib(2, 4), Priority::LOWEST, Order::Fifo).unwrap();
    mark(&file, mib(0, 1));
    let pin = file.pin(mib(2, 3)).unwrap();
    let next = purger.next(Bytes::mib(8)).unwrap();
    assert!(next.is_sorted() && next.len() == 32, "{}", next.len());
    assert!(next[..16].iter().all(|next| next.priority == Priority::LOWEST));
    assert_eq!(purger.next(Bytes::new(1)).unwrap(), next[..1]);
    assert_eq!(purger.purge(Bytes::mib(8), Priority::HIGHEST).unwrap(), Bytes::mib(2));
    assert_eq!(purger.look().unwrap().pinned_bytes, Bytes::mib(1));
    drop(pin);
    assert_eq!(lost(&file), vec![0, 3]);
    drop(file);
    assert!(purger.next(Bytes::mib(8)).unwrap().is_empty());
}

#[test]
fn groups_that_are_given_count_in_place_of_those_above() {
    let given = Tree::v2("given", Bytes::mib(160), Bytes::mib(158));
    let dir = given.root().join("sys/fs/cgroup/a");
    given.set("sys/fs/cgroup/a/cgroup.controllers", "memory\n");
    let (file, purger) = shared(8);
    mark(&file, mib(0, 8));
    let policy = policy().keep_files(false);
    let reclaimer = Reclaimer::of_groups(std::slice::from_ref(&dir), policy).unwrap();
    reclaimer.add(&purger).unwrap();
    let done = reclaimer.poll().unwrap();
    assert_eq!(done.freed(), Bytes::mib(8), "{done:?}");
    let watched = reclaimer.watched().unwrap();
    assert_eq!(watched.limit, Ok(dir.display().to_string()));
    let error = Reclaimer::of_groups(&[given.root().join("proc")], policy).unwrap_err();
    assert!(error.to_string().contains("no memory cgroup"), "{error}");
}
