//! Threads allocate from one span, which a free tree behind a lock keeps.
//!
//! Each thread works on its own blocks, alone and beside another thread. The figure is a thread's
//! CPU nanoseconds per allocation and free, which include spinning, the lock's system calls and
//! contended cache lines, but no sleep. Processors may share a core, which slows even independent
//! threads, so the case *apart* has a tree per thread. Lengths are in pages.

use std::sync::{Barrier, Mutex};

use glebe::extent::Extent;
use glebe::free_tree::FreeTree;

use crate::clock::timed;
use crate::report::Report;
use crate::reserve::keyed::Random;
use crate::turns::{on_threads, turns};

/// 16 TiB of 4 KiB pages, less one page.
const SPAN_PAGES: u64 = (1 << 32) - 1;
const GLEBE: [&str; 2] = ["glebe, 1 thread", "glebe, 2 threads"];
const APART: [&str; 2] = ["a tree for each thread, 1 thread", "a tree for each, 2 threads"];

struct Case {
    name: &'static str,
    held: u64,
    largest: u64,
    /// Whether a request replaces a held block, or else frees its new block at once.
    churns: bool,
}

const CASES: [Case; 3] = [
    Case { name: "threads_fix_size", held: 1_000, largest: 1, churns: false },
    Case { name: "threads_random_size", held: 10_000, largest: 100, churns: false },
    Case { name: "threads_churn", held: 50_000, largest: 100, churns: true },
];

#[derive(Clone, Copy)]
struct Effort {
    /// Requests per thread and sample.
    requests: usize,
    samples: usize,
    rounds: u64,
    held_max: u64,
}

const EFFORT: Effort = Effort { requests: 100_000, samples: 15, rounds: 3, held_max: u64::MAX };
const EFFORT_QUICK: Effort = Effort { requests: 5_000, samples: 5, rounds: 1, held_max: 500 };

fn alloc(tree: &Mutex<FreeTree>, len: u64) -> Extent {
    tree.lock().expect("no panic").alloc(len, 1, None).ok().flatten().expect("there is room")
}

fn free(tree: &Mutex<FreeTree>, extent: Extent) {
    tree.lock().expect("no panic").free(extent).expect("taken before");
}

/// Measures in one thread. Returns samples of CPU nanoseconds per request. Threads begin each
/// sample together.
fn work(
    tree: &Mutex<FreeTree>,
    case: &Case,
    seed: u64,
    begin: &Barrier,
    effort: Effort,
) -> Vec<f64> {
    let mut random = Random::new(seed);
    let blocks = 0..case.held.min(effort.held_max);
    // The thread allocates its blocks itself, on the processor where it will work. Every other
    // block leaves a hole.
    let pairs = blocks.map(|_| [(); 2].map(|()| alloc(tree, 1 + random.below(100))));
    let (mut held, gone): (Vec<_>, Vec<_>) = pairs.map(|[stays, goes]| (stays, goes)).unzip();
    gone.into_iter().for_each(|extent| free(tree, extent));
    let sample = |_| {
        begin.wait();
        let request = |_| {
            let len = 1 + random.below(case.largest);
            if case.churns {
                let nth = random.below(held.len() as u64) as usize;
                free(tree, held[nth]);
                held[nth] = alloc(tree, len);
            } else {
                free(tree, alloc(tree, len));
            }
        };
        let ((), took) = timed(|| (0..effort.requests).for_each(request));
        took.cpu_us * 1e3 / effort.requests as f64
    };
    (0..=effort.samples).map(sample).skip(1).collect()
}

/// Returns the samples of all threads, which share one tree or, if `apart`, have a tree each.
fn measure(case: &Case, threads: u64, apart: bool, effort: Effort) -> Vec<f64> {
    let parts = if apart { threads } else { 1 };
    let part = SPAN_PAGES / parts;
    let tree = |nth| {
        let span = Extent::new(nth * part, part).expect("not empty");
        let mut tree = FreeTree::new(span, (8 * case.held + 64) as usize);
        tree.free(span).expect("all of it is free");
        Mutex::new(tree)
    };
    let trees: Vec<_> = (0..parts).map(tree).collect();
    let work = |nth: usize, begin: &Barrier| {
        work(&trees[nth % parts as usize], case, nth as u64 + 1, begin, effort)
    };
    on_threads(threads as usize, work).concat()
}

/// Adds rows, and the ratios `threads_2_vs_1_cpu` and `apart_threads_2_vs_1_cpu` of the case where
/// the first ratio is worst.
pub(super) fn run(report: &mut Report) {
    let effort = report.plan(EFFORT_QUICK, EFFORT);
    for case in &CASES {
        let both = [(GLEBE, false), (APART, true)];
        for (_, (who, apart)) in turns(case.name, effort.rounds, &both) {
            for (threads, who) in (1..).zip(who) {
                report.row(case.name, who, "ns", &measure(case, threads, apart, effort));
            }
        }
    }
    let ratios = CASES.map(|Case { name, .. }| {
        [GLEBE, APART].map(|[one, two]| report.median(name, one) / report.median(name, two))
    });
    let worst = ratios.into_iter().min_by(|a, b| a[0].total_cmp(&b[0]));
    if let Some([ours, apart]) = worst {
        report.ratio("threads_2_vs_1_cpu", ours);
        report.ratio("apart_threads_2_vs_1_cpu", apart);
    }
}
