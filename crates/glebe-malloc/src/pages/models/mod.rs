//! The protocol of slices under the model checker: `RUSTFLAGS="--cfg loom"`.
//!
//! The code is the library's own; a cell stands for a slice's memory. Its owner writes and reads
//! it, and a call on the slice writes it, as the kernel may after it was marked: the checker finds
//! each access that is not in order with another. The model that must fail takes a slice without
//! waiting for the call, as a program did that lost data.

use std::sync::Arc;

use loom::cell::UnsafeCell;
use loom::sync::atomic::{AtomicUsize, Ordering};
use loom::thread;

use super::right::Right;
use super::state::{Slice, State, Turn};

const GONE: u64 = 0;

/// A slice, its memory and the right.
struct Model {
    state: State,
    right: Right,
    memory: UnsafeCell<u64>,
    calls: AtomicUsize,
}

// SAFETY: accesses of the memory are what the checker looks at.
#[allow(unsafe_code)]
unsafe impl Sync for Model {}
// SAFETY: as above.
#[allow(unsafe_code)]
unsafe impl Send for Model {}

impl Model {
    /// A slice that was in use and is free now.
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
        // SAFETY: the checker says whether anyone else is here.
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

    /// Uses the slice and frees it; it is zeros where it is gone.
    fn reuse(&self, value: u64) {
        if self.take() == Slice::Gone {
            assert_eq!(self.read(), GONE, "what is gone reads as zeros");
        }
        self.write(value);
        thread::yield_now();
        assert_eq!(self.read(), value, "memory in use was taken");
        assert!(self.state.free(Turn::of(2)));
    }

    /// A call that marks or drops, where the slice is free.
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

/// Runs every schedule with at most so many preemptions.
fn explore(preemptions: usize, run: impl Fn() + Sync + Send + 'static) {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = Some(preemptions);
    builder.max_branches = 10_000;
    builder.check(run);
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

/// Takes the slice as if a call were none.
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
