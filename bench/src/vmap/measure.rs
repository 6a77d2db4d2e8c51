//! [`run`]: the benchmark `vmap`.
//!
//! For each number of live blocks and each case: all contestants are filled from one state, asked
//! for answers that are compared, then timed in turn, A B C A B C, for as many samples as there
//! shall be. A sample is the CPU time of many requests, divided: nanoseconds for an allocation and
//! a free, the call through a table of functions and the loop around it included.

use std::collections::BTreeMap;

use glebe::extent::Extent;
use glebe::free_tree::{Classes, FreeTree};

use crate::clock::Stopwatch;
use crate::interrupt;
use crate::report::Report;
use crate::reserve::keyed::Random;
use crate::summary::Summary;

use super::case::{Case, Held, Request};
use super::space::{Space, Who};
use super::state::{State, END};
use super::{splits, threads, view};

/// The name on the command line and in the JSON.
pub const NAME: &str = "vmap";

/// What to do.
#[derive(Clone, Debug, Default)]
pub struct Options {
    /// Few samples of small spaces.
    pub quick: bool,
    /// The command line, for the report.
    pub command: String,
}

/// Requests made up beforehand and then repeated.
const REQUESTS: usize = 1 << 14;

/// One contestant in a case.
struct Runner {
    who: Who,
    space: Box<dyn Space>,
    held: Vec<Held>,
    /// Requests for a sample, and the next one.
    batch: usize,
    next: usize,
    samples: Vec<f64>,
}

impl Runner {
    fn new(who: Who, state: &State) -> Self {
        let (space, places) = who.space(state);
        let held = Held::all(state, &places);
        Self { who, space, held, batch: 2, next: 0, samples: Vec::new() }
    }

    /// Answers to the first requests, as many as so many microseconds allow.
    fn answers(&mut self, case: Case, requests: &[Request], us: f64) -> Vec<Option<u32>> {
        /// Requests between two looks at the clock.
        const PART: usize = 20;
        let mut answers = Vec::new();
        let watch = Stopwatch::start();
        for part in requests.chunks(PART) {
            case.serve(&mut *self.space, &mut self.held, part, |answer| {
                answers.push(answer.map(|place| place.start));
            });
            if watch.elapsed().cpu_us > us {
                break;
            }
        }
        answers
    }

    /// Nanoseconds a request.
    fn sample(&mut self, case: Case, requests: &[Request]) -> f64 {
        if self.next + self.batch > requests.len() {
            self.next = 0;
        }
        let part = &requests[self.next..self.next + self.batch];
        self.next += self.batch;
        let watch = Stopwatch::start();
        case.serve(&mut *self.space, &mut self.held, part, |answer| {
            std::hint::black_box(answer);
        });
        watch.elapsed().cpu_us * 1e3 / self.batch as f64
    }

    /// Makes a sample last about so many microseconds.
    fn warm_up(&mut self, case: Case, requests: &[Request], us: f64) {
        while self.batch < requests.len() {
            let took = self.sample(case, requests) * self.batch as f64 / 1e3;
            if took >= us {
                return;
            }
            self.batch *= 2;
        }
    }
}

/// The outcomes, by case, logarithm and contestant.
type Outcomes = BTreeMap<(&'static str, u32, &'static str), Outcome>;

/// What is told of a contestant in a case.
#[derive(Clone, Copy, Debug)]
struct Outcome {
    median: f64,
    /// Whether all answers that were compared were the lowest that fit.
    exact: bool,
}

/// Runs the benchmark.
#[must_use]
pub fn run(options: &Options) -> Report {
    let mut report = Report::new(NAME, &options.command, options.quick);
    report.check("wrong_answers", 0);
    let logs: &[u32] = if options.quick { &[3, 4] } else { &[3, 4, 5, 6] };
    let mut outcomes = Outcomes::new();
    for &log in logs {
        let aged = State::aged(10_usize.pow(log));
        for case in Case::ALL {
            interrupt::check();
            one(case, log, &aged, options.quick, &mut report, &mut outcomes);
        }
        if log == logs[logs.len() - 1] {
            bytes(log, &aged, &mut report);
        }
    }
    threads::run(&mut report, options.quick);
    if let Err(why) = view::run(&mut report, options.quick) {
        report.absent("vm_map_ram", "glebe", "us", &why.to_string());
        report.ratio("view_cost", f64::NAN);
    }
    for (case, why) in ABSENT {
        report.absent(case, "glebe", "ns", why);
    }
    ratios(logs, &outcomes, &mut report);
    for note in NOTES {
        report.note(note);
    }
    report
}

/// Cases of the kernel's test that have no figures.
const ABSENT: [(&str, &str); 3] = [
    ("pcpu_alloc", "not applicable: areas for each processor are the kernel's"),
    ("kvfree_rcu_1_arg_vmalloc", "not applicable: no grace periods in user space"),
    ("kvfree_rcu_2_arg_vmalloc", "not applicable: no grace periods in user space"),
];

const NOTES: [&str; 6] = [
    "ns for an allocation and a free, CPU time; positions only: nothing is mapped or touched, but \
     for the rows in us.",
    "All are called through the same table of functions, which is in the figures, as is the loop \
     around: the row of the harness says how much. The blocks that churn frees are looked up some \
     requests ahead, so that nobody waits for the harness's own table.",
    "glebe, red-black tree and linked list name nodes by index; those of the two trees are on huge \
     pages where there are many. Of the public crates, offset-allocator is asked for size+align, \
     and rlsf has its headers in memory of its own, 32 bytes a page.",
    "exact: every answer that was compared, in a pass of its own, was the lowest that fits, as the \
     list finds it by looking at all holes. vs_best_exact_crate: beside the fastest public \
     crate of which that was so in every case.",
    "Most cases free first what was allocated last, which the free tree is made to do well; churn \
     does not. Without classes, adversary and the large alignments are searched for one by one.",
    "FL, LE, RE, NE: answers that were a free extent, its left edge, its right edge, neither.",
];

fn one(
    case: Case,
    log: u32,
    aged: &State,
    quick: bool,
    report: &mut Report,
    outcomes: &mut Outcomes,
) {
    let state = State::of(case, 10_usize.pow(log), aged);
    let requests = case.requests(&state, REQUESTS);
    let (compared, compare_us) = if quick { (200, 10_000.0) } else { (4000, 200_000.0) };
    let (samples, us) = if quick { (3, 100.0) } else { (15, 2000.0) };
    let mut list = Runner::new(Who::List, &state);
    let lowest = list.answers(case, &requests[..compared], compare_us);
    let name = format!("{}_1e{log}", case.name());
    let mut runners = Vec::new();
    let mut wrong = Vec::new();
    for who in Who::ALL {
        if let Some(why) = who.absent(case, log) {
            report.absent(&name, who.name(), "ns", why);
            continue;
        }
        let mut runner = Runner::new(who, &state);
        if who != Who::Null {
            let given = runner.answers(case, &requests[..lowest.len()], compare_us);
            let differ = given.iter().zip(&lowest).filter(|(given, lowest)| given != lowest);
            wrong.push((differ.count(), given.len()));
        }
        runner.warm_up(case, &requests, us);
        runners.push(runner);
    }
    for _ in 0..samples {
        for runner in &mut runners {
            let ns = runner.sample(case, &requests);
            runner.samples.push(ns);
        }
    }
    let mut wrong = wrong.into_iter();
    for runner in &runners {
        let who = runner.who;
        report.row(&name, who.name(), "ns", &runner.samples);
        let median = Summary::of(&runner.samples).map_or(f64::NAN, |summary| summary.median);
        let mut exact = false;
        if let (true, Some((differ, of))) = (who != Who::Null, wrong.next()) {
            exact = differ == 0;
            report.remark(&match differ {
                0 => format!("exact: {of} compared"),
                _ => format!("{differ} of {of} not the lowest that fits"),
            });
            if matches!(who, Who::Classes | Who::Plain) {
                report.check("wrong_answers", differ as u64);
            }
        }
        outcomes.insert((case.name(), log, who.name()), Outcome { median, exact });
    }
    for (fit, count) in splits::NAMES.into_iter().zip(splits::count(case, &state, &requests)) {
        report.row(&name, fit, "answers", &[count as f64]);
    }
}

/// Bytes of nodes for each free extent, in the state that service leaves.
fn bytes(log: u32, state: &State, report: &mut Report) {
    const BYTES_LOG: u32 = 12;
    for (who, classes, shift) in [
        ("glebe", Classes::ALL, 0),
        ("glebe without classes", Classes::NONE, 0),
        ("glebe, 64-bit bytes", Classes::ALL, BYTES_LOG),
        ("glebe, 64-bit bytes, without classes", Classes::NONE, BYTES_LOG),
    ] {
        let scaled = |extent: &Extent| Extent::new(extent.start() << shift, extent.len() << shift);
        let span = Extent::new(0, END << shift).expect("not empty");
        let mut tree = FreeTree::with_classes(span, state.free.len(), classes);
        // In no order, as in service: in ascending order every node would be left half full.
        let mut order: Vec<Extent> = state.free.iter().filter_map(scaled).collect();
        let mut random = Random::new(1);
        for i in (1..order.len()).rev() {
            order.swap(i, random.below(i as u64 + 1) as usize);
        }
        for extent in order {
            tree.free(extent).expect("free once");
        }
        let each = tree.used_bytes() as f64 / tree.extents() as f64;
        report.row(&format!("bytes_per_extent_1e{log}"), who, "bytes", &[each]);
    }
}

fn ratios(logs: &[u32], outcomes: &Outcomes, report: &mut Report) {
    let outcome =
        |case: Case, log: u32, who: Who| outcomes.get(&(case.name(), log, who.name())).copied();
    let median = |case, log, who| outcome(case, log, who).map_or(f64::NAN, |found| found.median);
    let all_exact = |who| {
        let of_it = |&(&(_, _, name), _): &(&(_, _, &str), _)| name == Who::name(who);
        outcomes.iter().filter(of_it).all(|(_, outcome)| outcome.exact)
    };
    let exact_crates: Vec<Who> = Who::CRATES.into_iter().filter(|&who| all_exact(who)).collect();
    let best_crate = |case, log| {
        let found = exact_crates.iter().filter_map(|&who| outcome(case, log, who));
        found.map(|found| found.median).reduce(f64::min)
    };
    let configurations = [(Who::Classes, "classes"), (Who::Plain, "plain")];
    let (first, last) = (logs[0], logs[logs.len() - 1]);
    for (who, suffix) in configurations {
        let mut worst: f64 = f64::INFINITY;
        for case in Case::ALL {
            let name = case.name();
            for &log in logs {
                let own = median(case, log, who);
                let rbtree = median(case, log, Who::RbExact) / own;
                worst = worst.min(rbtree);
                report.ratio(&format!("vs_rbtree_{name}_1e{log}_{suffix}"), rbtree);
                let list = median(case, log, Who::List) / own;
                report.ratio(&format!("vs_list_{name}_1e{log}_{suffix}"), list);
                if let Some(best) = best_crate(case, log) {
                    let key = format!("vs_best_exact_crate_{name}_1e{log}_{suffix}");
                    report.ratio(&key, best / own);
                }
            }
            let growth = median(case, last, who) / median(case, first, who);
            report.ratio(&format!("growth_1e{first}_to_1e{last}_{name}_{suffix}"), growth);
        }
        report.ratio(&format!("vs_rbtree_worst_{suffix}"), worst);
    }
    let growth = |case| median(case, last, Who::Classes) / median(case, first, Who::Classes);
    let growth = Case::ALL.into_iter().map(growth).fold(0.0, f64::max);
    report.ratio(&format!("growth_1e{first}_to_1e{last}"), growth);
    let cost = |log| {
        median(Case::Adversary, log, Who::Classes) / median(Case::FixAlign, log, Who::Classes)
    };
    for &log in logs {
        report.ratio(&format!("adversary_cost_1e{log}"), cost(log));
    }
    let cost = logs.iter().map(|&log| cost(log)).fold(0.0, f64::max);
    report.ratio("adversary_cost", cost);
}
