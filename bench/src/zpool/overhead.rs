//! Measures the memory that the pool, zram and allocators hold beyond the stored bytes, in percent
//! of the stored bytes, after each step; and the speed of compaction.

use glebe::page_size;
use glebe::zpool::{Budget, Compaction, ObjectPool, Rules, TableChoice};

use super::malloc::{ask, Allocator, Deletions};
use super::store::{replay, HeldBytes, Pooled};
use super::workload::{Step, Workload};
use super::zram::Zram;
use crate::clock::timed;
use crate::report::{Report, GLEBE};
use crate::turns::{rounds, NO_END};
use crate::Outcome;

const FINAL: &str = "overhead_final_percent";
const RANDOM: &str = "overhead_random_delete_percent";
const PERCENT: &str = "percent";
const COMPACTED: &str = "zram, compacted";

/// Replays `traced` (each `nth` run of the trace's blocks) and `tree` (a kernel source tree, if
/// found). Allocators replay only the trace.
pub(super) fn measure(
    nth: usize,
    traced: &Workload,
    tree: Option<&Workload>,
    report: &mut Report,
) -> Outcome {
    let mut worst = f64::NAN;
    for (workload, suffix) in [(Some(traced), ""), (tree, "_tree")] {
        let Some(workload) = workload else { continue };
        for (case, steps) in [(FINAL, &workload.directories), (RANDOM, &workload.halves)] {
            let mut tell = |who: &str, answer: Outcome<(Vec<HeldBytes>, u64)>| {
                tell(&format!("{case}{suffix}"), who, steps, answer, report)
            };
            let mut pooled = Pooled::new(workload.is_tree(), workload.blocks)?;
            let ours = tell(GLEBE, Ok(replay(&mut pooled, workload, steps, false)?));
            drop(pooled);
            for (who, is_compacted) in [(COMPACTED, true), ("zram", false)] {
                let zram = Zram::new(workload.blocks, is_compacted);
                let answer = zram.and_then(|mut zram| replay(&mut zram, workload, steps, true));
                let theirs = tell(who, answer);
                if is_compacted && case == FINAL {
                    let ratios = ours.iter().zip(theirs).map(|(ours, theirs)| theirs / ours);
                    worst = ratios.fold(worst, f64::min);
                }
            }
            for &(allocator, who) in Allocator::ALL.iter().filter(|_| !workload.is_tree()) {
                let job = Deletions { allocator, nth, halves: case == RANDOM };
                tell(who, Ok(ask(job)?));
            }
        }
    }
    report.ratio("overhead_worst_vs_zram_compacted", worst);
    report.note(
        "overhead: the pages held beyond the bytes stored, and all else that the pool holds. Of \
         zram that is what it does not count itself: the kernel's slabs of handles and zspages, or \
         where these cannot be read 8 bytes an object and 56 a zspage, of which it has one for \
         3.06 pages in the mean; pages that are one word over and over take it no more than that. \
         The ratio is that of the worst step of the directories.",
    );
    report.note(
        "allocators: objects of the trace's lengths; what a process apart has in memory that is of \
         no file, beyond what it had before the first, after malloc_trim, a purge of all arenas, \
         mi_collect. They move no object and need no handle.",
    );
    Ok(())
}

/// Adds a row for the last step and a remark with every step. Returns all percentages.
fn tell(
    case: &str,
    who: &str,
    steps: &[Step],
    answer: Outcome<(Vec<HeldBytes>, u64)>,
    report: &mut Report,
) -> Vec<f64> {
    let answer = answer.inspect_err(|why| report.remark(case, who, PERCENT, &why.to_string()));
    let Ok((held, wrong)) = answer else { return Vec::new() };
    report.check("wrong_bytes", wrong);
    let percent: Vec<f64> = held.iter().map(HeldBytes::percent).collect();
    report.add(case, who, PERCENT, percent[percent.len() - 1]);
    let each = steps.iter().zip(&percent).map(|(step, of)| format!("{} {of:.2}", step.name));
    report.remark(case, who, PERCENT, &each.collect::<Vec<_>>().join(", "));
    percent
}

/// Compacts a pool with zsmalloc's size classes after deletions: the trace's directories, or random
/// halves of its files.
pub(super) fn compaction(workload: &Workload, count: u64, report: &mut Report) -> Outcome {
    const CASE: &str = "compaction_pages_per_s";
    const UNIT: &str = "pages/CPU-s";
    for _ in rounds("compaction", count, NO_END) {
        for (who, steps) in [
            ("glebe, directories removed", &workload.directories),
            ("glebe, random deletion", &workload.halves),
        ] {
            let rules = TableChoice::Rules(Rules::of_page(page_size()));
            let pool = ObjectPool::options().table(rules).compaction(Compaction::Manual).build()?;
            let mut pooled = Pooled::of(pool, workload.blocks);
            replay(&mut pooled, workload, steps, false)?;
            let (done, took) = timed(|| pooled.pool.compact(Budget::All));
            let freed = done?.freed.get();
            report.add(CASE, who, UNIT, freed as f64 / took.cpu_us * 1e6);
            report.remark(CASE, who, UNIT, &format!("{freed} pages at once"));
        }
    }
    Ok(())
}
