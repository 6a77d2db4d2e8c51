//! The lending protocol, the index, pools of objects, pins of shared volatile memory, objects of a
//! store and pages of a region, under the model checker: `RUSTFLAGS="--cfg loom"`.
//!
//! The code that runs is the library's own, beside [model hardware](hardware) in place of the
//! kernel's and of mapped memory: the crate root says which files. Each model is explored in full,
//! or with a bound on preemptions that ends soon. Loom alone would miss some races; our
//! [`AtomicU64`](crate::sync::AtomicU64) adds the orderings that it lacks. The models that must
//! fail leave one part of a protocol out and show that it is needed.

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

/// More than a schedule of any model takes; the checker's own limit is too low for some.
const BRANCHES_MAX: usize = 10_000;
/// The most preemptions of a schedule without `GLEBE_LONG`. The models that must fail do so within
/// two, so the short run still shows that each part of a protocol is needed.
const SHARE: usize = 2;
/// The same of a model that has far more schedules than others: of many steps, or three threads.
const SHARE_OF_LARGE: usize = 1;

/// Runs every schedule of `run`, or every one with at most so many preemptions; without
/// `GLEBE_LONG` those with at most [`SHARE`]. A preemption is a switch away from a thread that
/// could go on. Where the model's first thread takes part, a thread that starts before it costs
/// one.
pub(crate) fn explore(
    preemptions: impl Into<Option<usize>>,
    run: impl Fn() + Sync + Send + 'static,
) {
    explore_share(preemptions.into(), SHARE, run);
}

/// As [`explore`], for a model that has far more schedules than others.
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

/// The schedule in which the other thread goes first, of which loom's own words know nothing:
/// the first thread's load hides the other's.
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
