//! The benchmark `vmap`: [`glebe::free_tree`] beside other ways to keep free extents, over pure
//! positions.
//!
//! For each number of live blocks and each case: all contestants are filled from one state, asked
//! for answers that are compared, then timed in turn, A B C A B C, for as many samples as there
//! shall be. A sample is the CPU time of many requests, divided: nanoseconds for an allocation and
//! a free, the call through a table of functions and the loop around it included.

mod case;
mod list;
mod rbtree;
mod space;
mod state;
mod threads;
mod view;

use glebe::extent::Extent;
use glebe::free_tree::{Classes, FreeTree};

use crate::clock::Stopwatch;
use crate::interrupt;
use crate::report::Report;
use crate::reserve::keyed::Random;
use crate::samples::Samples;
use crate::Outcome;
use case::{Case, Held, Request};
use space::{Space, Who};
use state::{State, END};

/// Requests made up beforehand and then repeated.
const REQUESTS: usize = 1 << 14;

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

/// Runs the benchmark.
pub(crate) fn run(report: &mut Report) -> Outcome {
    let quick = report.options.quick;
    report.check("wrong_answers", 0);
    let logs: &[u32] = if quick { &[3, 4] } else { &[3, 4, 5, 6] };
    let mut samples = Samples::default();
    for &log in logs {
        let aged = State::aged(10_usize.pow(log));
        for case in Case::ALL {
            interrupt::check();
            one(case, log, &aged, quick, report, &mut samples);
        }
        if log == logs[logs.len() - 1] {
            bytes(log, &aged, &mut samples);
        }
    }
    threads::run(report, quick);
    if let Err(why) = view::run(report, quick) {
        report.remark("view_of_1024_scattered_pages", "glebe", "us", &why.to_string());
        report.ratio("view_cost", f64::NAN);
    }
    ratios(logs, &samples, report);
    samples.report(report);
    NOTES.iter().for_each(|note| report.note(note));
    Ok(())
}

/// One contestant in a case.
struct Runner {
    who: Who,
    space: Box<dyn Space>,
    held: Vec<Held>,
    /// Requests for a sample, and the next one.
    batch: usize,
    next: usize,
}

impl Runner {
    fn new(who: Who, state: &State) -> Self {
        Self { who, space: who.space(state), held: Held::all(state), batch: 2, next: 0 }
    }

    /// Answers to the first requests, as many as so many microseconds allow.
    fn answers(&mut self, case: Case, requests: &[Request], us: f64) -> Vec<Option<u32>> {
        /// Requests between two looks at the clock.
        const PART: usize = 20;
        let mut answers = Vec::new();
        let watch = Stopwatch::start();
        for part in requests.chunks(PART) {
            case.serve(&mut *self.space, &mut self.held, part, |answer| answers.push(answer));
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

fn case_name(case: Case, log: u32) -> String {
    format!("{}_1e{log}", case.name())
}

fn one(
    case: Case,
    log: u32,
    aged: &State,
    quick: bool,
    report: &mut Report,
    samples: &mut Samples,
) {
    let state = State::of(case, 10_usize.pow(log), aged);
    let requests = case.requests(&state, REQUESTS);
    let (compared, compare_us) = if quick { (200, 10_000.0) } else { (4000, 200_000.0) };
    let (count, us) = if quick { (3, 100.0) } else { (15, 2000.0) };
    let mut list = Runner::new(Who::List, &state);
    let lowest = list.answers(case, &requests[..compared], compare_us);
    let name = case_name(case, log);
    let mut runners = Vec::new();
    for who in Who::ALL {
        if let Some(why) = who.absent(case, log) {
            samples.remark(&name, who.name(), "ns", why);
            continue;
        }
        let mut runner = Runner::new(who, &state);
        if who != Who::Null {
            let given = runner.answers(case, &requests[..lowest.len()], compare_us);
            let wrong = given.iter().zip(&lowest).filter(|(given, lowest)| given != lowest).count();
            let text = match wrong {
                0 => format!("exact: {} compared", given.len()),
                _ => format!("{wrong} of {} not the lowest that fits", given.len()),
            };
            samples.remark(&name, who.name(), "ns", &text);
            if matches!(who, Who::Classes | Who::Plain) {
                report.check("wrong_answers", wrong as u64);
            }
        }
        runner.warm_up(case, &requests, us);
        runners.push(runner);
    }
    for _ in 0..count {
        for runner in &mut runners {
            let ns = runner.sample(case, &requests);
            samples.add(&name, runner.who.name(), "ns", ns);
        }
    }
}

/// Bytes of nodes for each free extent, in the state that service leaves.
fn bytes(log: u32, state: &State, samples: &mut Samples) {
    let span = Extent::new(0, END).expect("not empty");
    for (who, classes) in [(Who::Classes, Classes::All), (Who::Plain, Classes::None)] {
        let mut tree = FreeTree::with_classes(span, state.free.len(), classes).expect("memory");
        // In no order, as in service: in ascending order every node would be left half full.
        let mut order = state.free.clone();
        let mut random = Random::new(1);
        for i in (1..order.len()).rev() {
            order.swap(i, random.below(i as u64 + 1) as usize);
        }
        for extent in order {
            tree.free(extent).expect("free once");
        }
        let each = tree.used_bytes() as f64 / tree.extents() as f64;
        samples.add(&format!("bytes_per_extent_1e{log}"), who.name(), "bytes", each);
    }
}

fn ratios(logs: &[u32], samples: &Samples, report: &mut Report) {
    let median = |case, log, who: Who| samples.median(&case_name(case, log), who.name());
    let (first, last) = (logs[0], logs[logs.len() - 1]);
    for (who, suffix) in [(Who::Classes, "classes"), (Who::Plain, "plain")] {
        let mut worst = f64::INFINITY;
        for case in Case::ALL {
            let name = case.name();
            for &log in logs {
                let own = median(case, log, who);
                let vs = |peer| median(case, log, peer) / own;
                worst = f64::min(worst, vs(Who::RbTree));
                report.ratio(&format!("vs_rbtree_{name}_1e{log}_{suffix}"), vs(Who::RbTree));
                report.ratio(&format!("vs_list_{name}_1e{log}_{suffix}"), vs(Who::List));
                if who.absent(case, log).or(Who::VmAllocator.absent(case, log)).is_none() {
                    let key = format!("vs_best_exact_crate_{name}_1e{log}_{suffix}");
                    report.ratio(&key, vs(Who::VmAllocator));
                }
            }
            let growth = median(case, last, who) / median(case, first, who);
            report.ratio(&format!("growth_1e{first}_to_1e{last}_{name}_{suffix}"), growth);
        }
        report.ratio(&format!("vs_rbtree_worst_{suffix}"), worst);
    }
    let of = |case, log| median(case, log, Who::Classes);
    let growth = Case::ALL.map(|case| of(case, last) / of(case, first));
    report.ratio(&format!("growth_1e{first}_to_1e{last}"), growth.into_iter().fold(0.0, f64::max));
    let cost = |&log: &u32| of(Case::Adversary, log) / of(Case::FixAlign, log);
    report.ratio("adversary_cost", logs.iter().map(cost).fold(0.0, f64::max));
}
