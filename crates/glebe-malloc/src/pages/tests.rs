//! Tests the page layer without mimalloc: effects of each step, and many threads at once.
#![allow(unsafe_code)] // Safety: each test touches only slices that it has taken.

use std::ops::Range;
use std::ptr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use super::give_back::{Given, Which};
use super::mark::Manner;
use super::space::{Space, Taken, SLICE, UNIT_SLICES};
use super::state::Slice;

const AGE: u8 = 2;
const HUGE: Manner = Manner { age: AGE, is_huge: true, is_alone: true };
const BASE: Manner = Manner { is_huge: false, ..HUGE };
const UNITS: usize = 16;

fn space() -> &'static Space {
    Space::reserve(UNITS).unwrap()
}

fn page() -> usize {
    glebe::page_size().bytes().as_usize()
}

fn byte(space: &Space, slice: usize, at: usize) -> *mut u8 {
    ptr::with_exposed_provenance_mut(space.memory_of(slice, 1).0 + at)
}

fn fill(space: &Space, slices: Range<usize>, value: u8) {
    for slice in slices {
        // SAFETY: the caller has taken the slice.
        (0..SLICE).step_by(page()).for_each(|at| unsafe { byte(space, slice, at).write(value) });
    }
}

fn is_all(space: &Space, slices: Range<usize>, value: u8) -> bool {
    let is = |slice| {
        // SAFETY: the caller has taken the slice.
        (0..SLICE).step_by(page()).all(|at| unsafe { byte(space, slice, at).read() == value })
    };
    slices.into_iter().all(is)
}

fn take(space: &Space, slices: Range<usize>) -> Taken {
    space.take(slices).expect("accessible")
}

fn use_up(space: &Space, slices: Range<usize>) {
    take(space, slices.clone());
    fill(space, slices.clone(), 1);
    space.free(slices);
}

fn grow_old(space: &Space) {
    (0..AGE).for_each(|_| space.next_turn());
}

fn are(space: &Space, slices: Range<usize>, such: impl Fn(Slice) -> bool) -> bool {
    space.states()[slices].iter().all(|state| such(state.get()))
}

fn is_hot(slice: Slice) -> bool {
    matches!(slice, Slice::Hot(_))
}

fn is_volatile(slice: Slice) -> bool {
    slice == Slice::Volatile
}

#[test]
fn memory_that_was_never_used_or_is_gone_reads_as_zeros_and_says_so() {
    let space = space();
    let first = take(space, 0..4);
    assert_eq!((first.slices, first.cold, first.is_zero()), (4, 4, true));
    assert!(is_all(space, 0..4, 0));
    fill(space, 0..4, 9);
    space.free(1..3);
    assert!(!take(space, 1..3).is_zero());
    assert!(is_all(space, 0..4, 9), "a reuse finds what was there");
    space.free(0..4);
    assert_eq!(space.give_back(1, Which::Free).hot, 4, "a run is not cut");
    assert!(take(space, 0..5).is_zero());
    assert!(is_all(space, 0..5, 0));
    assert_eq!(space.counters.get().live(), 5);
}

#[test]
fn a_unit_is_marked_when_all_of_it_was_free_for_an_age() {
    let space = space();
    take(space, 0..2 * UNIT_SLICES);
    fill(space, 0..2 * UNIT_SLICES, 3);
    space.free(0..UNIT_SLICES);
    space.free(UNIT_SLICES..2 * UNIT_SLICES - 1);
    assert!(space.mark(HUGE).is_due, "too young");
    assert!(are(space, 0..UNIT_SLICES, is_hot));
    grow_old(space);
    let marked = space.mark(HUGE);
    assert_eq!((marked.slices, marked.is_due), (UNIT_SLICES, false));
    assert!(are(space, 0..UNIT_SLICES, is_volatile));
    assert!(are(space, UNIT_SLICES..2 * UNIT_SLICES - 1, is_hot), "a unit in use in part");
    assert_eq!(space.mark(HUGE).slices, 0, "nothing was freed since");

    let counted = space.counters.get();
    let now = (counted.live(), counted.hot(), counted.volatile());
    assert_eq!(now, (1, UNIT_SLICES as u64 - 1, UNIT_SLICES as u64));
    assert!(!take(space, 5..6).is_zero());
    space.free(5..6);
    assert!(space.mark(HUGE).is_due);
    grow_old(space);
    assert_eq!(space.mark(HUGE).slices, 1);
    assert_eq!(space.counters.get().volatile(), UNIT_SLICES as u64);
}

#[test]
fn without_huge_pages_runs_of_slices_are_marked() {
    let space = space();
    take(space, 0..UNIT_SLICES);
    fill(space, 0..UNIT_SLICES, 3);
    space.free(2..5);
    space.free(9..10);
    grow_old(space);
    space.free(20..21);
    let marked = space.mark(BASE);
    assert_eq!((marked.slices, marked.is_due), (4, true));
    assert!(are(space, 2..5, is_volatile) && are(space, 9..10, is_volatile));
    assert!(are(space, 20..21, is_hot));
    assert!(is_all(space, 0..2, 3) && is_all(space, 21..UNIT_SLICES, 3), "memory in use");
}

#[test]
fn what_others_share_is_dropped_and_not_marked() {
    let space = space();
    use_up(space, 0..UNIT_SLICES);
    grow_old(space);
    assert_eq!(space.mark(Manner { is_alone: false, ..HUGE }).slices, UNIT_SLICES);
    assert!(are(space, 0..UNIT_SLICES, |slice| slice == Slice::Gone));
    assert!(take(space, 0..UNIT_SLICES).is_zero());
    assert!(is_all(space, 0..UNIT_SLICES, 0));
    // A fork after `is_alone` was computed.
    space.free(0..UNIT_SLICES);
    grow_old(space);
    space.shared.store(1, Ordering::Relaxed);
    assert_eq!(space.mark(HUGE).slices, UNIT_SLICES);
    assert!(are(space, 0..UNIT_SLICES, |slice| slice == Slice::Gone));
}

#[test]
fn no_more_is_given_back_than_is_asked_and_whole_units_first_from_the_top() {
    let space = space();
    take(space, 0..4 * UNIT_SLICES);
    fill(space, 0..4 * UNIT_SLICES, 3);
    // Frees units 0 and 2, and all but a slice of unit 3.
    space.free(0..UNIT_SLICES);
    space.free(2 * UNIT_SLICES..4 * UNIT_SLICES - 1);
    assert_eq!(space.give_back(0, Which::Free), Given::default());
    assert_eq!(space.give_back(1, Which::Volatile), Given::default());
    assert_eq!(space.give_back(1, Which::Free).slices(), UNIT_SLICES);
    assert!(are(space, 2 * UNIT_SLICES..3 * UNIT_SLICES, |slice| slice == Slice::Gone));
    assert!(are(space, 0..UNIT_SLICES, is_hot));
    assert_eq!(space.give_back(UNIT_SLICES + 1, Which::Free).slices(), 2 * UNIT_SLICES - 1);
    assert_eq!(space.give_back(usize::MAX, Which::Free).slices(), 0);
    assert!(is_all(space, UNIT_SLICES..2 * UNIT_SLICES, 3), "memory in use");
    assert!(is_all(space, 4 * UNIT_SLICES - 1..4 * UNIT_SLICES, 3));
    let counted = space.counters.get();
    assert_eq!((counted.hot(), counted.volatile()), (0, 0));
}

#[test]
fn marked_memory_goes_alone_where_that_is_asked() {
    let space = space();
    use_up(space, 0..UNIT_SLICES);
    grow_old(space);
    space.mark(HUGE);
    use_up(space, UNIT_SLICES..2 * UNIT_SLICES);
    let given = space.give_back(usize::MAX, Which::Volatile);
    assert_eq!((given.volatile, given.hot), (UNIT_SLICES, 0));
    assert!(are(space, UNIT_SLICES..2 * UNIT_SLICES, is_hot));
}

#[test]
fn what_was_marked_is_known_until_it_is_dropped() {
    let space = space();
    use_up(space, 0..2 * UNIT_SLICES);
    grow_old(space);
    let unit = UNIT_SLICES as u64;
    space.mark(HUGE);
    assert_eq!(space.listed(), 2 * unit);
    // Used slices stay on the kernel's list.
    use_up(space, 0..UNIT_SLICES);
    assert_eq!(space.listed(), 2 * unit);
    grow_old(space);
    space.mark(HUGE);
    assert_eq!(space.listed(), 2 * unit, "once each");
    take(space, 0..3);
    space.give_back(UNIT_SLICES, Which::Free);
    assert_eq!(space.listed(), unit);
    space.give_back(usize::MAX, Which::Free);
    assert_eq!(space.listed(), 3);
}

#[test]
fn what_is_free_as_a_whole_goes_at_once_where_memory_is_short() {
    let space = space();
    use_up(space, 0..2 * UNIT_SLICES + 3);
    take(space, 2 * UNIT_SLICES..2 * UNIT_SLICES + 1);
    let given = space.give_back_at(&(UNIT_SLICES + 1..2 * UNIT_SLICES + 3));
    assert_eq!(given.slices(), UNIT_SLICES);
    assert!(are(space, 0..UNIT_SLICES, is_hot), "units of others stay");
    assert!(are(space, 2 * UNIT_SLICES + 1..2 * UNIT_SLICES + 3, is_hot));
    let _held = space.hold();
    assert_eq!(space.give_back_at(&(0..1)).slices(), 0, "nobody waits in a free");
}

fn reclaim(space: &Space, slices: Range<usize>) {
    let (addr, bytes) = space.memory_of(slices.start, slices.len());
    let len = glebe::Bytes::new(bytes as u64);
    let advice = glebe::internal::sys::memory::madvise::Advice::PageOut;
    // SAFETY: the memory is marked, and the kernel may take it at any time.
    unsafe { glebe::internal::sys::memory::madvise::advise(addr, len, advice).unwrap() };
}

#[test]
fn what_the_kernel_took_is_found_and_counts_as_gone() {
    let space = space();
    use_up(space, 0..2 * UNIT_SLICES);
    grow_old(space);
    assert_eq!(space.mark(BASE).slices, 2 * UNIT_SLICES);
    let all = 2 * UNIT_SLICES * SLICE;
    assert_eq!(space.look_at_volatile().resident, all);
    // Repeats the reclaim, because the kernel may at first skip pages.
    let begin = Instant::now();
    let left = loop {
        reclaim(space, 0..UNIT_SLICES);
        let left = space.look_at_volatile();
        if left.lost > 0 || begin.elapsed() > Duration::from_secs(2) {
            break left;
        }
    };
    if left.lost == 0 {
        return println!("skipped: the kernel took none of what is marked");
    }
    assert!(left.resident <= all - left.lost * SLICE);
    assert!(are(space, UNIT_SLICES..2 * UNIT_SLICES, is_volatile));
    let gone = space.states()[..UNIT_SLICES].iter().position(|state| state.get() == Slice::Gone);
    let gone = gone.expect("counted");
    assert!(take(space, gone..gone + 1).is_zero() && is_all(space, gone..gone + 1, 0));
}

/// Imitates shared pages, which the kernel does not mark and may swap out: `lost` names their
/// slices, but their bytes remain.
#[test]
fn what_is_lost_reads_as_zeros_wherever_its_bytes_are() {
    let space = space();
    use_up(space, 0..UNIT_SLICES);
    grow_old(space);
    space.mark(HUGE);
    // Takes slice 2 again, as a thread may after the look that fills `lost`.
    take(space, 2..3);
    let lost = std::array::from_fn(|nth| nth % 8 < 5);
    assert_eq!(space.drop_lost(0, &lost), 4 * 5 - 1);
    assert!(is_all(space, 2..3, 1) && are(space, 5..8, is_volatile));
    assert_eq!(space.listed(), 4 * 3 + 1);
    space.free(2..3);
    for slices in [0..2, 3..5, 8..13] {
        assert!(take(space, slices.clone()).is_zero() && is_all(space, slices, 0));
    }
    assert!(!take(space, 5..6).is_zero());
    assert_eq!(space.counters.get().lost, 4 * 5 - 1);
}

#[test]
fn locked_memory_is_not_marked_and_is_given_back() {
    let space = space();
    use_up(space, 0..UNIT_SLICES);
    let (addr, bytes) = space.memory_of(0, 4);
    let addr = ptr::with_exposed_provenance(addr);
    // SAFETY: the memory is this test's.
    if unsafe { libc::mlock(addr, bytes) } != 0 {
        return println!("skipped: mlock: {}", std::io::Error::last_os_error());
    }
    grow_old(space);
    let marked = space.mark(HUGE);
    assert_eq!((marked.slices, marked.is_due), (0, false), "not tried again and again");
    assert_eq!(space.counters.get().refused, 1);
    assert!(are(space, 0..UNIT_SLICES, is_hot));
    assert_eq!(space.give_back(usize::MAX, Which::Free).slices(), UNIT_SLICES);
    assert!(take(space, 0..UNIT_SLICES).is_zero() && is_all(space, 0..UNIT_SLICES, 0));
}

#[test]
fn a_table_reaches_the_last_slice() {
    let space = space();
    let last = UNITS * UNIT_SLICES - 1;
    use_up(space, last..last + 1);
    assert_eq!(space.opened(), last + 1);
    assert_eq!(space.give_back(1, Which::Free).slices(), 1);
}

/// Returns a thread's slices: a part of each unit, so that threads share units.
fn share(nth: usize, threads: usize) -> impl Iterator<Item = Range<usize>> {
    let each = UNIT_SLICES / threads;
    (0..UNITS)
        .map(move |unit| unit * UNIT_SLICES + nth * each..unit * UNIT_SLICES + (nth + 1) * each)
}

fn churn(space: &Space, nth: usize, threads: usize, is_over: &AtomicBool) -> u64 {
    let (mut rounds, mut value) = (0_u64, nth as u8 + 1);
    while !is_over.load(Ordering::Relaxed) {
        for slices in share(nth, threads) {
            let taken = take(space, slices.clone());
            assert!(!taken.is_zero() || is_all(space, slices.clone(), 0), "gone is not zero");
            fill(space, slices.clone(), value);
            std::hint::spin_loop();
            assert!(is_all(space, slices.clone(), value), "memory in use has changed");
            space.free(slices);
        }
        value = value.wrapping_add(threads as u8).max(1);
        rounds += 1;
        if rounds % 4 == nth as u64 {
            thread::sleep(Duration::from_millis(1));
        }
    }
    rounds
}

#[test]
fn many_threads_keep_what_they_write_beside_marking_and_giving_back() {
    const THREADS: usize = 4;
    let (space, is_over) = (space(), AtomicBool::new(false));
    let over = &is_over;
    let rounds: u64 = thread::scope(|scope| {
        let workers: Vec<_> =
            (0..THREADS).map(|nth| scope.spawn(move || churn(space, nth, THREADS, over))).collect();
        let keepers = [
            scope.spawn(move || {
                while !over.load(Ordering::Relaxed) {
                    space.next_turn();
                    space.mark(Manner { age: 0, ..HUGE });
                    space.mark(Manner { age: 0, ..BASE });
                }
            }),
            scope.spawn(move || {
                while !over.load(Ordering::Relaxed) {
                    space.give_back(3, Which::Free);
                    space.look_at_volatile();
                    space.give_back_at(&(0..UNIT_SLICES));
                }
            }),
        ];
        thread::sleep(Duration::from_millis(1500));
        over.store(true, Ordering::Relaxed);
        keepers.into_iter().for_each(|keeper| keeper.join().unwrap());
        workers.into_iter().map(|worker| worker.join().unwrap()).sum()
    });
    let counted = space.counters.get();
    assert!(rounds > 0 && counted.marked > 0 && counted.dropped_hot > 0, "{counted:?}");
    assert_eq!(counted.live(), 0);
    let held = |such: fn(Slice) -> bool| {
        space.states().iter().filter(|state| such(state.get())).count() as u64
    };
    assert_eq!((counted.hot(), counted.volatile()), (held(is_hot), held(is_volatile)));
}
