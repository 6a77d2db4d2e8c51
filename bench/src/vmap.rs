//! The benchmark `vmap`: [`glebe::free_tree`] beside other data structures for free extents.
//! Positions are only numbers; only [`view`] maps memory.
//!
//! All contestants start a case from one state. Their answers are compared, then they are timed in
//! turn. A sample is the CPU time of many requests, divided by their number: nanoseconds for an
//! allocation and a free, dynamic calls and the loop included.

mod case;
mod list;
mod rbtree;
mod space;
mod threads;
mod view;

use glebe::extent::Extent;
use glebe::free_tree::{Classes, FreeTree};

use crate::clock::{micros, thread_cpu, timed};
use crate::report::Report;
use crate::reserve::keyed::mix;
use crate::{interrupt, Outcome};
use case::{Case, Request, State, TakenBlock, ADVERSARY, CASES, END, FIX_ALIGN};
use space::{Space, SpaceKind};

/// Requests of a case. They are made before the timing and repeated.
const REQUESTS: usize = 1 << 14;
const UNIT: &str = "ns";

const NOTES: [&str; 3] = [
    "ns for an allocation and a free, CPU time; positions only: nothing is mapped or touched, but \
     for the rows in us. All are called through the same table of functions, which is in the \
     figures, as is the loop around: the row of the harness says how much.",
    "glebe, red-black tree and linked list name nodes by index; those of the two trees are on huge \
     pages where there are many. Blocks that churn frees are looked up some requests ahead, so \
     that nobody waits for the harness's own table.",
    "Most cases free first what was allocated last, which the free tree is made to do well; churn \
     does not. Without classes, adversary and the large alignments are searched for one by one.",
];

struct Effort {
    /// Most answers compared per contestant, and most CPU time for them.
    compared: usize,
    compare_us: f64,
    samples: usize,
    sample_us: f64,
}

const FULL: Effort =
    Effort { compared: 4000, compare_us: 200_000.0, samples: 15, sample_us: 2000.0 };
const QUICK: Effort = Effort { compared: 200, compare_us: 10_000.0, samples: 3, sample_us: 100.0 };

pub(crate) fn run(report: &mut Report) -> Outcome {
    let (logs, effort) = report.plan((3..=4, &QUICK), (3..=6, &FULL));
    for log in logs.clone() {
        let aged = State::aged(10_usize.pow(log));
        for case in &CASES {
            interrupt::check();
            let state = (case.layout)(10_usize.pow(log), &aged);
            measure(case, log, &state, effort, report);
        }
        if log == *logs.end() {
            bytes(log, &aged, report);
        }
    }
    threads::run(report);
    view::run(report);
    ratios(&logs.collect::<Vec<_>>(), report);
    NOTES.iter().for_each(|note| report.note(note));
    Ok(())
}

struct Runner<'a> {
    case: &'a Case,
    requests: &'a [Request],
    who: SpaceKind,
    space: Box<dyn Space>,
    held: Vec<TakenBlock>,
    /// Requests per sample, and the next request.
    batch: usize,
    next: usize,
}

impl<'a> Runner<'a> {
    fn new(who: SpaceKind, case: &'a Case, state: &State, requests: &'a [Request]) -> Self {
        let (space, held) = (who.space(state), state.blocks());
        Self { case, requests, who, space, held, batch: 2, next: 0 }
    }

    /// Returns the answers to the first `most` requests, or to fewer if these take more than `us`
    /// microseconds of CPU time.
    fn answers(&mut self, most: usize, us: f64) -> Vec<Option<u32>> {
        const PART: usize = 20;
        let mut answers = Vec::new();
        let start = thread_cpu();
        for part in self.requests[..most].chunks(PART) {
            let tell = |answer| answers.push(answer);
            self.case.serve(&mut *self.space, &mut self.held, part, tell);
            if micros(thread_cpu() - start) > us {
                break;
            }
        }
        answers
    }

    fn sample(&mut self) -> f64 {
        if self.next + self.batch > self.requests.len() {
            self.next = 0;
        }
        let part = &self.requests[self.next..self.next + self.batch];
        self.next += self.batch;
        let tell = |answer| _ = std::hint::black_box(answer);
        let ((), took) = timed(|| self.case.serve(&mut *self.space, &mut self.held, part, tell));
        took.cpu_us * 1e3 / self.batch as f64
    }

    fn warm_up(&mut self, us: f64) {
        while self.batch < self.requests.len() && self.sample() * self.batch as f64 / 1e3 < us {
            self.batch *= 2;
        }
    }
}

fn case_name(case: &str, log: u32) -> String {
    format!("{case}_1e{log}")
}

fn measure(case: &Case, log: u32, state: &State, effort: &Effort, report: &mut Report) {
    let name = case_name(case.name, log);
    let requests = case.requests(state, REQUESTS);
    let mut list = Runner::new(SpaceKind::List, case, state, &requests);
    let lowest = list.answers(effort.compared, effort.compare_us);
    let mut runners = Vec::new();
    for who in SpaceKind::ALL {
        if let Some(why) = who.absent(log) {
            report.remark(&name, who.name(), UNIT, why);
            continue;
        }
        let mut runner = Runner::new(who, case, state, &requests);
        if who != SpaceKind::Nobody {
            let given = runner.answers(lowest.len(), effort.compare_us);
            let wrong = given.iter().zip(&lowest).filter(|(given, lowest)| given != lowest).count();
            let text = match wrong {
                0 => format!("exact: {} compared", given.len()),
                _ => format!("{wrong} of {} not the lowest that fits", given.len()),
            };
            report.remark(&name, who.name(), UNIT, &text);
            if matches!(who, SpaceKind::Classes | SpaceKind::Plain) {
                report.check("wrong_answers", wrong as u64);
            }
        }
        runner.warm_up(effort.sample_us);
        runners.push(runner);
    }
    for _ in 0..effort.samples {
        for runner in &mut runners {
            report.add(&name, runner.who.name(), UNIT, runner.sample());
        }
    }
}

/// Reports bytes of nodes per free extent, in an aged state.
fn bytes(log: u32, state: &State, report: &mut Report) {
    let span = Extent::new(0, END).expect("not empty");
    // Frees in random order, because ascending order would leave nodes half full.
    let mut extents = state.free.clone();
    extents.sort_by_key(|extent| mix(extent.start()));
    for (who, classes) in [(SpaceKind::Classes, Classes::All), (SpaceKind::Plain, Classes::None)] {
        let mut tree = FreeTree::with_classes(span, extents.len(), classes).expect("memory");
        extents.iter().for_each(|extent| tree.free(*extent).expect("free once"));
        let each = tree.used_bytes() as f64 / tree.extents() as f64;
        report.add(&case_name("bytes_per_extent", log), who.name(), "bytes", each);
    }
}

fn ratios(logs: &[u32], report: &mut Report) {
    let (first, last) = (logs[0], logs[logs.len() - 1]);
    let span = format!("growth_1e{first}_to_1e{last}");
    let mut ratios = Vec::new();
    let median = |case, log, who: SpaceKind| report.median(&case_name(case, log), who.name());
    let (mut growth, mut cost) = (0.0_f64, 0.0_f64);
    for (who, suffix) in [(SpaceKind::Classes, "classes"), (SpaceKind::Plain, "plain")] {
        for name in CASES.map(|case| case.name) {
            let grown = median(name, last, who) / median(name, first, who);
            ratios.push((format!("{span}_{name}_{suffix}"), grown));
            growth = if who == SpaceKind::Classes { growth.max(grown) } else { growth };
            for &log in logs {
                for (key, peer) in [
                    ("vs_rbtree", SpaceKind::RbTree),
                    ("vs_list", SpaceKind::List),
                    ("vs_best_exact_crate", SpaceKind::VmAllocator),
                ] {
                    if peer.absent(log).is_none() {
                        let ratio = median(name, log, peer) / median(name, log, who);
                        ratios.push((format!("{key}_{name}_1e{log}_{suffix}"), ratio));
                    }
                }
            }
        }
    }
    for &log in logs {
        let of = |case| median(case, log, SpaceKind::Classes);
        cost = cost.max(of(ADVERSARY) / of(FIX_ALIGN));
    }
    ratios.extend([(span, growth), ("adversary_cost".to_owned(), cost)]);
    ratios.into_iter().for_each(|(name, ratio)| report.ratio(&name, ratio));
}
