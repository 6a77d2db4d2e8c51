//! Runs two users and a purger of a file in a memory cgroup that is too small.
//!
//! Another process takes and frees memory in turns, so the file must shrink and may grow again. The
//! group has no swap, so the kernel cannot reclaim from the file and would kill a process instead.

use std::hint::black_box;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::Arc;
use std::time::Duration;

use glebe::reclaim::{Policy, Reclaimer};
use glebe::units::Bytes;
use glebe::volatile::{Purger, Shared};
use glebe_testing::memory::rise;
use glebe_testing::time::Storm;

use super::oracle::{Count, Oracle};
use super::{kill, nothing_is_pinned, User, HALF};
use glebe_testing::inside::{inside, InsideEnd};
use glebe_testing::steered::{self, Process};
use glebe_testing::stressed::{spawn, Random, Stop};

const TEST: &str = "stress_shared::pressed::nothing_is_killed_and_nothing_is_lost_untold";
const LIMIT: Bytes = Bytes::mib(80);
/// All 96 granules together have 48 MiB.
const GRANULE: Bytes = Bytes::new(512 << 10);
/// Memory that another process takes and frees, its rate per second, and its pause.
const OTHERS: Bytes = Bytes::mib(48);
const A_SECOND: Bytes = Bytes::mib(100);
const REST_OF_OTHERS: Duration = Duration::from_millis(480);
const USUAL: Duration = Duration::from_millis(2500);
const LIFE: Duration = Duration::from_millis(500);
/// Longest rest of a user, which limits its writes to some tens of MiB a second.
const REST: Duration = Duration::from_millis(20);

fn others() {
    loop {
        steered::stay();
        drop(black_box(rise(OTHERS.as_usize(), A_SECOND.get())));
        std::thread::sleep(REST_OF_OTHERS);
    }
}

fn purge(shared: &Shared, oracle: &Oracle) {
    let purger = Arc::new(Purger::adopt(shared.fd().try_clone_to_owned().unwrap()).unwrap());
    let reclaimer = Reclaimer::new(Policy::default()).unwrap();
    reclaimer.add(&purger).unwrap();
    loop {
        steered::stay();
        reclaimer.wait(Duration::from_secs(1)).unwrap();
        let freed = reclaimer.poll().unwrap().freed();
        oracle.count(Count::Purged, freed.get() / GRANULE.get());
    }
}

fn use_for_ever(shared: &Shared, oracle: &Oracle, seed: u64, until: impl Fn() -> bool) {
    let own = if seed == 0 { 0..HALF } else { HALF..2 * HALF };
    let (mut user, mut random) = (User::new(shared, oracle, seed << 32), Random(seed));
    while !until() {
        user.step(&own);
        random.rest(REST);
    }
}

fn load() {
    let len = Bytes::new(2 * HALF * GRANULE.get());
    let shared = Shared::options().granule(GRANULE).create(len).unwrap();
    let (oracle, stop) = (Oracle::new(2 * HALF), AtomicBool::new(false));
    let storm = Storm::begin(USUAL);
    let purging = Process::start(|_| purge(&shared, &oracle));
    let other = Process::start(|_| others());
    std::thread::scope(|scope| {
        let first = spawn(scope, &stop, || {
            use_for_ever(&shared, &oracle, 0, || stop.load(Ordering::Relaxed));
        });
        let ends = Stop(&stop);
        for nth in 1.. {
            let second = Process::start(|_| use_for_ever(&shared, &oracle, nth, || false));
            std::thread::sleep(LIFE);
            kill(&second);
            oracle.count(Count::Kills, 1);
            if nth % 4 == 0 {
                nothing_is_pinned(&shared, &oracle, &(HALF..2 * HALF), second.pid);
            }
            if !storm.goes_on(|| is_enough(&oracle)) || stop.load(Ordering::Relaxed) {
                break;
            }
        }
        drop(ends);
        first.join().unwrap();
    });
    kill(&other);
    kill(&purging);
    println!("{oracle:?}");
    assert!(is_enough(&oracle), "{oracle:?}");
}

fn is_enough(oracle: &Oracle) -> bool {
    [Count::Intact, Count::Lost, Count::Purged].iter().all(|count| oracle.get(*count) >= 20)
}

#[test]
fn nothing_is_killed_and_nothing_is_lost_untold() {
    let end = inside(LIMIT, TEST, load);
    assert_ne!(end, InsideEnd::Killed, "for want of memory");
}
