//! Models for the model checker (`RUSTFLAGS="--cfg loom"`): the lending protocol, the index, object
//! pools, pins of shared volatile memory, objects of a store, and pages of a region.
//!
//! They run the library's own source (the crate root lists the files) with [model
//! hardware](hardware) in place of the kernel and of mapped memory, fully or up to a number of
//! preemptions. Loom misses some races; our [`AtomicU64`](crate::sync::AtomicU64) adds them. Models
//! that must fail leave out a part of a protocol, to show that it is needed.

pub(crate) mod hardware;
mod lending;
mod objects;
mod paged;
mod pins;
mod stock;
mod swapped;

use std::sync::Arc;

use loom::thread;

use crate::sync::{AtomicU64, Ordering};

/// More steps than any schedule takes; loom's own limit is too low for some models.
const BRANCHES_MAX: usize = 10_000;
/// The most preemptions without `GLEBE_LONG`. The models that must fail do so within two.
const SHARE: usize = 2;
/// [`SHARE`] for a model with far more schedules: many steps, or three threads.
const SHARE_OF_LARGE: usize = 1;

/// Runs every schedule of `run` with at most `preemptions`, if given; without `GLEBE_LONG` at most
/// [`SHARE`]. A preemption is a switch away from a thread that could continue. If the model's first
/// thread takes part, a thread that starts before it costs one.
pub(crate) fn explore(
    preemptions: impl Into<Option<usize>>,
    run: impl Fn() + Sync + Send + 'static,
) {
    explore_share(preemptions.into(), SHARE, run);
}

/// Like [`explore`], for a model with far more schedules.
pub(crate) fn explore_large(preemptions: usize, run: impl Fn() + Sync + Send + 'static) {
    explore_share(Some(preemptions), SHARE_OF_LARGE, run);
}

fn explore_share(most: Option<usize>, share: usize, run: impl Fn() + Sync + Send + 'static) {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = match glebe_testing::time::is_long() {
        true => most,
        false => Some(most.map_or(share, |most| most.min(share))),
    };
    builder.max_branches = BRANCHES_MAX;
    builder.check(run);
}

/// Loom's own words miss the schedule with the other thread first: one load hides another.
#[test]
#[should_panic(expected = "the other went first")]
fn a_load_hides_no_load() {
    explore(None, || {
        let words = Arc::new([AtomicU64::new(0), AtomicU64::new(0)]);
        let other = Arc::clone(&words);
        let other = thread::spawn(move || {
            other[0].load(Ordering::Acquire);
            other[1].store(1, Ordering::Release);
            other[0].store(2, Ordering::Release);
        });
        let seen = words[0].load(Ordering::Acquire);
        let before = words[0].fetch_add(1, Ordering::AcqRel);
        other.join().unwrap();
        assert_ne!((seen, before), (2, 2), "the other went first");
    });
}
