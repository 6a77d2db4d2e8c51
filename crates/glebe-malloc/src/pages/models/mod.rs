//! Checks the protocol of slices with the model checker: `RUSTFLAGS="--cfg loom"`.
//!
//! `Model::memory` stands for a slice's memory. The owner uses the memory, and `Model::call` writes
//! zeros, as the kernel may after marking. The checker finds unordered accesses. Two models must
//! fail: one takes a slice during a call (a program once lost data in this way); the other counts a
//! free before the slice is free.

use std::sync::Arc;

use glebe_testing::model::explore;
use loom::cell::UnsafeCell;
use loom::sync::atomic::{AtomicUsize, Ordering};
use loom::thread;

use super::right::{Held, Right};
use super::state::{Slice, State, Turn};
use super::unit::Unit;

const GONE: u64 = 0;

struct Model {
    state: State,
    right: Right,
    memory: UnsafeCell<u64>,
    calls: AtomicUsize,
}

// SAFETY: the checker examines the accesses to the memory.
#[allow(unsafe_code)]
unsafe impl Sync for Model {}
// SAFETY: as above.
#[allow(unsafe_code)]
unsafe impl Send for Model {}

impl Model {
    fn hot() -> Arc<Self> {
        let model = Self {
            state: State::default(),
            right: Right::default(),
            memory: UnsafeCell::new(1),
            calls: AtomicUsize::new(0),
        };
        assert_eq!(model.state.take(), Some(Slice::Gone));
        assert!(model.state.free(Turn::of(1)));
        Arc::new(model)
    }

    fn write(&self, value: u64) {
        // SAFETY: the checker reports any concurrent access.
        #[allow(unsafe_code)]
        self.memory.with_mut(|memory| unsafe { *memory = value });
    }

    fn read(&self) -> u64 {
        // SAFETY: as above.
        #[allow(unsafe_code)]
        self.memory.with(|memory| unsafe { *memory })
    }

    fn take(&self) -> Slice {
        let none = || panic!("there is one process");
        self.state.take().unwrap_or_else(|| self.state.take_after_call(&self.right, none))
    }

    /// Uses and frees the slice. If it was gone, it must read as zero.
    fn reuse(&self, value: u64) {
        if self.take() == Slice::Gone {
            assert_eq!(self.read(), GONE, "what is gone reads as zeros");
        }
        self.write(value);
        thread::yield_now();
        assert_eq!(self.read(), value, "memory in use was taken");
        assert!(self.state.free(Turn::of(2)));
    }

    fn call(&self, becomes: Slice) {
        let held = self.right.take();
        if self.state.claim(|_| true).is_some() {
            self.write(GONE);
            self.state.settle(becomes);
            self.right.ring();
            self.calls.fetch_add(1, Ordering::Relaxed);
        }
        drop(held);
    }
}

#[test]
fn a_reuse_waits_for_a_call_and_loses_nothing() {
    for becomes in [Slice::Volatile, Slice::Gone] {
        explore(3, move || {
            let model = Model::hot();
            let other = Arc::clone(&model);
            let keeper = thread::spawn(move || other.call(becomes));
            model.reuse(7);
            keeper.join().unwrap();
        });
    }
}

#[test]
fn two_that_make_calls_and_one_that_reuses() {
    explore(2, || {
        let model = Model::hot();
        let callers = [Slice::Volatile, Slice::Gone].map(|becomes| {
            let other = Arc::clone(&model);
            thread::spawn(move || other.call(becomes))
        });
        model.reuse(7);
        callers.into_iter().for_each(|caller| caller.join().unwrap());
        assert!(model.calls.load(Ordering::Relaxed) <= 2);
    });
}

#[test]
fn a_slice_that_is_freed_and_used_again_beside_calls_is_its_owners() {
    explore(3, || {
        let model = Model::hot();
        let other = Arc::clone(&model);
        let keeper = thread::spawn(move || {
            other.call(Slice::Volatile);
            other.call(Slice::Gone);
        });
        model.reuse(7);
        model.reuse(8);
        keeper.join().unwrap();
    });
}

#[test]
fn a_fork_finds_no_claim_and_its_parts_give_the_right_up() {
    explore(3, || {
        let model = Model::hot();
        let other = Arc::clone(&model);
        let keeper = thread::spawn(move || other.call(Slice::Volatile));
        std::mem::forget(model.right.take());
        assert_ne!(model.state.get(), Slice::Marking, "a claim is under way");
        model.right.end();
        keeper.join().unwrap();
        drop(model.right.take());
    });
}

/// Returns a slice claimed by a thread that this process lacks.
fn orphan() -> Arc<Model> {
    let mut model = Arc::into_inner(Model::hot()).unwrap();
    assert!(model.state.claim(|_| true).is_some());
    model.right = Right::left_behind();
    Arc::new(model)
}

impl Model {
    /// Takes the right to claim. Like `Space`, makes a slice hot that a parent process claimed.
    fn hold(&self) -> Held<'_> {
        let held = self.right.take();
        if held.is_inherited {
            self.state.settle(Slice::Hot(Turn::of(1)));
        }
        held
    }
}

#[test]
fn what_was_claimed_before_a_fork_is_repaired_once() {
    explore(3, || {
        let model = orphan();
        let other = Arc::clone(&model);
        let keeper = thread::spawn(move || {
            let held = other.hold();
            if other.state.claim(|_| true).is_some() {
                other.write(GONE);
                other.state.settle(Slice::Gone);
                other.right.ring();
            }
            drop(held);
        });
        let repair = || drop(model.hold());
        let was = model.state.take();
        let was = was.unwrap_or_else(|| model.state.take_after_call(&model.right, repair));
        assert!(matches!(was, Slice::Hot(_) | Slice::Gone), "{was:?}");
        model.write(7);
        keeper.join().unwrap();
        assert_eq!(model.read(), 7);
    });
}

fn unit() -> Arc<(Unit, [State; 2])> {
    let both = (Unit::default(), [State::default(), State::default()]);
    both.1.iter().for_each(|state| assert_eq!(state.take(), Some(Slice::Gone)));
    both.0.take(2);
    Arc::new(both)
}

/// Frees each slice in its own thread, by `free`, and meanwhile checks the unit twice.
fn two_free(free: fn(&Unit, &State) -> bool) {
    let both = unit();
    let frees = [0, 1].map(|nth| {
        let both = Arc::clone(&both);
        thread::spawn(move || free(&both.0, &both.1[nth]))
    });
    let look = || {
        let (live, frees) = both.0.get();
        let free = both.1.iter().filter(|state| state.get() != Slice::Live).count();
        assert!(free >= frees as usize, "a free was seen before its slice");
        assert!(live > 0 || free == 2, "none is in use, and one is not free");
    };
    look();
    look();
    let last = frees.map(|free| free.join().unwrap());
    assert!(last[0] != last[1], "one of two is the last");
    assert_eq!(both.0.get(), (0, 2));
}

#[test]
fn who_sees_that_a_unit_is_free_sees_its_slices_free() {
    explore(3, || two_free(|unit, state| state.free(Turn::of(1)) && unit.free(1)));
}

#[test]
#[should_panic(expected = "before its slice")]
fn a_unit_that_is_told_first_hides_a_slice() {
    explore(3, || {
        two_free(|unit, state| {
            let is_last = unit.free(1);
            state.free(Turn::of(1)) && is_last
        });
    });
}

/// Takes the slice in spite of a call.
fn seize(model: &Model) {
    let was = model.state.take();
    if was.is_none() {
        model.state.settle(Slice::Gone);
        model.state.take();
    }
}

#[test]
#[should_panic(expected = "Causality violation")]
fn a_reuse_that_does_not_wait_loses_memory() {
    explore(3, || {
        let model = Model::hot();
        let other = Arc::clone(&model);
        let keeper = thread::spawn(move || other.call(Slice::Gone));
        seize(&model);
        model.write(7);
        keeper.join().unwrap();
    });
}
