//! A walk runs a test body (a life) again and again, each time with another failing kernel call.
//!
//! A test body makes most of its hundreds of calls from a few places. So the short walk groups the
//! calls by name and stack. In each group the walk fails the first, the second and the last call,
//! and a random share of the other calls. `GLEBE_SEED` repeats the random choice; `GLEBE_LONG`
//! fails every call. A fault names a call by its number in the run. Library threads may shift the
//! numbers, and then a call near the chosen call fails.

use std::cell::Cell;
use std::collections::HashMap;
use std::fmt;
use std::time::Instant;

use glebe::internal::sys::fault::{arm, disarm, record, recorded, Fault, Lasting, Met, Point};
use glebe_testing::time::is_long;

use crate::footing::{steady, threads_at_first, Footing};
use crate::pool::Machine;
use crate::Outcome;

/// Runs of the test body before the faults, because the library creates some resources only once.
const SETTLING: usize = 2;
/// Recorded runs of the test body. The run with the fewest calls counts, because contention adds
/// calls.
const RECORDED: usize = 2;
const ATTEMPTS: u32 = 3;
/// A walk fails a random one in `SHARE` calls between a stack's second and last call.
const SHARE: u64 = 20;
/// A walk ends after this many runs in a row ended before the chosen call.
const UNMET: u32 = 3;

pub fn with_fault(life: &impl Fn() -> Outcome, fault: Fault) -> (Met, Outcome) {
    struct Armed;
    impl Drop for Armed {
        fn drop(&mut self) {
            disarm(); // if a life panics
        }
    }
    arm(fault);
    let _armed = Armed;
    let outcome = life();
    (disarm(), outcome)
}

/// Fails each chosen call alone, with two errors; then with all later calls of the same name; then
/// with all later calls.
pub fn walk_all(machine: Option<&Machine>, name: &str, life: impl Fn() -> Outcome) {
    let walk = Walk::of(machine, name, life);
    for ways in [(Lasting::Once, 2), (Lasting::ThisCall, 1), (Lasting::EveryCall, 1)] {
        let seen = walk.fail(ways);
        assert!(seen.errors > 0, "{name}: every fault was made up for");
    }
}

pub fn walk_once(machine: Option<&Machine>, name: &str, life: impl Fn() -> Outcome) -> Seen {
    Walk::of(machine, name, life).fail((Lasting::Once, 1))
}

/// Fails about `most` single calls, or every call with `GLEBE_LONG`. Test bodies that scan the
/// machine's memory need the limit, because fragmented memory causes many calls.
pub fn walk_some(machine: Option<&Machine>, name: &str, most: usize, life: impl Fn() -> Outcome) {
    let walk = Walk { most, ..Walk::of(machine, name, life) };
    walk.fail((Lasting::Once, 1));
}

#[derive(Default)]
pub struct Seen {
    /// Most calls of a run without a fault.
    points: usize,
    /// Most stacks of a run without a fault.
    stacks: usize,
    faults: u64,
    pub errors: u64,
    made_up_for: Vec<&'static str>,
}

impl Seen {
    fn note(&mut self, points: &[Point]) {
        self.points = self.points.max(points.len());
        self.stacks = self.stacks.max(by_stack(points).len());
    }
}

impl fmt::Display for Seen {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { points, stacks, faults, errors, made_up_for } = self;
        write!(f, "{points} calls from {stacks} stacks; {faults} faults, {errors} errors; ")?;
        write!(f, "made up for by the next: {made_up_for:?}")
    }
}

struct Walk<'a, L> {
    machine: Option<&'a Machine>,
    name: &'a str,
    life: L,
    threads: usize,
    seed: u64,
    most: usize,
}

impl<'a, L: Fn() -> Outcome> Walk<'a, L> {
    fn of(machine: Option<&'a Machine>, name: &'a str, life: L) -> Self {
        let threads = threads_at_first();
        steady();
        let walk = Self { machine, name, life, threads, seed: seed(), most: usize::MAX };
        (0..SETTLING).for_each(|_| walk.whole_life());
        walk
    }

    fn whole_life(&self) {
        let lived = (self.life)();
        lived.unwrap_or_else(|error| panic!("{} without a fault: {error}", self.name));
        // Waits for ending threads, because the next run reuses their stacks.
        Footing::of_threads(self.threads);
    }

    /// Returns the calls of a run without a fault. The calls change with time, because the library
    /// remembers some refusals.
    fn points(&self) -> Vec<Point> {
        let lives = (0..RECORDED).map(|_| {
            record();
            self.whole_life();
            recorded()
        });
        lives.min_by_key(Vec::len).expect("a life")
    }

    /// Walks `walks` times, each time with another error. A walk fails one chosen call a run, until
    /// runs end before the chosen call.
    fn fail(&self, (lasting, walks): (Lasting, usize)) -> Seen {
        let begin = Instant::now();
        let mut seen = Seen::default();
        for choice in 0..walks {
            let salt = self.seed ^ (lasting as u64) << 8 ^ choice as u64;
            let (mut next, mut is_over) = (1, false);
            while !is_over {
                // Records again if a run made more calls than recorded.
                let points = self.points();
                seen.note(&points);
                let mut footing = Footing::of_threads(self.threads);
                let beyond = next.max(points.len() as u64 + 1);
                let most = if is_long() { usize::MAX } else { self.most };
                let chosen = share(chosen(&points, is_long(), salt), most, salt);
                let mut unmet = 0;
                for nth in chosen.into_iter().filter(|nth| *nth >= next).chain([beyond]) {
                    is_over = self.attempt(&mut footing, Fault { nth, choice, lasting }, &mut seen);
                    unmet = if is_over { unmet + 1 } else { 0 };
                    if unmet == UNMET {
                        break;
                    }
                }
                next = beyond + 1;
            }
        }
        seen.made_up_for.sort_unstable();
        seen.made_up_for.dedup();
        let (name, seconds) = (self.name, begin.elapsed().as_secs_f64());
        println!("{name}, {lasting:?}: {seen}; {seconds:.1} s");
        assert!(seen.faults >= 8, "{name}: hardly a fault was met");
        seen
    }

    /// Fails one call. Returns true if the run did not make the call.
    fn attempt(&self, footing: &mut Footing, fault: Fault, seen: &mut Seen) -> bool {
        let mut last = Ok(false);
        // Another process may change the hugetlb pool without glebe's lock. The change looks like a
        // leak, but not in every attempt.
        for attempt in 0..ATTEMPTS {
            if attempt > 0 {
                *footing = Footing::of_threads(self.threads);
            }
            let mut step = || last = self.step(footing, fault, seen);
            let kept = match self.machine {
                Some(machine) => machine.try_base_is_kept(step),
                None => {
                    step();
                    Ok(())
                }
            };
            last = kept.and(last);
            if last.is_ok() || self.machine.is_none() {
                break;
            }
        }
        last.unwrap_or_else(|what| panic!("{}, {fault:?}: {what}", self.name))
    }

    fn step(&self, before: &Footing, fault: Fault, seen: &mut Seen) -> Result<bool, String> {
        let (met, outcome) = with_fault(&self.life, fault);
        let what = format!("{fault:?} {:?}: {:?}", met.refused.first(), outcome.as_ref().err());
        if met.refused.is_empty() {
            outcome.unwrap_or_else(|error| panic!("an error without a fault: {error}"));
            return before.check(&what).map(|()| true);
        }
        seen.faults += 1;
        if let Err(error) = outcome {
            seen.errors += 1;
            assert!(!error.to_string().is_empty());
        }
        if !before.is_kept() {
            // If a call that gives something back fails, the next run must give it back.
            seen.made_up_for.extend(met.refused.first().map(|(call, _)| *call));
            let next = (self.life)();
            next.unwrap_or_else(|error| panic!("{what}, and then without a fault: {error}"));
            before.check(&what)?;
        }
        Ok(false)
    }
}

fn by_stack(points: &[Point]) -> HashMap<Point, Vec<u64>> {
    let mut stacks = HashMap::<_, Vec<_>>::new();
    for (nth, point) in (1..).zip(points) {
        stacks.entry(*point).or_default().push(nth);
    }
    stacks
}

fn chosen(points: &[Point], all: bool, salt: u64) -> Vec<u64> {
    let is_picked = |nth: u64| all || mixed(salt ^ mixed(nth)) % SHARE == 0;
    let mut chosen = Vec::new();
    for numbers in by_stack(points).values() {
        let last = numbers.len() - 1;
        let all = numbers.iter().enumerate();
        chosen.extend(
            all.filter_map(|(at, nth)| (at < 2 || at == last || is_picked(*nth)).then_some(*nth)),
        );
    }
    chosen.sort_unstable();
    chosen
}

fn share(mut numbers: Vec<u64>, most: usize, salt: u64) -> Vec<u64> {
    numbers.sort_by_key(|nth| mixed(salt ^ mixed(*nth)));
    numbers.truncate(most);
    numbers.sort_unstable();
    numbers
}

/// Mixes bits (splitmix64).
fn mixed(number: u64) -> u64 {
    let mut z = number.wrapping_add(0x9e37_79b9_7f4a_7c15);
    z = (z ^ z >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ z >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ z >> 31
}

fn seed() -> u64 {
    thread_local!(static SEED: Cell<Option<u64>> = const { Cell::new(None) });
    SEED.get().unwrap_or_else(|| {
        let given = std::env::var("GLEBE_SEED").ok().and_then(|seed| seed.parse().ok());
        let seed = given.unwrap_or_else(|| u64::from(std::process::id()));
        println!("GLEBE_SEED={seed}");
        SEED.set(Some(seed));
        seed
    })
}

#[test]
fn first_second_and_last_of_each_stack_fail_and_a_share_of_the_others() {
    let point = |stack| Point { call: "mmap", stack };
    let points: Vec<_> = (0..1000).map(|n| point(if n == 500 { 1 } else { 0 })).collect();
    let short = chosen(&points, false, 7);
    assert!([1, 2, 501, 1000].iter().all(|nth| short.contains(nth)), "{short:?}");
    assert!((20..120).contains(&short.len()), "{} of 1000", short.len());
    assert!(short.is_sorted() && short != chosen(&points, false, 8));
    assert_eq!(chosen(&points, true, 7), (1..=1000).collect::<Vec<_>>());
    let some = share(short.clone(), 10, 7);
    assert!(some.len() == 10 && some.is_sorted() && some != short[..10], "{some:?}");
    assert!(some != share(short.clone(), 10, 8));
    assert_eq!(share(short.clone(), 1000, 7), short);
}
