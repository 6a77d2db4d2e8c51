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

use super::case::{Case, Request};
use super::space::{Space, Who};
use super::state::{State, END};

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
    held: Vec<Option<Extent>>,
    /// Requests for a sample, and the next one.
    batch: usize,
    next: usize,
    samples: Vec<f64>,
}

impl Runner {
    fn new(who: Who, state: &State) -> Self {
        let most = state.free.len() + 2 * state.held.len() + 16;
        let space = who.space(END, most, &state.free);
        let held = state.held.iter().copied().map(Some).collect();
        Self { who, space, held, batch: 2, next: 0, samples: Vec::new() }
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

/// The medians, by case, logarithm and contestant.
type Medians = BTreeMap<(&'static str, u32, &'static str), f64>;

/// Runs the benchmark.
#[must_use]
pub fn run(options: &Options) -> Report {
    let mut report = Report::new(NAME, &options.command, options.quick);
    report.check("wrong_answers", 0);
    let logs: &[u32] = if options.quick { &[3, 4] } else { &[3, 4, 5, 6] };
    let mut medians = Medians::new();
    for &log in logs {
        for case in Case::ALL {
            interrupt::check();
            one(case, log, options.quick, &mut report, &mut medians);
        }
    }
    for (case, why) in ABSENT {
        report.absent(case, "glebe", "ns", why);
    }
    bytes(logs[logs.len() - 1], &mut report);
    ratios(logs, &medians, &mut report);
    for note in NOTES {
        report.note(note);
    }
    report
}

/// Cases of the kernel's test that have no figures.
const ABSENT: [(&str, &str); 4] = [
    ("vm_map_ram", "not yet: there are no views of scattered pages in this version"),
    ("pcpu_alloc", "not applicable: areas for each processor are the kernel's"),
    ("kvfree_rcu_1_arg_vmalloc", "not applicable: no grace periods in user space"),
    ("kvfree_rcu_2_arg_vmalloc", "not applicable: no grace periods in user space"),
];

const NOTES: [&str; 3] = [
    "ns for an allocation and a free, CPU time; positions only: nothing is mapped or touched.",
    "glebe, red-black tree and linked list name nodes by index in a vector; all are called through \
     the same table of functions, which is in the figures.",
    "Most cases free first what was allocated last, which the free tree is made to do well; churn \
     does not.",
];

fn one(case: Case, log: u32, quick: bool, report: &mut Report, medians: &mut Medians) {
    let n = 10_usize.pow(log);
    let state = State::of(case, n);
    let requests = case.requests(&state, REQUESTS);
    let compared = if quick { 200 } else { COMPARED[(log as usize - 3).min(3)] };
    let lowest = answers(Who::List, case, &state, &requests[..compared]);
    let mut runners: Vec<Runner> = Who::ALL.iter().map(|&who| Runner::new(who, &state)).collect();
    let (samples, us) = if quick { (3, 100.0) } else { (15, 2000.0) };
    for runner in &mut runners {
        runner.warm_up(case, &requests, us);
    }
    for _ in 0..samples {
        for runner in &mut runners {
            let ns = runner.sample(case, &requests);
            runner.samples.push(ns);
        }
    }
    let name = format!("{}_1e{log}", case.name());
    for runner in &runners {
        let who = runner.who;
        let given = answers(who, case, &state, &requests[..compared]);
        let wrong = given.iter().zip(&lowest).filter(|(given, lowest)| given != lowest).count();
        report.row(&name, who.name(), "ns", &runner.samples);
        report.remark(&match wrong {
            0 => "exact".into(),
            _ => format!("{wrong} of {compared} not the lowest that fits"),
        });
        if matches!(who, Who::Classes | Who::Plain) {
            report.check("wrong_answers", wrong as u64);
        }
        let median = Summary::of(&runner.samples).map_or(f64::NAN, |summary| summary.median);
        medians.insert((case.name(), log, who.name()), median);
    }
}

/// Answers that are compared with the list's, by size: it looks at every hole.
const COMPARED: [usize; 4] = [4000, 2000, 400, 60];

fn answers(who: Who, case: Case, state: &State, requests: &[Request]) -> Vec<Option<u64>> {
    let mut runner = Runner::new(who, state);
    let mut answers = Vec::with_capacity(requests.len());
    case.serve(&mut *runner.space, &mut runner.held, requests, |answer| answers.push(answer));
    answers
}

/// Bytes of nodes for each free extent, in the state that service leaves.
fn bytes(log: u32, report: &mut Report) {
    const BYTES_LOG: u32 = 12;
    let state = State::of(Case::Churn, 10_usize.pow(log));
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

fn ratios(logs: &[u32], medians: &Medians, report: &mut Report) {
    let median = |case: Case, log: u32, who: Who| {
        medians.get(&(case.name(), log, who.name())).copied().unwrap_or(f64::NAN)
    };
    let configurations = [(Who::Classes, "classes"), (Who::Plain, "plain")];
    let (first, last) = (logs[0], logs[logs.len() - 1]);
    for case in Case::ALL {
        let name = case.name();
        for (who, suffix) in configurations {
            for &log in logs {
                let own = median(case, log, who);
                let rbtree = median(case, log, Who::RbExact) / own;
                report.ratio(&format!("vs_rbtree_{name}_1e{log}_{suffix}"), rbtree);
                let list = median(case, log, Who::List) / own;
                report.ratio(&format!("vs_list_{name}_1e{log}_{suffix}"), list);
            }
            let growth = median(case, last, who) / median(case, first, who);
            report.ratio(&format!("growth_1e{first}_to_1e{last}_{name}_{suffix}"), growth);
        }
    }
    for &log in logs {
        let own = median(Case::FixAlign, log, Who::Classes);
        let cost = median(Case::Adversary, log, Who::Classes) / own;
        report.ratio(&format!("adversary_cost_1e{log}"), cost);
    }
}
