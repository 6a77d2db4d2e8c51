//! What each holds beyond what is stored, step by step: the pool, zram, and allocators of
//! programs.
//!
//! Percent of the bytes stored. Nothing here is timed.

use super::apart::{self, Job};
use super::malloc::Allocator;
use super::replay::{in_pool, in_zram, Held};
use super::workload::{Step, Workload};
use super::zram::Absent;
use super::Error;
use crate::report::Report;

const FINAL: &str = "overhead_final_percent";
const RANDOM: &str = "overhead_random_delete_percent";
const WORST: &str = "overhead_worst_vs_zram_compacted";
const PERCENT: &str = "percent";

/// The steps of the trace, and of the tree where there is one, in the pool and in zram.
pub(super) fn beside_zram(
    traced: &Workload,
    tree: Option<&Workload>,
    report: &mut Report,
) -> Result<(), Error> {
    let mut worst = f64::NAN;
    for (workload, suffix) in [(Some(traced), ""), (tree, "_tree")] {
        let Some(workload) = workload else { continue };
        for (steps, case) in [(&workload.directories, FINAL), (&workload.halves, RANDOM)] {
            let (ours, wrong) = in_pool(workload, steps)?;
            report.check("wrong_bytes", wrong);
            tell((case, suffix), "glebe", steps, &ours, report);
            for (who, compact) in [("zram, compacted", true), ("zram", false)] {
                let theirs = match in_zram(workload, steps, compact) {
                    Ok(theirs) => theirs,
                    Err(Absent::Not(why)) => {
                        report.remark(&format!("{case}{suffix}"), who, PERCENT, &why);
                        continue;
                    }
                    Err(Absent::Os(error)) => return Err(error.into()),
                };
                tell((case, suffix), who, steps, &theirs, report);
                if compact && case == FINAL {
                    let steps = ours.iter().zip(&theirs);
                    let ratios = steps.map(|(ours, theirs)| theirs.percent() / ours.percent());
                    worst = ratios.fold(worst, f64::min);
                }
            }
        }
    }
    report.ratio(WORST, worst);
    report.note(
        "overhead: the pages held beyond the bytes stored, and all else that the pool holds. Of \
         zram that is what it does not count itself, 8 bytes an object and 56 a zspage, of which \
         it has one for 3.06 pages in the mean; pages that are one word over and over take it no \
         more than that. The ratio is that of the worst step of the directories.",
    );
    Ok(())
}

/// A row a step, and one for the last.
fn tell(
    (case, suffix): (&str, &str),
    who: &str,
    steps: &[Step],
    held: &[Held],
    report: &mut Report,
) {
    let prefix = if case == FINAL { "overhead" } else { "random_delete" };
    let mut row = |case: &str, of: &Held| {
        report.row(&format!("{case}{suffix}"), who, PERCENT, &[of.percent()]);
        let plain = format!("{:.2} without metadata", of.percent_plain());
        report.remark(&format!("{case}{suffix}"), who, PERCENT, &plain);
    };
    for (step, of) in steps.iter().zip(held) {
        let name: String = step.name.chars().filter(char::is_ascii_alphanumeric).collect();
        row(&format!("{prefix}_{name}_percent"), of);
    }
    held.last().into_iter().for_each(|of| row(case, of));
}

/// Allocators of programs hold the trace, each in a process of its own.
pub(super) fn allocators(
    nth: usize,
    workload: &Workload,
    report: &mut Report,
) -> Result<(), Error> {
    for allocator in Allocator::ALL {
        for (halves, steps, case) in
            [(false, &workload.directories, FINAL), (true, &workload.halves, RANDOM)]
        {
            let resident = apart::ask(Job { allocator, nth, halves })?;
            report.check("wrong_bytes", resident.wrong);
            let beyond = resident.bytes as f64 / stored(steps, workload.blocks) as f64 - 1.0;
            report.row(case, allocator.name(), PERCENT, &[beyond * 100.0]);
        }
    }
    report.note(
        "allocators: objects of the trace's lengths; resident memory of a process apart, after \
         malloc_trim, a purge of all arenas, mi_collect. They move no object and need no handle.",
    );
    Ok(())
}

/// The bytes stored after all steps.
fn stored(steps: &[Step], blocks: usize) -> usize {
    let mut lengths = vec![0; blocks];
    let changes = steps.iter().flat_map(|step| &step.changes);
    changes.for_each(|change| lengths[change.block] = change.len);
    lengths.into_iter().sum()
}
