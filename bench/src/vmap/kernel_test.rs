//! [`run`]: the kernel's vmalloc test by its own cases, over positions that threads share.
//!
//! As `lib/test_vmalloc.c` does: every worker runs every case that the mask has, in its own order,
//! so many times over, and says how many runs passed, failed or failed as expected, and their mean
//! time. All but `vm_map_ram` are of positions alone: nothing is mapped or touched, so that times
//! are no kernel's. Units: microseconds a run; ticks of the processor's own clock for a worker.

use std::fmt::Write as _;
use std::panic;
use std::sync::Barrier;
use std::thread;

use glebe::sys::ticks::Rate;
use glebe::units::Bytes;

use crate::clock::{micros, wall};
use crate::interrupt;
use crate::report::Report;
use crate::reserve::keyed::{mix, Random};

use super::case::{Case, PAGE_LOG};
use super::measure::NAME;
use super::shared::Shared;
use super::space::Place;
use super::view::MapRam;

/// The ways in which `test_vmalloc.sh` runs it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    /// One worker, in order, three runs each.
    Performance,
    /// Ten short runs each.
    Smoke,
    /// A worker for each processor, twenty runs each.
    Stress,
}

/// What to do; what is not given is as the mode has it.
#[derive(Clone, Debug)]
pub struct Options {
    /// The way.
    pub mode: Mode,
    /// Workers.
    pub threads: Option<usize>,
    /// Runs of each case.
    pub repeat: Option<u32>,
    /// Allocations in a run, of the cases that count them.
    pub loops: Option<u32>,
    /// Each worker in an order of its own.
    pub shuffle: bool,
    /// One sharded tree for all, instead of an exact one behind a lock.
    pub sharded: bool,
    /// The cases, by the bits of the kernel's `run_test_mask`.
    pub mask: u32,
    /// The command line, for the report.
    pub command: String,
}

/// What runs of a case of the kernel's.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Body {
    Positions(Case),
    Views,
    /// Nothing, and why.
    Nothing(&'static str),
}

const NO_RCU: Body = Body::Nothing("not applicable: no grace periods in user space");

/// The kernel's cases in its order, which is that of the bits of its mask.
const TESTS: [(&str, Body); 11] = [
    ("fix_size_alloc", Body::Positions(Case::FixSize)),
    ("full_fit_alloc", Body::Positions(Case::FullFit)),
    ("long_busy_list_alloc", Body::Positions(Case::LongBusyList)),
    ("random_size_alloc", Body::Positions(Case::RandomSize)),
    ("fix_align_alloc", Body::Positions(Case::FixAlign)),
    ("random_size_align_alloc", Body::Positions(Case::RandomSizeAlign)),
    ("align_shift_alloc", Body::Positions(Case::AlignShift)),
    ("pcpu_alloc", Body::Nothing("not applicable: areas for each processor are the kernel's")),
    ("kvfree_rcu_1_arg_vmalloc", NO_RCU),
    ("kvfree_rcu_2_arg_vmalloc", NO_RCU),
    ("vm_map_ram", Body::Views),
];

/// All bits of the mask.
pub const MASK_ALL: u32 = (1 << TESTS.len()) - 1;

/// Blocks that stay while `long_busy_list_alloc` runs.
const BUSY: usize = 15_000;
/// What `full_fit_alloc` frees again for each power of two of processors, so that in the kernel
/// nothing of it is left to be freed later.
const JUNK: Bytes = Bytes::new(32 << 20);

/// The outcome of the runs of one case by one worker.
#[derive(Clone, Debug, Default)]
struct Outcome {
    passed: u32,
    failed: u32,
    failed_as_expected: u32,
    us: Vec<f64>,
}

/// What one worker did: an outcome for each case, and how long it took.
struct Worker {
    outcomes: Vec<(usize, Outcome)>,
    ticks: u64,
}

/// Numbers that the mode sets.
struct Plan {
    threads: usize,
    repeat: u32,
    loops: u32,
    shuffle: bool,
    mask: u32,
}

impl Plan {
    fn of(options: &Options) -> Self {
        let cpus = thread::available_parallelism().map_or(1, usize::from);
        let (threads, repeat, loops, shuffle) = match options.mode {
            Mode::Performance => (1, 3, 1_000_000, false),
            Mode::Smoke => (1, 10, 10_000, true),
            Mode::Stress => (cpus, 20, 1_000_000, true),
        };
        Self {
            threads: options.threads.unwrap_or(threads).max(1),
            repeat: options.repeat.unwrap_or(repeat).max(1),
            loops: options.loops.unwrap_or(loops).max(1),
            shuffle: options.shuffle || shuffle,
            mask: options.mask & MASK_ALL,
        }
    }
}

/// Runs the cases; a run that failed where it should not is in the check `failed_runs`.
#[must_use]
pub fn run(options: &Options) -> Report {
    let plan = Plan::of(options);
    let mut report = Report::new(NAME, &options.command, false);
    report.check("failed_runs", 0);
    // What all workers hold and leave free at once, at the worst.
    let each = BUSY.max(2 * junk_len()) + 4;
    let shared = Shared::new(plan.threads * each, options.sharded);
    let views = MapRam::new();
    let start = Barrier::new(plan.threads);
    let ground = &Ground { shared: &shared, views: views.as_ref().ok(), start: &start };
    let plan = &plan;
    let workers: Vec<Worker> = thread::scope(|scope| {
        let spawn = |nth| scope.spawn(move || work(nth, plan, ground));
        let handles: Vec<_> = (0..plan.threads).map(spawn).collect();
        let joined = |worker: thread::ScopedJoinHandle<'_, Worker>| {
            // An interruption goes on in this thread.
            worker.join().unwrap_or_else(|payload| panic::resume_unwind(payload))
        };
        handles.into_iter().map(joined).collect()
    });
    for (nth, worker) in workers.iter().enumerate() {
        tell(&format!("{}, worker {nth}", shared.name()), nth, worker, plan, &mut report);
    }
    for (_, (name, body)) in TESTS.iter().enumerate().filter(|(bit, _)| plan.mask >> bit & 1 == 1) {
        match (body, &views) {
            (Body::Nothing(why), _) => report.absent(name, "glebe", "us", why),
            (Body::Views, Err(why)) => report.absent(name, "glebe", "us", &why.to_string()),
            _ => {}
        }
    }
    report.note("But for vm_map_ram nothing is mapped, which is most of the kernel's time.");
    report
}

/// Rows of a worker, and the lines that the kernel prints.
fn tell(who: &str, nth: usize, worker: &Worker, plan: &Plan, report: &mut Report) {
    let mut lines = String::new();
    for (test, outcome) in &worker.outcomes {
        let (name, body) = TESTS[*test];
        report.row(name, who, "us", &outcome.us);
        report.check("failed_runs", outcome.failed.into());
        let shift = body == Body::Positions(Case::AlignShift);
        let loops = if shift { u64::BITS } else { plan.loops };
        let _ = writeln!(
            lines,
            "Summary: {name} passed: {} failed: {} xfailed: {} repeat: {} loops: {loops} avg: \
             {:.0} usec",
            outcome.passed,
            outcome.failed,
            outcome.failed_as_expected,
            plan.repeat,
            outcome.us.iter().sum::<f64>() / f64::from(plan.repeat),
        );
    }
    let _ = write!(lines, "All test took worker{nth}={} cycles", worker.ticks);
    report.section(&format!("worker {nth}"), &lines);
}

/// What the workers share.
struct Ground<'a> {
    shared: &'a Shared,
    views: Option<&'a MapRam>,
    start: &'a Barrier,
}

/// All that one worker does.
fn work(nth: usize, plan: &Plan, ground: &Ground<'_>) -> Worker {
    let mut random = Random::new(mix(nth as u64));
    let mut order: Vec<usize> =
        (0..TESTS.len()).filter(|&test| plan.mask >> test & 1 == 1).collect();
    for i in (1..order.len()).rev().filter(|_| plan.shuffle) {
        order.swap(i, random.below(i as u64 + 1) as usize);
    }
    let rate = Rate::measured();
    ground.start.wait();
    let begin = rate.now();
    let mut outcomes = Vec::new();
    for test in order {
        let mut outcome = Outcome::default();
        for _ in 0..plan.repeat {
            let from = wall();
            let passed = match (TESTS[test].1, ground.views) {
                (Body::Positions(case), _) => once(case, plan.loops, ground.shared, &mut random),
                (Body::Views, Some(views)) => map(plan.loops, views),
                _ => break,
            };
            outcome.us.push(micros(wall().saturating_sub(from)));
            match (passed, TESTS[test].1) {
                (true, _) => outcome.passed += 1,
                // The kernel's own word on it: supposed to be failed.
                (false, Body::Positions(Case::AlignShift)) => outcome.failed_as_expected += 1,
                (false, _) => outcome.failed += 1,
            }
        }
        if outcome.us.is_empty() {
            continue;
        }
        outcomes.push((test, outcome));
    }
    let ticks = rate.now().saturating_sub(begin);
    outcomes.sort_by_key(|(test, _)| *test);
    Worker { outcomes, ticks }
}

/// Pages that `full_fit_alloc` allocates in vain, as many as it keeps.
fn junk_len() -> usize {
    let cpus = thread::available_parallelism().map_or(1, usize::from);
    ((cpus.ilog2() + 1) as usize) * (JUNK.get() >> PAGE_LOG) as usize
}

/// Loops between two looks whether the run shall end.
const LOOK_EVERY: u64 = 1 << 12;

/// One run of the case that maps; whether every page could be mapped.
fn map(loops: u32, views: &MapRam) -> bool {
    (1..=u64::from(loops)).all(|nth| {
        if nth % LOOK_EVERY == 0 {
            interrupt::check();
        }
        views.once()
    })
}

/// One run of a case; whether every allocation succeeded.
fn once(case: Case, loops: u32, shared: &Shared, random: &mut Random) -> bool {
    let mut held = Vec::new();
    let ready = prepare(case, shared, &mut held);
    let loops = match case {
        Case::AlignShift => u64::BITS.into(),
        _ => u64::from(loops) * case.at_once() as u64,
    };
    let mut answers = Vec::with_capacity(case.at_once());
    let mut passed = ready;
    for nth in 1..=if ready { loops } else { 0 } {
        if nth % LOOK_EVERY == 0 {
            interrupt::check();
        }
        let (len, align) = case.draw(nth, random);
        match shared.alloc(len, align) {
            Some(place) => answers.push((place, len)),
            None => passed = false,
        }
        if answers.len() == case.at_once() || !passed {
            answers.drain(..).for_each(|(place, len)| shared.free(place, len));
        }
        if !passed {
            break;
        }
    }
    held.into_iter().for_each(|place| shared.free(place, 1));
    passed
}

/// What a case holds while it runs, a page each; whether it could be had.
fn prepare(case: Case, shared: &Shared, held: &mut Vec<Place>) -> bool {
    let take = |held: &mut Vec<Place>| shared.alloc(1, 1).map(|place| held.push(place));
    match case {
        Case::FullFit => {
            let mut junk = Vec::new();
            let got = (0..junk_len()).all(|_| take(held).and_then(|()| take(&mut junk)).is_some());
            junk.into_iter().for_each(|place| shared.free(place, 1));
            got
        }
        Case::LongBusyList => (0..BUSY).all(|_| take(held).is_some()),
        _ => true,
    }
}
