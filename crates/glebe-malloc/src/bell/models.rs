//! Checks [`Bell`], which wakes the keeper, with the model checker: `RUSTFLAGS="--cfg loom"`.
//!
//! The checker reports a keeper that nobody wakes as a deadlock. The last model must fail, because
//! its keeper loads the counters without first adding zero, and can miss a free.

use std::sync::Arc;

use glebe_testing::model::explore;
use loom::thread;

use super::*;

struct Model {
    bell: Bell,
    counters: Counters,
}

fn model() -> Arc<Model> {
    let (free_at, grown_at) = (AtomicU64::new(0), AtomicU64::new(GROWTH_STEP));
    let bell = Bell { mode: FutexWord::new(THREAD), free_at, grown_at };
    Arc::new(Model { bell, counters: Counters::default() })
}

impl Model {
    fn free(&self, slices: u64) {
        self.counters.freed.fetch_add(slices, Ordering::AcqRel);
        if self.bell.is_called(false) {
            self.bell.freed(&self.counters);
        }
    }

    fn grow(&self, slices: u64) {
        self.counters.taken.fetch_add(slices, Ordering::Relaxed);
        self.counters.cold.fetch_add(slices, Ordering::AcqRel);
        self.bell.grown(&self.counters, false);
    }

    fn sleep_until_freed(&self, hot: u64, rest: Option<Duration>) {
        while self.counters.get().hot() < hot + FREE_MIN {
            self.bell.sleep(&self.counters, hot, rest, true, false);
        }
    }
}

#[test]
fn nobody_sleeps_through_what_two_threads_free() {
    for rest in [None, Some(Duration::MAX)] {
        explore(3, move || {
            let model = model();
            let threads = [FREE_MIN / 2, FREE_MIN - FREE_MIN / 2].map(|slices| {
                let other = Arc::clone(&model);
                thread::spawn(move || other.free(slices))
            });
            model.sleep_until_freed(0, rest);
            threads.into_iter().for_each(|thread| thread.join().unwrap());
        });
    }
}

#[test]
fn nobody_sleeps_through_growth() {
    explore(3, || {
        let model = model();
        // Growth wakes a keeper only if something is free.
        model.counters.freed.fetch_add(1, Ordering::Relaxed);
        let other = Arc::clone(&model);
        let thread = thread::spawn(move || other.grow(GROWTH_STEP));
        while !model.bell.has_grown(&model.counters) {
            model.bell.sleep(&model.counters, 1, Some(Duration::MAX), false, false);
        }
        thread.join().unwrap();
    });
}

#[test]
fn one_thread_claims() {
    explore(3, || {
        let model = model();
        model.bell.allow();
        let other = Arc::clone(&model);
        let thread = thread::spawn(move || other.bell.claim());
        let is_ours = model.bell.claim();
        assert!(is_ours != thread.join().unwrap());
        model.bell.has_failed(&model.counters);
        assert!(model.bell.claim() && !model.bell.claim());
    });
}

#[test]
#[should_panic(expected = "deadlock")]
fn who_only_looks_at_the_counters_may_sleep_for_ever() {
    explore(3, || {
        let model = model();
        let other = Arc::clone(&model);
        let thread = thread::spawn(move || other.free(FREE_MIN));
        let Model { bell, counters } = &*model;
        while counters.get().hot() < FREE_MIN {
            bell.free_at.store(FREE_MIN, Ordering::Relaxed);
            bell.mode.store(THREAD | FREES, Ordering::Release);
            if counters.get().hot() < FREE_MIN {
                wait(&bell.mode, THREAD | FREES, None);
            }
        }
        thread.join().unwrap();
    });
}
