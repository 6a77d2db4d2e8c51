//! What each holds beyond what is stored, step by step: the patch's own table for each set of size
//! classes, the pool as it is by default beside the kernel's, and allocators of programs.
//!
//! Percent of the bytes stored. Nothing here is timed.

use std::fmt::Write as _;

use glebe::units::{Bytes, PageSize};
use glebe::zpool::{Metadata, Table};

use super::apart::{self, Job};
use super::made::PAGE;
use super::malloc::Allocator;
use super::replay::{in_pool, in_zram, Figures, Outcome};
use super::reported::HEADER;
use super::store::{rules, Classes};
use super::tables;
use super::trace::{Trace, STEPS};
use super::workload::{Step, Workload};
use super::{reported, zram, Error};
use crate::report::Report;

const FINAL: &str = "overhead_final_percent";
const RANDOM: &str = "overhead_random_delete_percent";
const WORST: &str = "overhead_worst_vs_zram_compacted";
pub(super) const PERCENT: &str = "percent";
const ZRAM: &str = "zram";
const ZRAM_COMPACTED: &str = "zram, compacted";

/// The pool as it compacts by itself.
const OURS: [Classes; 1] = [Classes::Default];

/// The five columns of the patch.
pub(super) fn patch_table(who: &str, steps: &[Step], outcome: &Outcome, report: &mut Report) {
    const MIB: f64 = (1 << 20) as f64;
    let mut table = format!(
        "{:<15} {:>9} {:>9} {:>9} {:>9} {:>8} {:>15}\n",
        "", "orig MiB", "compr", "used", "overhead", "ratio %", "with all else %"
    );
    for (step, of) in steps.iter().zip(&outcome.figures) {
        let Figures { original, stored, used, .. } = *of;
        let _ = writeln!(
            table,
            "{:<15} {:>9.2} {:>9.2} {:>9.2} {:>9.2} {:>8.2} {:>15.2}",
            step.name,
            original / MIB,
            stored / MIB,
            used / MIB,
            (used - stored) / MIB,
            of.percent_used(),
            of.percent(),
        );
    }
    report.section(who, &table);
}

/// Whose figures, with all else, after each step of the directories and of the halves.
pub(super) type Column = (String, Vec<f64>);

/// The steps of the trace, and of the tree where there is one, in the pool and in zram; the
/// columns of the trace.
pub(super) fn beside_zram(
    trace: &Trace,
    traced: &Workload,
    tree: Option<&Workload>,
    report: &mut Report,
) -> Result<Vec<Column>, Error> {
    let zspage_pages = zspage_pages(trace);
    let mut worst = [[f64::NAN; 2]; OURS.len()];
    let (columns, _) = steps_of(traced, "", zspage_pages, &mut worst, report)?;
    if let Some(tree) = tree {
        let of_kernel = reported::on_tree(tree, report)?;
        let (_, zram) = steps_of(tree, "_tree", zspage_pages, &mut worst, report)?;
        reported::beside_zram(&of_kernel, &zram, report);
    }
    for [all, plain] in worst {
        report.ratio(WORST, all);
        report.ratio(&format!("{WORST}_plain"), plain);
    }
    let last = columns.first().and_then(|(_, column)| column.get(traced.directories.len() - 1));
    floor(trace, last.copied().unwrap_or(f64::NAN), report);
    report.note(
        "overhead: the pages held beyond the bytes stored, and all else that the pool holds. Of \
         zram that is what it does not count itself, 8 bytes an object and 56 a zspage, of which \
         there are as many as its size classes (of up to 8 pages) give for the trace. _plain: \
         without metadata on both sides. The worst step of the directories counts, of either \
         workload. Both are looked at after the same changes; the pool compacts by itself only.",
    );
    Ok(columns)
}

/// One workload in the pool and in zram; keeps the least of zram's overhead over the pool's. The
/// pool's columns, and of the directories zram's, not compacted and without metadata.
fn steps_of(
    workload: &Workload,
    suffix: &str,
    zspage_pages: f64,
    worst: &mut [[f64; 2]; OURS.len()],
    report: &mut Report,
) -> Result<(Vec<Column>, Vec<f64>), Error> {
    let mut columns: Vec<Column> =
        OURS.iter().map(|classes| (classes.name(), Vec::new())).collect();
    let mut of_zram = Vec::new();
    for (steps, case) in [(&workload.directories, FINAL), (&workload.halves, RANDOM)] {
        let mut ours = Vec::new();
        for (classes, (_, column)) in OURS.into_iter().zip(&mut columns) {
            let outcome = in_pool(workload, steps, classes, 0)?;
            report.check("wrong_bytes", outcome.wrong);
            tell(case, suffix, &classes.name(), steps, &outcome, report);
            column.extend(outcome.figures.iter().map(Figures::percent));
            ours.push(outcome);
        }
        for (who, compact) in [(ZRAM_COMPACTED, true), (ZRAM, false)] {
            let theirs = match in_zram(workload, steps, compact, zspage_pages) {
                Ok(theirs) => theirs,
                Err(zram::Absent::Not(why)) => {
                    report.absent(&format!("{case}{suffix}"), who, PERCENT, &why);
                    continue;
                }
                Err(zram::Absent::Os(error)) => return Err(error.into()),
            };
            tell(case, suffix, who, steps, &theirs, report);
            if !compact && case == FINAL {
                of_zram = theirs.figures.iter().map(Figures::percent_used).collect();
            }
            if compact && case == FINAL {
                for (ours, [all, plain]) in ours.iter().zip(&mut *worst) {
                    *all = all.min(least(ours, &theirs, Figures::percent));
                    *plain = plain.min(least(ours, &theirs, Figures::percent_plain));
                }
            }
        }
    }
    Ok((columns, of_zram))
}

/// zram's overhead over the pool's, of the step where that is least.
fn least(ours: &Outcome, theirs: &Outcome, percent: impl Fn(&Figures) -> f64) -> f64 {
    let both = ours.figures.iter().zip(&theirs.figures);
    both.map(|(ours, theirs)| percent(theirs) / percent(ours)).fold(f64::INFINITY, f64::min)
}

/// A row a step, one for the last, and the table for people.
fn tell(
    case: &str,
    suffix: &str,
    who: &str,
    steps: &[Step],
    outcome: &Outcome,
    report: &mut Report,
) {
    let (prefix, how) = match case {
        FINAL => ("overhead", "directories removed"),
        _ => ("random_delete", "random deletion"),
    };
    for (step, of) in steps.iter().zip(&outcome.figures) {
        let name: String = step.name.chars().filter(char::is_ascii_alphanumeric).collect();
        let case = format!("{prefix}_{name}_percent{suffix}");
        report.row(&case, who, PERCENT, &[of.percent()]);
        report.remark(&format!("{:.2} without metadata", of.percent_plain()));
    }
    if let Some(last) = outcome.figures.last() {
        report.row(&format!("{case}{suffix}"), who, PERCENT, &[last.percent()]);
        report.remark(&format!("{:.2} without metadata", last.percent_plain()));
    }
    let of = if suffix.is_empty() { "trace" } else { "tree" };
    patch_table(&format!("{who}: {of}, {how}"), steps, outcome, report);
}

/// The kernel's classes, as it has them if nobody chose otherwise.
fn kernel_table() -> Table {
    let page = PageSize::new(4 << 10).expect("a power of two");
    Table::by_rules(&rules(page, 8, true)).expect("the kernel's rules")
}

/// Pages of a zspage of the kernel's in the mean, when the trace is all there.
fn zspage_pages(trace: &Trace) -> f64 {
    let none = Bytes::ZERO;
    let count = Metadata {
        object: none,
        slot: none,
        zspage: Bytes::new(1),
        class: none,
        left_percent: 100,
    };
    let (held, zspages) = tables::compacted(trace, 1, &kernel_table(), HEADER, &count);
    held.get() as f64 / PAGE as f64 / zspages.get() as f64
}

/// What a pool would hold of the trace's last step by arithmetic, if it were compacted at every
/// moment; and how far `glebe` is from the least of it.
fn floor(trace: &Trace, glebe: f64, report: &mut Report) {
    let metadata = Metadata {
        object: Bytes::new(8),
        slot: Bytes::new(4),
        zspage: Bytes::new(56),
        class: Bytes::ZERO,
        left_percent: 100,
    };
    let last = STEPS.len() - 1;
    let stored = tables::stored(trace, last);
    let rules = *kernel_table().rules();
    let fitted = Table::fitted(&tables::histogram(trace, last, &rules), &metadata);
    for (who, table) in
        [("floor: the kernel's classes", kernel_table()), ("floor: fitted classes", fitted)]
    {
        let (held, beside) = tables::compacted(trace, last, &table, 0, &metadata);
        let percent = tables::percent(held + beside, stored);
        report.row(FINAL, who, PERCENT, &[percent]);
        let plain = tables::percent(held, stored);
        report.remark(&format!("{plain:.2} without metadata; by arithmetic, of all of the trace"));
    }
    // As many classes as save anything, if each ends with a full zspage.
    let metadata = Metadata { left_percent: 0, ..metadata };
    let histogram = tables::histogram(trace, last, &rules);
    let least = Table::fitted(&histogram, &metadata).expected(&histogram, &metadata);
    let percent = least.overhead() * 100.0;
    report.row(FINAL, "floor: nothing left over", PERCENT, &[percent]);
    report.remark("fitted classes of full zspages; by arithmetic, of all of the trace");
    report.row("overhead_final_above_floor", "glebe", "points", &[glebe - percent]);
}

/// Allocators of programs hold the trace, each in a process of its own; a table of them after the
/// pool's `columns`.
pub(super) fn allocators(
    nth: usize,
    workload: &Workload,
    mut columns: Vec<Column>,
    report: &mut Report,
) -> Result<(), Error> {
    for allocator in Allocator::ALL {
        let mut column = Vec::new();
        for (halves, steps, case) in
            [(false, &workload.directories, FINAL), (true, &workload.halves, RANDOM)]
        {
            let resident = apart::ask(Job { allocator, nth, halves })?;
            report.check("wrong_bytes", resident.wrong);
            let stored = stored(steps, workload.blocks);
            let beyond = |(held, stored): (u64, u64)| (held as f64 / stored as f64 - 1.0) * 100.0;
            let percent: Vec<f64> = resident.bytes.into_iter().zip(stored).map(beyond).collect();
            if !halves {
                report.row("overhead_untar_percent", allocator.name(), PERCENT, &percent[..1]);
            }
            report.row(case, allocator.name(), PERCENT, &percent[percent.len() - 1..]);
            column.extend(percent);
        }
        columns.push((allocator.name().into(), column));
    }
    let mut table = format!("{:<15}", "");
    for (who, _) in &columns {
        let _ = write!(table, " {who:>13}");
    }
    table.push('\n');
    let steps = workload.directories.iter().chain(&workload.halves);
    for (row, step) in steps.enumerate() {
        let _ = write!(table, "{:<15}", step.name);
        for (_, column) in &columns {
            let _ = write!(table, " {:>13.2}", column[row]);
        }
        table.push('\n');
    }
    report.section("the trace: all that is held beyond the bytes stored, percent", &table);
    report.note(
        "allocators: objects of the trace's lengths; resident memory of a process apart, after \
         malloc_trim, a purge of all arenas, mi_collect. They move no object and need no handle.",
    );
    Ok(())
}

/// The bytes stored after each step.
fn stored(steps: &[Step], blocks: usize) -> Vec<u64> {
    use super::trace::Change;
    let mut lengths = vec![0_u64; blocks];
    let mut sum = 0;
    let mut sums = Vec::new();
    for step in steps {
        for change in &step.changes {
            let (block, new) = match *change {
                Change::Store { block, len } => (block, len as u64),
                Change::Drop { block } => (block, 0),
            };
            sum = sum + new - std::mem::replace(&mut lengths[block], new);
        }
        sums.push(sum);
    }
    sums
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn zspages_of_the_kernel_have_some_pages() {
        let trace = Trace::load().unwrap();
        let pages = zspage_pages(&trace);
        assert!((2.0..8.0).contains(&pages), "{pages}");
        let workload = Workload::of_trace(&trace, 1);
        let sums = stored(&workload.directories, workload.blocks);
        for (step, sum) in sums.iter().enumerate() {
            assert_eq!(*sum, tables::stored(&trace, step + 1).get(), "{}", STEPS[step + 1]);
        }
    }
}
