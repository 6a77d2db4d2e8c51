//! Threads on one span, kept by a sharded free tree.
//!
//! Every thread has blocks of its own and does the same work, alone and beside another. What two
//! threads do in a second of CPU time, all of theirs together, is set against what one does: a
//! thread that waits uses none, one that fights for a cache line does. Two processors may share a
//! core, so that two threads that share nothing lose something too: *apart*, each with a tree of
//! its own, is what the machine allows.
//!
//! Nanoseconds of CPU time for an allocation and a free, the samples of all in turn. Units: pages.

use std::sync::Barrier;
use std::thread;

use glebe::extent::Extent;
use glebe::free_tree::Sharded;

use crate::clock::Stopwatch;
use crate::interrupt;
use crate::report::Report;
use crate::reserve::keyed::Random;
use crate::samples::{in_turn, Samples};

/// 16 TiB of pages of 4 KiB, but for one.
const SPAN_PAGES: u64 = (1 << 32) - 1;
const THREADS: usize = 2;
const GLEBE: [&str; THREADS] = ["glebe, 1 thread", "glebe, 2 threads"];
const APART: [&str; THREADS] = ["a tree for each thread, 1 thread", "a tree for each, 2 threads"];

/// What a thread does over and over.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Case {
    /// One page, given back at once, beside blocks that stay.
    FixSize,
    /// 1 to 100 pages, given back at once, beside blocks that stay.
    RandomSize,
    /// Frees one of its blocks and takes another of 1 to 100 pages.
    Churn,
}

/// Each case, its name and the blocks that each thread has.
const CASES: [(Case, &str, u64); 3] = [
    (Case::FixSize, "threads_fix_size", 1_000),
    (Case::RandomSize, "threads_random_size", 10_000),
    (Case::Churn, "threads_churn", 50_000),
];

/// How much is done.
#[derive(Clone, Copy)]
struct Effort {
    /// Of a thread, for a sample.
    requests: usize,
    samples: usize,
    rounds: usize,
    held_max: u64,
}

const EFFORT: Effort = Effort { requests: 100_000, samples: 15, rounds: 3, held_max: u64::MAX };
const EFFORT_QUICK: Effort = Effort { requests: 5_000, samples: 5, rounds: 1, held_max: 500 };

fn alloc(tree: &Sharded, len: u64) -> Extent {
    tree.alloc(len, 1).ok().flatten().expect("there is room")
}

/// A thread's blocks and requests.
struct Worker<'a> {
    tree: &'a Sharded,
    held: Vec<Extent>,
    random: Random,
}

impl<'a> Worker<'a> {
    fn new(tree: &'a Sharded, thread: usize, held: u64) -> Self {
        let mut random = Random::new(thread as u64 + 1);
        let all: Vec<Extent> = (0..2 * held).map(|_| alloc(tree, 1 + random.below(100))).collect();
        // Every other one goes, so that there are holes.
        let (gone, held): (Vec<_>, Vec<_>) = all.iter().enumerate().partition(|(n, _)| n % 2 == 1);
        gone.into_iter().for_each(|(_, extent)| tree.free(*extent).expect("taken before"));
        Self { tree, held: held.into_iter().map(|(_, extent)| *extent).collect(), random }
    }

    /// Nanoseconds a request.
    fn sample(&mut self, case: Case, requests: usize) -> f64 {
        let watch = Stopwatch::start();
        for _ in 0..requests {
            let len = if case == Case::FixSize { 1 } else { 1 + self.random.below(100) };
            if case == Case::Churn {
                let index = self.random.below(self.held.len() as u64) as usize;
                self.tree.free(self.held[index]).expect("taken before");
                self.held[index] = alloc(self.tree, len);
            } else {
                self.tree.free(alloc(self.tree, len)).expect("taken before");
            }
        }
        watch.elapsed().cpu_us * 1e3 / requests as f64
    }
}

/// Samples of as many threads, on one tree or each on its own: each the mean over them of a round.
fn measure(case: Case, held: u64, threads: usize, apart: bool, effort: Effort) -> Vec<f64> {
    let trees = if apart { THREADS as u64 } else { 1 };
    let part = SPAN_PAGES / trees;
    let span = |n| Extent::new(n * part, part).expect("not empty");
    let tree = |n| {
        let tree = Sharded::new(span(n), (4 * THREADS as u64 * held + 64) as usize);
        tree.free(span(n)).expect("all of it is free");
        tree
    };
    let trees: Vec<Sharded> = (0..trees).map(tree).collect();
    let (trees, rounds) = (&trees, &Barrier::new(threads));
    let each = |thread: usize| {
        // Made by the thread itself: its blocks are where it works.
        let mut worker = Worker::new(&trees[thread % trees.len()], thread, held);
        let sample = |_| {
            rounds.wait();
            worker.sample(case, effort.requests)
        };
        (0..=effort.samples).map(sample).skip(1).collect::<Vec<f64>>()
    };
    let all: Vec<Vec<f64>> = thread::scope(|scope| {
        let others: Vec<_> = (1..threads).map(|n| scope.spawn(move || each(n))).collect();
        let mine = each(0);
        let others = others.into_iter().filter_map(|other| other.join().ok());
        std::iter::once(mine).chain(others).collect()
    });
    let mean = |n: usize| all.iter().map(|of| of[n]).sum::<f64>() / all.len() as f64;
    (0..effort.samples).map(mean).collect()
}

/// Adds the rows of each case, and the ratios `threads_2_vs_1_cpu` and
/// `apart_threads_2_vs_1_cpu`, both of the case in which the first is worst.
pub(super) fn run(report: &mut Report, quick: bool) {
    let effort = if quick { EFFORT_QUICK } else { EFFORT };
    let mut worst = [f64::INFINITY; 2];
    for (case, name, held) in CASES {
        let mut samples = Samples::default();
        for (_, (who, apart)) in in_turn(effort.rounds, &[(GLEBE, false), (APART, true)]) {
            for (threads, who) in (1..=THREADS).zip(who) {
                interrupt::check();
                let took = measure(case, held.min(effort.held_max), threads, apart, effort);
                took.into_iter().for_each(|ns| samples.add(name, who, "ns", ns));
            }
        }
        let ratio =
            |who: [&str; THREADS]| samples.median(name, who[0]) / samples.median(name, who[1]);
        let ratios = [ratio(GLEBE), ratio(APART)];
        if ratios[0] < worst[0] {
            worst = ratios;
        }
        samples.report(report);
    }
    report.ratio("threads_2_vs_1_cpu", worst[0]);
    report.ratio("apart_threads_2_vs_1_cpu", worst[1]);
}
