//! How fast compaction frees pages: of a pool with the kernel's classes that was not compacted, at
//! the end of the directories and after random deletion. Pages per second of CPU time.

use glebe::sys::page_size;
use glebe::zpool::{Budget, Compaction, ObjectPool, Rules, TableChoice};

use super::store::{replay, Pooled};
use super::workload::Workload;
use crate::clock::timed;
use crate::report::Report;
use crate::turns::{rounds, NO_END};
use crate::Outcome;

const CASE: &str = "compaction_pages_per_s";
const UNIT: &str = "pages/CPU-s";

/// Rows of both states of the trace.
pub(super) fn measure(workload: &Workload, count: u64, report: &mut Report) -> Outcome {
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
