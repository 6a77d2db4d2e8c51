//! Tests that the reclaimer frees memory during a rise of usage before the kernel kills the
//! process.
//!
//! The kernel cannot free a pool's objects, so without a reclaimer it kills.

use std::hint::black_box;
use std::sync::Arc;

use glebe::page_size;
use glebe::reclaim::{Policy, Reclaimer};
use glebe::units::Bytes;
use glebe::volatile::{Priority, Region};
use glebe::zpool::{AtLimit, Codec, ObjectPool};
use glebe_testing::memory::rise;

use glebe_testing::inside::{inside, is_inside, InsideEnd};

const LIMIT: Bytes = Bytes::mib(80);
const POOL: Bytes = Bytes::mib(56);
/// Bytes of the rise, more than the full pool leaves free.
const RISE: Bytes = Bytes::mib(40);
const OWN: Bytes = Bytes::mib(4);
/// Most bytes that the test requires the pool to keep. It keeps 20 to 26 MiB. The difference is for
/// margins that were wider before the last poll.
const KEPT: Bytes = Bytes::mib(8);
const A_SECOND: Bytes = Bytes::mib(100);
const RUNS: usize = 20;
const OBJECT_WORDS: u64 = 250;

pub fn full_pool(held: Bytes) -> Arc<ObjectPool> {
    let options = ObjectPool::options().codec(Codec::None).at_limit(AtLimit::EvictOldest);
    let pool = options.limit(Bytes::gib(1)).build().unwrap();
    let mut nth = 0_u64;
    while pool.held() < held {
        let words = (0..OBJECT_WORDS).flat_map(|at| (nth * OBJECT_WORDS + at).to_ne_bytes());
        pool.insert(&words.collect::<Vec<_>>()).unwrap();
        nth += 1;
    }
    Arc::new(pool)
}

/// Runs `body` in `runs` processes, two at a time, each in its own cgroup.
fn is_met(test: &str, runs: usize, limit: Bytes, body: impl Fn() + Sync) {
    if is_inside() {
        inside(limit, test, &body);
    }
    let runs: Vec<usize> = (0..runs).collect();
    std::thread::scope(|scope| {
        for runs in runs.chunks(runs.len().div_ceil(2)) {
            let body = &body;
            scope.spawn(move || {
                for run in runs {
                    match inside(limit, test, body) {
                        InsideEnd::Skipped => return,
                        end => assert_eq!(end, InsideEnd::Well, "run {run}"),
                    }
                }
            });
        }
    });
}

fn pool_gives_way() {
    let reclaimer = Reclaimer::new(Policy::default()).unwrap();
    let pool = full_pool(POOL);
    reclaimer.add(&pool).unwrap();
    reclaimer.start().unwrap();
    black_box(rise(RISE.as_usize(), A_SECOND.get()));
    let stats = reclaimer.stats();
    assert!(stats.freed_objects > 0, "{stats}");
    // The pool must not free more than the rise and the margin need. The reclaimer frees a quarter
    // of the margin more. Late polls widen the margin.
    let margin = stats.margin.bytes(page_size()).get();
    let needed = Bytes::new((POOL + RISE + OWN - LIMIT).get() + margin + margin / 4);
    let kept = POOL.saturating_sub(needed).min(KEPT);
    assert!(pool.held() > kept, "{} of {kept}: {stats}", pool.held());
}

#[test]
fn a_rise_is_met_in_time_20_times_of_20() {
    let test = "reclaim::margin::a_rise_is_met_in_time_20_times_of_20";
    is_met(test, RUNS, LIMIT, pool_gives_way);
}

/// Runs as nobody, who may not arm thresholds.
#[test]
fn and_by_the_clock_alone_without_privileges() {
    const NOBODY: u32 = 65534;
    let test = "reclaim::margin::and_by_the_clock_alone_without_privileges";
    is_met(test, RUNS / 4, LIMIT, || {
        // SAFETY: both calls take numbers, and fail without the right to change the user.
        #[allow(unsafe_code)]
        let _ = unsafe { libc::setgid(NOBODY) + libc::setuid(NOBODY) };
        let reclaimer = Reclaimer::new(Policy::default()).unwrap();
        reclaimer.poll().unwrap();
        let watched = reclaimer.watched().unwrap();
        assert!(watched.limit.is_ok() && watched.threshold.is_err(), "{watched:?}");
        drop(reclaimer);
        pool_gives_way();
    });
}

#[test]
fn without_a_reclaimer_the_same_rise_ends_by_a_kill() {
    let end =
        inside(LIMIT, "reclaim::margin::without_a_reclaimer_the_same_rise_ends_by_a_kill", || {
            let pool = full_pool(POOL);
            black_box((rise(RISE.as_usize(), A_SECOND.get()), pool));
        });
    assert!(end != InsideEnd::Well, "nothing was shown");
}

#[test]
fn volatile_memory_goes_before_objects() {
    const TEST: &str = "reclaim::margin::volatile_memory_goes_before_objects";
    inside(Bytes::mib(96), TEST, || {
        let region = Arc::new(Region::new(Bytes::mib(32)).unwrap());
        let reclaimer = Reclaimer::new(Policy::default().keep_files(false)).unwrap();
        let pool = full_pool(Bytes::mib(24));
        reclaimer.add(&pool).unwrap();
        reclaimer.add(&region).unwrap();
        let block = vec![7; 1 << 20];
        (0..32).for_each(|mib| region.write(Bytes::mib(mib), &block).unwrap());
        region.mark(Bytes::ZERO..region.len(), Priority::NORMAL).unwrap();
        reclaimer.start().unwrap();
        let held = pool.held();
        black_box(rise(RISE.as_usize(), A_SECOND.get()));
        let stats = reclaimer.stats();
        assert!(stats.freed_volatile > 0, "{stats}");
        // A late poll widens the margin. Objects may go if the region is not enough for it.
        let left = region.stats().resident.get();
        assert!(stats.freed_objects == 0 || left == 0, "{left} pages are left: {stats}");
        assert!(stats.freed_objects > 0 || pool.held() == held, "{} of {held}", pool.held());
    });
}

/// Memory in use again after a mark stays among the kernel's file pages. The reclaimer must not
/// count such memory as free.
#[test]
fn memory_that_was_marked_and_is_in_use_again_passes_for_no_file() {
    const TEST: &str =
        "reclaim::margin::memory_that_was_marked_and_is_in_use_again_passes_for_no_file";
    is_met(TEST, RUNS / 4, Bytes::mib(96), || {
        let region = Arc::new(Region::new(Bytes::mib(32)).unwrap());
        let reclaimer = Reclaimer::new(Policy::default()).unwrap();
        let pool = full_pool(Bytes::mib(32));
        reclaimer.add(&pool).unwrap();
        reclaimer.add(&region).unwrap();
        let block = vec![7; 1 << 20];
        let fill = || (0..32).for_each(|mib| region.write(Bytes::mib(mib), &block).unwrap());
        fill();
        region.mark(Bytes::ZERO..region.len(), Priority::NORMAL).unwrap();
        assert!(region.unmark(Bytes::ZERO..region.len()).unwrap().is_empty());
        fill();
        reclaimer.start().unwrap();
        black_box(rise(RISE.as_usize(), A_SECOND.get()));
        let stats = reclaimer.stats();
        assert!(stats.freed_objects > 0, "{stats}");
    });
}
