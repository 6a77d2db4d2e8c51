//! Threads on one span, kept by a sharded free tree.
//!
//! Every thread has blocks of its own and does the same work, alone and beside another. What two
//! threads do in a second of CPU time, all of theirs together, is set against what one does: a
//! thread that waits uses none, one that fights for a cache line does. Two processors may share a
//! core, so that two threads that share nothing lose something too: *apart*, each with a tree of
//! its own, is what the machine allows.
//!
//! Nanoseconds of CPU time for an allocation and a free, the samples of all in turn. Units: pages.

use std::sync::{Barrier, Mutex, PoisonError};
use std::thread;

use glebe::extent::Extent;
use glebe::free_tree::{FreeTree, Sharded};

use crate::clock::Stopwatch;
use crate::interrupt;
use crate::report::Report;
use crate::reserve::keyed::Random;
use crate::samples::{in_turn, Samples};

/// 16 TiB of pages of 4 KiB, but for one.
const SPAN_PAGES: u64 = (1 << 32) - 1;
const THREADS: usize = 2;
/// Requests a thread and sample.
const REQUESTS: usize = 100_000;
const REQUESTS_QUICK: usize = 5_000;
const SAMPLES: usize = 15;
const SAMPLES_QUICK: usize = 5;

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

impl Case {
    const ALL: [Self; 3] = [Self::FixSize, Self::RandomSize, Self::Churn];

    fn name(self) -> &'static str {
        match self {
            Self::FixSize => "threads_fix_size",
            Self::RandomSize => "threads_random_size",
            Self::Churn => "threads_churn",
        }
    }

    /// Blocks that each thread has.
    fn held(self, quick: bool) -> usize {
        match (self, quick) {
            (_, true) => 500,
            (Self::FixSize, _) => 1_000,
            (Self::RandomSize, _) => 10_000,
            (Self::Churn, _) => 50_000,
        }
    }
}

/// What the threads have between them.
enum Trees {
    Sharded(Box<Sharded>),
    /// A tree for each, in a part of the span of its own.
    Apart(Vec<Lines>),
}

/// On cache lines of its own.
#[repr(align(128))]
struct Lines(Mutex<FreeTree>);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Who {
    Sharded,
    Apart,
}

impl Who {
    const ALL: [Self; 2] = [Self::Sharded, Self::Apart];

    fn trees(self, most: usize) -> Trees {
        let span = Extent::new(0, SPAN_PAGES).expect("not empty");
        let exact = |span: Extent| {
            let mut tree = FreeTree::new(span, most);
            tree.free(span).expect("all of it is free");
            Mutex::new(tree)
        };
        match self {
            Self::Sharded => {
                let tree = Sharded::new(span, most);
                tree.free(span).expect("all of it is free");
                Trees::Sharded(Box::new(tree))
            }
            Self::Apart => {
                let part = SPAN_PAGES / THREADS as u64;
                let parts = (0..THREADS as u64).filter_map(|n| Extent::new(n * part, part));
                Trees::Apart(parts.map(|part| Lines(exact(part))).collect())
            }
        }
    }
}

fn locked(tree: &Mutex<FreeTree>) -> std::sync::MutexGuard<'_, FreeTree> {
    tree.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Trees {
    #[inline]
    fn alloc(&self, thread: usize, len: u64) -> Extent {
        let taken = match self {
            Self::Sharded(tree) => tree.alloc(len, 1),
            Self::Apart(trees) => locked(&trees[thread].0).alloc(len, 1, None),
        };
        taken.ok().flatten().expect("there is room")
    }

    #[inline]
    fn free(&self, thread: usize, extent: Extent) {
        let freed = match self {
            Self::Sharded(tree) => tree.free(extent),
            Self::Apart(trees) => locked(&trees[thread].0).free(extent),
        };
        freed.expect("taken before");
    }
}

/// A thread's blocks and requests.
struct Worker {
    held: Vec<Extent>,
    random: Random,
}

impl Worker {
    fn new(trees: &Trees, thread: usize, case: Case, quick: bool) -> Self {
        let mut random = Random::new(thread as u64 + 1);
        let block = |_| trees.alloc(thread, 1 + random.below(100));
        let mut held: Vec<Extent> = (0..2 * case.held(quick)).map(block).collect();
        // Every other one goes, so that there are holes.
        let mut n = 0;
        held.retain(|extent| {
            n += 1;
            if n % 2 == 0 {
                trees.free(thread, *extent);
            }
            n % 2 != 0
        });
        Self { held, random }
    }

    /// Nanoseconds a request.
    fn sample(&mut self, trees: &Trees, thread: usize, case: Case, requests: usize) -> f64 {
        let watch = Stopwatch::start();
        for _ in 0..requests {
            match case {
                Case::FixSize => trees.free(thread, trees.alloc(thread, 1)),
                Case::RandomSize => {
                    let len = 1 + self.random.below(100);
                    trees.free(thread, trees.alloc(thread, len));
                }
                Case::Churn => {
                    let (len, all) = (1 + self.random.below(100), self.held.len() as u64);
                    let index = self.random.below(all) as usize;
                    trees.free(thread, self.held[index]);
                    self.held[index] = trees.alloc(thread, len);
                }
            }
        }
        watch.elapsed().cpu_us * 1e3 / requests as f64
    }
}

/// Samples of as many threads: each the mean over them of one round.
fn measure(who: Who, case: Case, threads: usize, quick: bool) -> Vec<f64> {
    let (requests, samples) =
        if quick { (REQUESTS_QUICK, SAMPLES_QUICK) } else { (REQUESTS, SAMPLES) };
    let trees = &who.trees(4 * THREADS * case.held(quick) + 64);
    let rounds = &Barrier::new(threads);
    let each = |thread: usize| {
        // Made by the thread itself: its blocks are where it works.
        let mut worker = Worker::new(trees, thread, case, quick);
        (0..=samples)
            .map(|_| {
                rounds.wait();
                worker.sample(trees, thread, case, requests)
            })
            .skip(1)
            .collect::<Vec<f64>>()
    };
    let all: Vec<Vec<f64>> = thread::scope(|scope| {
        let others: Vec<_> = (1..threads).map(|n| scope.spawn(move || each(n))).collect();
        let mine = each(0);
        let others = others.into_iter().filter_map(|other| other.join().ok());
        std::iter::once(mine).chain(others).collect()
    });
    (0..samples).map(|n| all.iter().map(|of| of[n]).sum::<f64>() / all.len() as f64).collect()
}

/// Adds the rows of each case, and the ratios `threads_2_vs_1_cpu` and
/// `apart_threads_2_vs_1_cpu`, each of the case in which it is worst for the sharded tree.
pub(super) fn run(report: &mut Report, quick: bool) {
    let rounds = if quick { 1 } else { 3 };
    let mut worst = [f64::INFINITY; Who::ALL.len()];
    for case in Case::ALL {
        let mut samples = Samples::default();
        let name = |who: Who, threads| match (who, threads) {
            (Who::Sharded, 1) => "glebe sharded, 1 thread",
            (Who::Sharded, _) => "glebe sharded, 2 threads",
            (Who::Apart, 1) => "a tree for each thread, 1 thread",
            (Who::Apart, _) => "a tree for each thread, 2 threads",
        };
        for (_, who) in in_turn(rounds, &Who::ALL) {
            for threads in [1, THREADS] {
                interrupt::check();
                for ns in measure(who, case, threads, quick) {
                    samples.add(case.name(), name(who, threads), "ns", ns);
                }
            }
        }
        let of = |who, threads| samples.median(case.name(), name(who, threads));
        let ratios = Who::ALL.map(|who| of(who, 1) / of(who, THREADS));
        if ratios[0] < worst[0] {
            worst = ratios;
        }
        samples.report(report);
    }
    report.ratio("threads_2_vs_1_cpu", worst[0]);
    report.ratio("apart_threads_2_vs_1_cpu", worst[1]);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_rows_and_ratios_are_there() {
        let mut report = Report::new("threads", "test", true);
        run(&mut report, true);
        let cases = Case::ALL.map(Case::name);
        let ratios = ["threads_2_vs_1_cpu", "apart_threads_2_vs_1_cpu"];
        assert!(report.missing(&cases, &ratios, &[]).is_empty());
        println!("{}", report.text());
    }
}
