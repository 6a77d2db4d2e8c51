//! [`run`]: the benchmark `zpool`: what the pool holds beyond what is stored, step by step, beside
//! zram and allocators; pages stored and loaded, compaction, and small objects that come and go.

use glebe::sys::page_size;

use super::aligned::Aligned;
use super::speed::BLOCK;
use super::trace::{Change, Trace};
use super::tree::{self, Tree};
use super::workload::Workload;
use super::{callback, churn, compaction, overhead, speed, Error};
use crate::corpus;
use crate::report::{Options, Report};
use crate::Outcome;

/// How much is done.
#[derive(Clone, Copy, Debug)]
struct Plan {
    /// One file of the tree in so many.
    files: usize,
    /// One run of blocks of the trace in so many.
    runs: usize,
    /// Bytes of pages that are stored and loaded.
    bytes: usize,
    rounds: u64,
}

const FULL: Plan = Plan { files: 1, runs: 1, bytes: 128 << 20, rounds: 9 };
const QUICK: Plan = Plan { files: 8, runs: 4, bytes: 16 << 20, rounds: 2 };

/// Runs the benchmark.
///
/// # Errors
/// If the pool or the kernel refuses what they usually do; a machine without zram has rows that
/// say so.
pub fn run(report: &mut Report) -> Outcome {
    let options = &report.options.clone();
    let plan = if options.quick { QUICK } else { FULL };
    let traced = Workload::of_trace(&Trace::load()?, plan.runs);
    let tree = tree(options, plan, report)?;
    overhead::beside_zram(&traced, tree.as_ref(), report)?;
    overhead::allocators(plan.runs, &traced, report)?;
    compaction::measure(&traced, plan.rounds.min(3), report)?;
    drop(traced);
    let pages = pages(tree.as_ref(), plan, report)?;
    drop(tree);
    speed::measure(pages.as_slice(), plan.rounds, report)?;
    speed::threads(pages.as_slice(), plan.rounds, report)?;
    drop(pages);
    callback::measure(8 * plan.rounds, report)?;
    churn::measure(plan.rounds, report)?;
    Ok(())
}

/// The workload of a tree if there is one.
fn tree(options: &Options, plan: Plan, report: &mut Report) -> Result<Option<Workload>, Error> {
    report.note(
        "trace: of a device that had a kernel source tree. The pool has random bytes of each \
         object's length without a codec; zram has pages that LZ4 makes about as long. Random \
         deletion: files of 1 to 9 pages are made up. A quick run does a part of it.",
    );
    let Some(dir) = options.tree.clone().or_else(|| tree::find(options.dir.as_deref())) else {
        report.note(
            "tree: no kernel source tree was found (in --dir or /usr/src, unpacked, as from \
             Debian's linux-source); --tree names any directory.",
        );
        return Ok(None);
    };
    let scratch = options.scratch();
    let tree = Tree::pack(&dir, plan.files, &scratch)?;
    report.note(&format!(
        "tree: {} in pages of {}, one file in {}; LZ4 on both sides. Of a tree that is no \
         kernel's ten equal parts are made, in the order of names, of which nine go.",
        dir.display(),
        page_size().bytes(),
        plan.files
    ));
    Ok(Some(Workload::of_tree(tree)))
}

/// Pages to store and load: of the tree, spread over it, or of files that every machine has if
/// there is none or a small one.
fn pages(tree: Option<&Workload>, plan: Plan, report: &mut Report) -> Result<Aligned, Error> {
    /// Pages side by side.
    const RUN: usize = 64;
    let page = page_size().bytes().as_usize();
    let mut bytes = Aligned::new(plan.bytes);
    let mut to = bytes.bytes().chunks_exact_mut(page);
    let mut filled = 0;
    if let Some(workload) = tree.filter(|tree| tree.blocks * page >= plan.bytes) {
        let (wanted, runs) = (plan.bytes / page / RUN, workload.blocks / RUN);
        for nth in 0..wanted {
            let first = nth * runs / wanted * RUN;
            for (block, to) in (first..first + RUN).zip(&mut to) {
                workload.page(Change { block, len: page }, to)?;
                filled += page;
            }
        }
        report.note("store, load, threads: pages of the tree, in runs of 64 spread over it.");
    } else {
        let dir;
        (filled, dir) = corpus::fill(bytes.bytes(), page);
        report.note(&format!("store, load, threads: pages of files below {dir}."));
    }
    bytes.truncate((filled / BLOCK).max(1) * BLOCK);
    Ok(bytes)
}
