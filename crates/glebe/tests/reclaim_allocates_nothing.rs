//! Tests that [`Gauge::look`] never allocates or frees, because an allocator calls it.
//!
//! This program's allocator counts each thread's calls.
//!
//! # Safety
//! The allocator passes every call on to the system's.
#![allow(unsafe_code)]

#[path = "reclaim/fixture.rs"]
mod fixture;

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;

use fixture::Tree;
use glebe::internal::{gauge_below, Free, Gauge, Reading};
use glebe::reclaim::{Policy, Scope};
use glebe::units::Bytes;
use glebe_testing::cgroup::{enter, Group};
use glebe_testing::inside::{inside, InsideEnd, GROUP};

struct Counting;

#[global_allocator]
static ALLOCATOR: Counting = Counting;

thread_local! {
    /// Allocator calls of this thread. The cell needs no allocation and no destructor.
    static CALLS: Cell<u64> = const { Cell::new(0) };
}

fn count() {
    CALLS.with(|calls| calls.set(calls.get() + 1));
}

// SAFETY: the system's allocator does the work.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        count();
        // SAFETY: the caller upholds the system allocator's contract.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, at: *mut u8, layout: Layout) {
        count();
        // SAFETY: the system allocator returned `at`, as the caller promises.
        unsafe { System.dealloc(at, layout) }
    }
}

const FREE: Free =
    Free { marked: Bytes::mib(8), unmarked: Bytes::mib(8), rewritten: Bytes::mib(8) };
const LIMIT: Bytes = Bytes::mib(96);
const LESS: Bytes = Bytes::mib(48);

fn look(gauge: &mut Gauge) -> Reading {
    let before = CALLS.get();
    let reading = gauge.look(FREE);
    gauge.exchanged(Bytes::ZERO, reading.short);
    let calls = CALLS.get() - before;
    assert_eq!(calls, 0, "calls of the allocator, for {reading:?}");
    reading
}

fn limit(gauge: &mut Gauge) -> (Scope, Bytes) {
    let pressure = look(gauge).pressure.expect("something has a limit");
    (pressure.scope, pressure.limit)
}

#[test]
fn the_allocator_counts() {
    let before = CALLS.get();
    drop(std::hint::black_box(Box::new(1)));
    assert_eq!(CALLS.get() - before, 2);
}

#[test]
fn calm_short_crowded_stale_or_blind() {
    let tree = Tree::v2("quiet", LIMIT, Bytes::mib(10));
    let mut gauge = gauge_below(tree.root(), Policy::default()).unwrap();
    assert_eq!(look(&mut gauge).short, Bytes::ZERO);
    tree.set_used(LIMIT);
    assert!(look(&mut gauge).short > Bytes::ZERO);
    tree.set("sys/fs/cgroup/a/memory.stat", &format!("inactive_file {}\n", LIMIT.get()));
    gauge.find().unwrap();
    assert!(look(&mut gauge).crowded > Bytes::ZERO);

    for text in ["a thing of more than twenty-four letters, é", "\u{1f600}", ""] {
        tree.set("sys/fs/cgroup/a/memory.current", text);
        let reading = look(&mut gauge);
        assert!(reading.is_stale && reading.pressure.is_some());
    }
    tree.set("proc/meminfo", "none\n");
    assert_eq!(look(&mut gauge).pressure, None);
    gauge.close();
    assert_eq!(look(&mut gauge).pressure, None);
}

#[test]
fn on_this_machine() {
    let mut gauge = Gauge::new(Policy::default()).unwrap();
    for _ in 0..100 {
        assert!(limit(&mut gauge).1 > Bytes::ZERO);
    }
    gauge.close();
    assert_eq!(look(&mut gauge).pressure, None);
}

#[test]
fn in_a_group_that_is_removed() {
    let ended = inside(LIMIT, "in_a_group_that_is_removed", || {
        let outer = std::path::PathBuf::from(std::env::var_os(GROUP).unwrap());
        let inner = match Group::make(LESS) {
            Ok(inner) => inner,
            Err(why) => return println!("skipped: {why}"),
        };
        enter(inner.dir());
        let mut gauge = Gauge::new(Policy::default()).unwrap();
        assert_eq!(limit(&mut gauge), (Scope::Group, LESS));
        enter(&outer);
        drop(inner);
        let reading = look(&mut gauge);
        assert!(reading.is_stale, "{reading:?}");
        gauge.find().unwrap();
        assert_eq!(limit(&mut gauge), (Scope::Group, LIMIT));
        assert!(!look(&mut gauge).is_stale);
    });
    assert_ne!(ended, InsideEnd::Killed);
}

/// Runs alone, because a fault applies to the whole process.
#[cfg(feature = "faults")]
#[test]
fn when_calls_fail() {
    use glebe::internal::sys::fault::{arm, disarm, Fault, Lasting};

    glebe_testing::alone!();
    let tree = Tree::v2("faults", LIMIT, LIMIT);
    let mut gauge = gauge_below(tree.root(), Policy::default()).unwrap();
    let mut met = 0;
    for nth in 1.. {
        for (lasting, choice) in [(Lasting::Once, 0), (Lasting::EveryCall, 1)] {
            arm(Fault { nth, choice, lasting });
            let reading = look(&mut gauge);
            let refused = disarm().refused;
            if refused.is_empty() {
                return assert!(met > 8, "hardly a fault was met: {met}");
            }
            met += 1;
            assert!(reading.is_stale || reading.pressure.is_some(), "{refused:?}: {reading:?}");
        }
        assert_eq!(limit(&mut gauge), (Scope::Group, LIMIT));
    }
}
