//! How fast compaction frees pages: of a pool with the kernel's classes that was not compacted, at
//! the end of the directories and after random deletion. Pages per second of CPU time.

use glebe::sys::page_size;
use glebe::zpool::{Budget, Compaction, ObjectPool, Rules, TableChoice};

use super::workload::{Step, Workload};
use super::Error;
use crate::clock::Stopwatch;
use crate::report::Report;
use crate::samples::{rounds, Samples, NO_END};

const CASE: &str = "compaction_pages_per_s";
const UNIT: &str = "pages/CPU-s";

/// Rows of both states of the trace.
pub(super) fn measure(workload: &Workload, count: u64, report: &mut Report) -> Result<(), Error> {
    let mut table = Samples::default();
    rounds("compaction", (count, NO_END), |_| {
        for (who, steps) in [
            ("glebe, directories removed", &workload.directories),
            ("glebe, random deletion", &workload.halves),
        ] {
            let pool = fragmented(workload, steps)?;
            let watch = Stopwatch::start();
            let freed = pool.compact(Budget::All)?.freed.get();
            table.add(CASE, who, UNIT, freed as f64 / watch.elapsed().cpu_us * 1e6);
            table.remark(CASE, who, UNIT, &format!("{freed} pages at once"));
        }
        Ok::<_, Error>(())
    })?;
    table.report(report);
    Ok(())
}

/// A pool after `steps`.
fn fragmented(workload: &Workload, steps: &[Step]) -> Result<ObjectPool, Error> {
    let rules = TableChoice::Rules(Rules::of_page(page_size()));
    let pool = ObjectPool::options().table(rules).compaction(Compaction::Manual).build()?;
    let mut handles = vec![None; workload.blocks];
    for &change in steps.iter().flat_map(|step| &step.changes) {
        let new = match change.len {
            0 => None,
            _ => Some(pool.insert(workload.object(change, &mut [])?)?),
        };
        if let Some(old) = std::mem::replace(&mut handles[change.block], new) {
            pool.remove(old)?;
        }
    }
    Ok(pool)
}
