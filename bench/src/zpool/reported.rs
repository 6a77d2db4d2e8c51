//! Whether the pool is the one that the patch and the kernel describe: with their size classes,
//! and not compacted, it holds what they do, step by step.
//!
//! On the trace the rows are those of the report of the pool's design. A tree's own rows come
//! from the [`Model`](super::model::Model) of the kernel's pool, which the trace vouches for, and
//! beside them stands what zram held in the same run. Percent of the bytes stored.

use glebe::sys::page_size;
use glebe::units::Bytes;
use glebe::zpool::Table;

use super::made::PAGE;
use super::overhead::{patch_table, PERCENT};
use super::replay::{in_pool, Figures};
use super::store::{rules, Classes};
use super::tables::replay_steps;
use super::trace::{Trace, STEPS};
use super::workload::{Step, Workload};
use super::Error;
use crate::report::Report;

/// In front of an object in the kernel.
pub(super) const HEADER: usize = 8;

/// What the report of the pool's design found of these classes on the trace; the patch had the
/// first two. By step, percent.
const REPORTED: [(Classes, [(usize, f64); 4]); 3] = [
    (Classes::Rules(4, false), [(1, 5.67), (3, 10.68), (7, 22.36), (10, 50.40)]),
    (Classes::Rules(4, true), [(1, 5.54), (3, 7.52), (7, 11.81), (10, 23.69)]),
    (KERNEL, [(1, 2.78), (3, 8.34), (7, 21.33), (10, 55.92)]),
];

/// As the kernel has them if nobody chose otherwise.
const KERNEL: Classes = Classes::Rules(8, true);

/// Points that a row may be off.
const TOLERANCE: f64 = 1.0;

/// The pool with the patch's and the kernel's classes on all of the trace.
pub(super) fn on_trace(trace: &Trace, report: &mut Report) -> Result<(), Error> {
    report.check("report_rows_off", 0);
    if page_size().bytes().as_usize() != PAGE {
        let why = "the trace is of pages of 4 KiB, and this machine has others";
        report.absent("reported_untar", "glebe", PERCENT, why);
        return Ok(());
    }
    let workload = Workload::of_trace(trace, 1);
    for (classes, rows) in REPORTED {
        let outcome = in_pool(&workload, &workload.directories, classes, HEADER)?;
        report.check("wrong_bytes", outcome.wrong);
        for (step, percent) in rows {
            // The first two of the trace are one here.
            let is = outcome.figures[step - 1].percent_used();
            let case = format!("reported_{}", STEPS[step].trim_start_matches('-'));
            report.row(&case, &classes.name(), PERCENT, &[is]);
            report.remark(&format!("{percent} reported"));
            report.check("report_rows_off", u64::from((is - percent).abs() > TOLERANCE));
        }
        patch_table(&classes.name(), &workload.directories, &outcome, report);
    }
    report.note(
        "reported: the whole trace, in a pool without codec that is not compacted and in which no \
         thread keeps slots for itself, with the kernel's 8 bytes in front of each object (made \
         part of the object, and counted as overhead); metadata not counted. A row more than 1 \
         point off is counted.",
    );
    Ok(())
}

/// The same on a tree, against the model; what the pool of the kernel's classes held beyond what
/// was stored after each step.
pub(super) fn on_tree(tree: &Workload, report: &mut Report) -> Result<Vec<f64>, Error> {
    report.check("tree_rows_off", 0);
    let mut of_kernel = Vec::new();
    if page_size().bytes().as_usize() != PAGE {
        return Ok(of_kernel);
    }
    let coded = tree.coded()?;
    let steps = || coded.directories.iter().map(|step| step.changes.iter().copied());
    for (classes, _) in REPORTED {
        let outcome = in_pool(&coded, &coded.directories, classes, HEADER)?;
        report.check("wrong_bytes", outcome.wrong);
        let (rows, _) = replay_steps(steps(), coded.blocks, &table(classes), header());
        for ((step, row), of) in coded.directories.iter().zip(&rows).zip(&outcome.figures) {
            let (is, modelled) = (of.percent_used(), row.percent());
            report.row(&case(step), &classes.name(), PERCENT, &[is]);
            report.remark(&format!("{modelled:.2} by the model"));
            report.check("tree_rows_off", u64::from((is - modelled).abs() > TOLERANCE));
        }
        patch_table(&format!("{}: tree", classes.name()), &coded.directories, &outcome, report);
        if classes == KERNEL {
            of_kernel = outcome.figures.iter().map(Figures::percent_used).collect();
        }
    }
    report.note(
        "reported, tree: the lengths that LZ4 makes of the tree's pages, as of the trace; pages \
         that one word fills, which no pool stores, left out. The model does what the kernel's \
         zsmalloc does. A row more than 1 point off it is counted.",
    );
    Ok(of_kernel)
}

/// How far from zram, which was not compacted either, `of_kernel` was at the worst step.
pub(super) fn beside_zram(of_kernel: &[f64], zram: &[f64], report: &mut Report) {
    let points = of_kernel.iter().zip(zram).map(|(ours, theirs)| (ours - theirs).abs());
    if let Some(worst) = points.reduce(f64::max) {
        report.row("reported_off_zram_tree", &KERNEL.name(), "points", &[worst]);
        report.remark("the worst step's overhead without metadata, beside zram's, not compacted");
    }
}

fn case(step: &Step) -> String {
    let name: String = step.name.chars().filter(char::is_ascii_alphanumeric).collect();
    format!("reported_{name}_tree")
}

fn table(classes: Classes) -> Table {
    let Classes::Rules(chain, merge) = classes else { unreachable!("those above have rules") };
    Table::by_rules(&rules(page_size(), chain, merge)).expect("the kernel's rules")
}

const fn header() -> Bytes {
    Bytes::new(HEADER as u64)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_pool_is_the_one_of_the_patch_and_of_the_kernel() {
        let mut report = Report::new("zpool", "", true);
        on_trace(&Trace::load().unwrap(), &mut report).unwrap();
        assert!(report.passed(), "{}", report.text());
    }
}
