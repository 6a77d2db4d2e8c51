//! Tests the keeper's work without its thread: the work allocates nothing, and follows readings.
#![allow(unsafe_code)] // Safety: the allocator passes every call to the system's.

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::thread;

use super::*;
use crate::heap::Settings;
use crate::pages::space::UNIT_SLICES;

struct Counting;

#[global_allocator]
static ALLOCATOR: Counting = Counting;

thread_local! {
    static CALLS: Cell<u64> = const { Cell::new(0) };
}

// SAFETY: the system's allocator does the work.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        CALLS.set(CALLS.get() + 1);
        // SAFETY: the caller keeps the contract.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, at: *mut u8, layout: Layout) {
        CALLS.set(CALLS.get() + 1);
        // SAFETY: the caller keeps the contract.
        unsafe { System.dealloc(at, layout) }
    }
}

/// Runs `body` in a new thread, because a keeper gives its thread a new, empty table of open files.
/// The keeper's turns have no length.
fn with_keeper(body: impl FnOnce(&mut Keeper) + Send + 'static) {
    let run = move || {
        set(&Settings::DEFAULT);
        assert!(fork::begin());
        let mut keeper = Keeper::new(Space::reserve(64).unwrap());
        keeper.turn = Duration::ZERO;
        body(&mut keeper);
    };
    thread::spawn(run).join().unwrap();
}

fn use_up(space: &Space, units: usize) {
    let slices = 0..units * UNIT_SLICES;
    space.take(slices.clone()).unwrap();
    let (addr, bytes) = space.memory_of(0, slices.len());
    let pages = (addr..addr + bytes).step_by(glebe::page_size().bytes().as_usize());
    // SAFETY: the slices were just taken.
    pages.for_each(|at| unsafe { std::ptr::with_exposed_provenance_mut::<u8>(at).write(1) });
    space.free(slices);
}

fn slices(units: usize) -> Bytes {
    Bytes::new((units * UNIT_SLICES * SLICE) as u64)
}

#[test]
fn turns_looks_and_what_they_come_to_allocate_nothing() {
    with_keeper(|keeper| {
        let space = keeper.space;
        let before = CALLS.get();
        assert!(before > 0, "to begin does allocate");
        for _ in 0..3 {
            use_up(space, 20);
            for _ in 0..2 * AGE_TURNS {
                keeper.pause = Duration::ZERO;
                keeper.turn();
            }
            space.look_at_volatile();
            keeper.give_back(&Reading { short: slices(3), ..Reading::default() });
            keeper.give_back(&Reading { crowded: slices(3), ..Reading::default() });
            use_up(space, 20);
            space.give_back_at(&(0..UNIT_SLICES));
        }
        assert_eq!(CALLS.get() - before, 0);
        let counted = space.counters.get();
        assert!(counted.marked > 0 && counted.dropped_volatile > 0, "{counted:?}");
        assert!(looks() > 0 && keeper.gauge.is_some());
    });
}

#[test]
fn a_keeper_that_is_blind_tries_again_and_not_at_each_look() {
    with_keeper(|keeper| {
        (keeper.gauge, keeper.tried) = (None, Instant::now());
        keeper.look();
        assert!(keeper.gauge.is_none() && !mechanisms().gauge);
        keeper.tried -= CALM;
        keeper.look();
        assert!(keeper.gauge.is_some() && mechanisms().gauge);
    });
}

#[test]
fn what_is_short_goes_and_what_is_crowded_goes_of_marked_memory() {
    with_keeper(|keeper| {
        let space = keeper.space;
        use_up(space, 20);
        for _ in 0..2 * AGE_TURNS {
            keeper.turn();
        }
        let all = 20 * UNIT_SLICES as u64;
        assert_eq!(space.counters.get().volatile(), all);
        keeper.give_back(&Reading { short: slices(3), crowded: slices(5), ..Reading::default() });
        // Marked memory given back for `short` counts for `crowded`.
        assert_eq!(space.counters.get().dropped_volatile, 5 * UNIT_SLICES as u64);
        keeper.give_back(&Reading::default());
        assert_eq!(space.counters.get().volatile(), all - 5 * UNIT_SLICES as u64);
    });
}

#[test]
fn a_free_ends_a_long_rest_but_near_a_limit() {
    with_keeper(|keeper| {
        keeper.turn = Duration::from_millis(10);
        let heard = |keeper: &Keeper| {
            [None, Some(keeper.turn), Some(CALM)].map(|rest| keeper.hears_frees(rest))
        };
        keeper.pause = CALM;
        assert_eq!(heard(keeper), [true, false, true]);
        keeper.pause = CALM / 2;
        assert_eq!(heard(keeper), [true, false, false]);
    });
}

#[test]
fn a_keeper_rests_without_a_timer_when_all_is_marked() {
    with_keeper(|keeper| {
        use_up(keeper.space, 20);
        keeper.turn = Duration::from_millis(1);
        assert!(keeper.turn().is_some(), "young memory ages");
        for _ in 0..2 * AGE_TURNS {
            thread::sleep(keeper.turn);
            keeper.turn();
        }
        keeper.is_pressed = false;
        assert_eq!(keeper.turn(), None);
        if !keeper.is_huge {
            return println!("skipped: no huge pages, so slices are marked by themselves");
        }
        // Free parts of units stay unmarked, so the keeper watches them.
        keeper.space.take(0..1).unwrap();
        use_up_but_one(keeper.space);
        (0..2 * AGE_TURNS).for_each(|_| {
            thread::sleep(keeper.turn);
            keeper.turn();
        });
        assert!(!keeper.is_due && keeper.turn().is_some());
    });
}

fn use_up_but_one(space: &Space) {
    for unit in 0..10 {
        let slices = unit * UNIT_SLICES + 1..(unit + 1) * UNIT_SLICES;
        space.take(unit * UNIT_SLICES..unit * UNIT_SLICES + 1).unwrap();
        space.take(slices.clone()).unwrap();
        space.free(slices);
    }
}

/// Returns a reading of a cgroup that uses `used` of 640 MiB, and `rise` MiB more each second.
fn reading(used: u64, rise: u64) -> Reading {
    let (limit, used, rise_a_second) = (Bytes::mib(640), Bytes::mib(used), Bytes::mib(rise));
    let pressure =
        Pressure { scope: Scope::Group, limit, used, rise_a_second, ..Pressure::default() };
    let margin = settings::policy().margin_at(&pressure);
    Reading { pressure: Some(pressure), margin, ..Reading::default() }
}

#[test]
fn where_nobody_else_takes_memory_the_least_margin_is_enough() {
    with_keeper(|keeper| {
        assert!(keeper.is_quiet(&reading(540, 0)));
        assert!(keeper.is_quiet(&reading(540, 90)), "it rises by 9 MiB in a tenth of a second");
        assert!(!keeper.is_quiet(&reading(540, 110)), "by 11");
        assert!(keeper.is_quiet(&reading(600, 0)) && !keeper.is_quiet(&reading(601, 0)));
        assert!(!keeper.is_quiet(&Reading::default()), "it sees nothing");
        keeper.short_at = Some(Instant::now());
        assert!(!keeper.is_quiet(&reading(540, 0)), "just now it was short");
        keeper.short_at = Instant::now().checked_sub(ALERT);
        assert!(keeper.is_quiet(&reading(540, 0)));
    });
}

#[test]
fn what_is_short_stays_until_somebody_else_takes_memory() {
    with_keeper(|keeper| {
        use_up(keeper.space, 20);
        let mut heed = |rise| {
            keeper.heed(Reading { short: slices(3), ..reading(540, rise) });
            let given = keeper.space.counters.get().dropped_hot;
            (given / UNIT_SLICES as u64, keeper.is_pressed, keeper.is_alert())
        };
        assert_eq!(heed(0), (0, false, false));
        assert_eq!(heed(110), (3, true, true));
        assert_eq!(heed(0), (6, true, true), "others may go on");
    });
}
