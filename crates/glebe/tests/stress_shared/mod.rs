//! Stresses processes that share a file of volatile memory and are killed at random moments.
//!
//! A thread of this process and a second process each own half of the granules: they pin, check,
//! write, unmark and mark. A third process purges. The second and third process are killed every
//! few milliseconds and restarted. The `oracle` knows each granule's contents. Invariants: no
//! granule is empty or outdated unless reported lost; a pinned granule does not change; a killed
//! process, once waited for, pins nothing.
#![allow(unsafe_code)] // Safety: see `oracle`.

mod oracle;
mod pressed;

use std::ops::Range;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use glebe::page_size;
use glebe::units::{Bytes, Pages};
use glebe::volatile::{Error, Order, Priority, Purger, Shared};
use glebe_testing::time::{slowed, storm};

use glebe_testing::steered::{self, Process, SteeredEnd};
use glebe_testing::stressed::{self, spawn, version, Random, Stop};
use oracle::{Count, Oracle, Seen};

/// Granules of each half.
const HALF: u64 = 48;
const USUAL: Duration = Duration::from_millis(1500);
/// Extra time while too little has happened.
const GRACE: Duration = Duration::from_secs(40);
/// Longest rest between kills, and (`HOLD`) longest rest with a pin.
const LIFE: Duration = Duration::from_millis(12);
const HOLD: Duration = Duration::from_micros(30);

fn range(shared: &Shared, start: u64, len: u64) -> Range<Bytes> {
    let at = |granule| Bytes::new(granule * shared.granule().get());
    at(start)..at(start + len)
}

/// Returns `None` if a purge or a joining process delayed the call for too long.
fn given<T>(oracle: &Oracle, result: Result<T, Error>) -> Option<T> {
    match result {
        Ok(given) => Some(given),
        Err(Error::PurgeUnderWay { .. } | Error::Busy { .. }) => {
            oracle.count(Count::Waited, 1);
            None
        }
        Err(error) => panic!("{error}"),
    }
}

struct User<'a> {
    shared: &'a Shared,
    oracle: &'a Oracle,
    random: Random,
    bytes: Vec<u8>,
}

impl<'a> User<'a> {
    fn new(shared: &'a Shared, oracle: &'a Oracle, seed: u64) -> Self {
        let bytes = vec![0; shared.granule().as_usize()];
        Self { shared, oracle, random: Random(seed), bytes }
    }

    fn step(&mut self, own: &Range<u64>) {
        let granule = own.start + self.random.below(own.end - own.start);
        match self.random.below(5) {
            0 => self.unmark(granule),
            _ => self.pin(granule),
        }
    }

    fn pin(&mut self, granule: u64) {
        let Some(pin) = given(self.oracle, self.shared.pin(range(self.shared, granule, 1))) else {
            return;
        };
        pin.read(Bytes::ZERO, &mut self.bytes).unwrap();
        let is_lost = !pin.lost().is_empty();
        self.judge(granule, is_lost);
        let seen = self.oracle.seen(granule);
        if is_lost || seen == Seen::Unknown || self.random.below(8) == 0 {
            let next = self.oracle.begin(granule);
            stressed::fill(&mut self.bytes, granule, next);
            pin.write(Bytes::ZERO, &self.bytes).unwrap();
            self.mark(granule);
            // The oracle may hold the new version before `restored`, because a kill in between
            // leaves the granule lost.
            self.oracle.done(granule, next);
            let Some(()) = given(self.oracle, pin.restored()) else { return };
        }
        let Seen::Holds(now) = self.oracle.seen(granule) else { return };
        self.random.rest(HOLD);
        pin.read(Bytes::ZERO, &mut self.bytes).unwrap();
        assert_eq!(version(&self.bytes, granule), Some(now), "{granule} was pinned");
    }

    fn unmark(&mut self, granule: u64) {
        let before = self.oracle.seen(granule);
        // The oracle forgets the contents first, because a kill after the unmark would leave a loss
        // unreported.
        let next = self.oracle.begin(granule);
        let Some(lost) = given(self.oracle, self.shared.unmark(range(self.shared, granule, 1)))
        else {
            return;
        };
        let Some(pin) = given(self.oracle, self.shared.pin(range(self.shared, granule, 1))) else {
            return;
        };
        pin.read(Bytes::ZERO, &mut self.bytes).unwrap();
        if let (Seen::Holds(version), true) = (before, lost.is_empty()) {
            assert_eq!(
                stressed::version(&self.bytes, granule),
                Some(version),
                "{granule} unmarked"
            );
        }
        self.oracle.count(if lost.is_empty() { Count::Intact } else { Count::Lost }, 1);
        stressed::fill(&mut self.bytes, granule, next);
        pin.write(Bytes::ZERO, &self.bytes).unwrap();
        self.mark(granule);
        self.oracle.done(granule, next);
    }

    fn mark(&mut self, granule: u64) {
        let priority = Priority::new(self.random.below(8) as u8).unwrap();
        let order = if self.random.below(2) == 0 { Order::Fifo } else { Order::Lifo };
        while given(self.oracle, self.shared.mark(range(self.shared, granule, 1), priority, order))
            .is_none()
        {}
    }

    fn judge(&self, granule: u64, is_lost: bool) {
        self.oracle.count(if is_lost { Count::Lost } else { Count::Intact }, 1);
        if let (Seen::Holds(expected), false) = (self.oracle.seen(granule), is_lost) {
            let found = version(&self.bytes, granule);
            assert_eq!(found, Some(expected), "granule {granule} was not told lost");
        }
    }
}

fn purge_for_ever(purger: &Purger, oracle: &Oracle, seed: u64) {
    let mut random = Random(seed);
    loop {
        let up_to = Priority::new(random.below(8) as u8).unwrap();
        let target = Pages::new(1 + random.below(12)).bytes(page_size());
        if let Some(freed) = given(oracle, purger.purge(target, up_to)) {
            oracle.count(Count::Purged, freed.pages_down(page_size()).get());
        }
        random.rest(Duration::from_micros(300));
    }
}

fn nothing_is_pinned(shared: &Shared, oracle: &Oracle, own: &Range<u64>, process: i32) {
    let look = Purger::adopt(shared.fd().try_clone_to_owned().unwrap()).unwrap().look().unwrap();
    let ids: Vec<_> = look.holders.iter().map(|holder| holder.process).collect();
    assert!(!ids.contains(&process.unsigned_abs()), "{process} among {ids:?}");
    let all = range(shared, own.start, own.end - own.start);
    if given(oracle, shared.drop_now(all)).is_none() {
        return;
    }
    for granule in own.clone() {
        let Some(pin) = given(oracle, shared.pin(range(shared, granule, 1))) else { continue };
        // A granule of known contents is marked, so `drop_now` purges it unless it is pinned.
        if let Seen::Holds(_) = oracle.seen(granule) {
            assert!(!pin.lost().is_empty(), "{granule} was kept by a pin of a dead process");
        }
    }
}

fn kill_and_start(shared: &Shared, oracle: &Oracle, stop: &AtomicBool, time: Duration) {
    let (begin, mut random) = (Instant::now(), Random(7));
    let second = HALF..2 * HALF;
    let purger = Purger::adopt(shared.fd().try_clone_to_owned().unwrap()).unwrap();
    let start_purger = |seed| Process::start(|_| purge_for_ever(&purger, oracle, seed));
    let mut purging = start_purger(0);
    for nth in 1.. {
        let time = if oracle.is_enough() { time } else { time + slowed(GRACE) };
        if begin.elapsed() >= time || stop.load(Ordering::Relaxed) {
            break;
        }
        let user = Process::start(|_| {
            let mut user = User::new(shared, oracle, nth << 32);
            loop {
                user.step(&second);
            }
        });
        random.rest(LIFE);
        if nth % 2 == 0 {
            kill(&purging);
            purging = start_purger(nth);
            random.rest(LIFE);
        }
        kill(&user);
        oracle.count(Count::Kills, 1);
        if nth % 4 == 0 {
            nothing_is_pinned(shared, oracle, &second, user.pid);
        }
    }
    kill(&purging);
}

fn kill(process: &Process) {
    steered::signal(process.pid, libc::SIGKILL);
    assert_eq!(process.end(), SteeredEnd::Signal(libc::SIGKILL), "its assertion is printed above");
}

#[test]
fn what_is_killed_leaves_no_pin_and_nothing_is_lost_untold() {
    glebe_testing::alone!();
    let len = Pages::new(2 * HALF).bytes(page_size());
    let shared = Shared::options().create(len).unwrap();
    let (oracle, stop) = (Oracle::new(2 * HALF), AtomicBool::new(false));
    let time = storm(USUAL);
    std::thread::scope(|scope| {
        let user = spawn(scope, &stop, || {
            let mut user = User::new(&shared, &oracle, 1);
            while !stop.load(Ordering::Relaxed) {
                user.step(&(0..HALF));
            }
        });
        let ends = Stop(&stop);
        kill_and_start(&shared, &oracle, &stop, time);
        drop(ends);
        user.join().unwrap();
    });
    println!("{oracle:?}");
    assert!(oracle.is_enough(), "{oracle:?}");
}
