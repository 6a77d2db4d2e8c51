//! Tests the order in which the reclaimer frees memory of its parts, and caps on marked memory.

use std::sync::Arc;
use std::time::Duration;

use glebe::internal::reclaimer_below;
use glebe::reclaim::{Class, Policy};
use glebe::units::Bytes;
use glebe::volatile::{Engine, Error, Priority, Region};

use super::fixture::Tree;

pub fn mib(from: u64, to: u64) -> std::ops::Range<Bytes> {
    Bytes::mib(from)..Bytes::mib(to)
}

fn region(len: u64) -> Arc<Region> {
    let region = Region::options().engine(Engine::Tag).build(Bytes::mib(len)).unwrap();
    let block = vec![7; 1 << 20];
    (0..len).for_each(|at| region.write(Bytes::mib(at), &block).unwrap());
    Arc::new(region)
}

fn lost(region: &Region) -> Vec<u64> {
    lost_of(region, Bytes::ZERO..region.len())
}

fn lost_of(region: &Region, range: std::ops::Range<Bytes>) -> Vec<u64> {
    let page = glebe::page_size().bytes().get();
    let lost = region.unmark(range).unwrap();
    let starts = lost.runs().iter().flat_map(|run| run.start()..run.end());
    let mut mib: Vec<u64> = starts.map(|at| (at * page) >> 20).collect();
    mib.dedup();
    mib
}

/// Returns a policy that ignores the speed of a rise, because usage in these tests jumps.
pub fn policy() -> Policy {
    Policy::default().margin(Bytes::mib(8)).lead(Duration::ZERO)
}

pub fn tree(name: &str, used: u64) -> Tree {
    Tree::v2(name, Bytes::mib(160), Bytes::mib(used))
}

#[test]
fn the_oldest_of_all_regions_goes_first_within_a_priority() {
    let (one, other) = (region(8), region(8));
    let tree = tree("order", 100);
    let reclaimer = reclaimer_below(tree.root(), policy()).unwrap();
    reclaimer.add(&one).unwrap();
    reclaimer.add(&other).unwrap();
    let mark = |region: &Region, range, priority| {
        region.mark(range, priority).unwrap();
        std::thread::sleep(Duration::from_millis(2));
    };
    mark(&one, mib(0, 1), Priority::NORMAL);
    mark(&other, mib(0, 1), Priority::NORMAL);
    mark(&one, mib(1, 4), Priority::NORMAL);
    mark(&other, mib(1, 2), Priority::NORMAL);
    mark(&other, mib(7, 8), Priority::LOWEST);
    mark(&one, mib(7, 8), Priority::HIGHEST);
    assert!(reclaimer.poll().unwrap().asked == Bytes::ZERO);
    // The group lacks 1 MiB, and shedding adds a quarter of the margin. The lowest priority goes
    // first, then the oldest ranges.
    tree.set_used(Bytes::mib(153));
    let done = reclaimer.poll().unwrap();
    assert_eq!(done.asked, Bytes::mib(3));
    assert_eq!(done.freed_of(Class::Volatile(Priority::LOWEST)), Bytes::mib(1));
    assert_eq!(done.freed_of(Class::Volatile(Priority::NORMAL)), Bytes::mib(2));
    assert_eq!((lost_of(&one, mib(0, 4)), lost_of(&other, mib(0, 8))), (vec![0], vec![0, 7]));
    let done = reclaimer.poll().unwrap();
    assert_eq!(done.asked, Bytes::mib(1), "the highest is all that is left");
    assert_eq!(lost_of(&one, mib(0, 8)), [7]);
}

#[test]
fn of_a_range_the_start_goes_and_a_younger_one_stays() {
    let (one, other) = (region(8), region(8));
    let tree = tree("parts", 100);
    let reclaimer = reclaimer_below(tree.root(), policy()).unwrap();
    reclaimer.add(&one).unwrap();
    reclaimer.add(&other).unwrap();
    one.mark(mib(1, 7), Priority::NORMAL).unwrap();
    std::thread::sleep(Duration::from_millis(2));
    other.mark(mib(0, 8), Priority::NORMAL).unwrap();
    tree.set_used(Bytes::mib(154));
    assert_eq!(reclaimer.poll().unwrap().freed(), Bytes::mib(4));
    assert_eq!((lost_of(&one, mib(0, 8)), lost_of(&other, mib(0, 8))), (vec![1, 2, 3, 4], vec![]));
}

/// Marked memory may grow by the group's free memory minus the margin.
#[test]
fn marked_memory_stays_within_what_is_free() {
    let region = region(32);
    let tree = tree("caps", 140);
    let reclaimer = reclaimer_below(tree.root(), policy()).unwrap();
    reclaimer.add(&region).unwrap();
    assert_eq!(reclaimer.poll().unwrap().asked, Bytes::ZERO);
    region.mark(mib(0, 12), Priority::NORMAL).unwrap();
    assert_eq!(region.stats().dropped_by_cap, 0);
    region.mark(mib(12, 14), Priority::NORMAL).unwrap();
    let page = glebe::page_size().bytes().get();
    assert_eq!(region.stats().dropped_by_cap, (2 << 20) / page);
    assert_eq!(lost(&region), [0, 1]);
    drop(reclaimer);
    region.mark(mib(0, 32), Priority::NORMAL).unwrap();
    assert_eq!(region.stats().dropped_by_cap, (2 << 20) / page);
}

#[test]
fn a_cap_can_be_changed_while_the_region_is_used() {
    let region = region(8);
    region.mark(mib(0, 4), Priority::HIGHEST).unwrap();
    region.mark(mib(4, 8), Priority::LOWEST).unwrap();
    region.set_cap(Some(Bytes::mib(5))).unwrap();
    assert_eq!(lost(&region), [4, 5, 6]);
    region.set_cap(None).unwrap();
    region.mark(mib(0, 8), Priority::NORMAL).unwrap();
    assert!(lost(&region).is_empty());
    assert!(matches!(region.set_cap(Some(Bytes::ZERO)), Err(Error::ZeroCap)));
}

#[test]
fn refills_and_budgets_follow_with_hysteresis() {
    use glebe::reclaim::Budget;
    let (tree, budget) = (tree("refills", 100), Budget::new(Bytes::mib(40)));
    let policy = policy().withhold(Duration::from_millis(50));
    let reclaimer = reclaimer_below(tree.root(), policy).unwrap();
    reclaimer.add(&budget).unwrap();
    let refills = reclaimer.refills();
    budget.set_held(Bytes::mib(30));
    reclaimer.poll().unwrap();
    assert!(refills.are_allowed() && budget.allowed() == Bytes::mib(40));
    tree.set_used(Bytes::mib(158));
    let done = reclaimer.poll().unwrap();
    assert_eq!(done.freed_of(Class::Budgets), Bytes::mib(8));
    assert_eq!((done.freed(), budget.allowed()), (Bytes::ZERO, Bytes::mib(22)));
    // The budget will soon free 8 MiB, so the reclaimer asks for no more.
    assert_eq!(reclaimer.poll().unwrap().asked, Bytes::ZERO);
    assert!(!refills.are_allowed());
    // Memory is neither short nor calm, so nothing changes.
    tree.set_used(Bytes::mib(148));
    budget.set_held(Bytes::mib(20));
    std::thread::sleep(Duration::from_millis(80));
    reclaimer.poll().unwrap();
    assert!(!refills.are_allowed() && budget.allowed() == Bytes::mib(22));
    tree.set_used(Bytes::mib(120));
    std::thread::sleep(Duration::from_millis(80));
    reclaimer.poll().unwrap();
    assert!(refills.are_allowed());
    assert_eq!(budget.allowed(), Bytes::mib(36), "half of what is beyond the margin");
    assert_eq!(reclaimer.stats().withheld, 1);
    drop(reclaimer);
    assert_eq!(budget.allowed(), Bytes::mib(40));
}
