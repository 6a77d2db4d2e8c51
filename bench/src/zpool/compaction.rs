//! How fast compaction frees pages, and how long one step with a budget takes.
//!
//! Of a pool with the kernel's classes that was not compacted: at the end of the directories, and
//! after random deletion. Wall time and the thread's CPU time, which no neighbour lengthens.

use std::time::{Duration, Instant};

use glebe::zpool::{Budget, Handle};

use super::store::{Classes, Store};
use super::trace::{Change, Trace};
use super::workload::{Step, Workload};
use super::Error;
use crate::clock::Stopwatch;
use crate::progress::Progress;
use crate::report::Report;

const STEP: Duration = Duration::from_micros(100);
/// Twice the budget: no step may take longer.
const STEP_MOST_US: f64 = 200.0;

/// Rows of both states.
pub(super) fn measure(
    trace: &Trace,
    nth: usize,
    rounds: usize,
    report: &mut Report,
) -> Result<(), Error> {
    let workload = Workload::of_trace(trace, nth);
    for (who, steps) in [
        ("glebe, directories removed", &workload.directories),
        ("glebe, random deletion", &workload.halves),
    ] {
        let (mut whole, mut stepped) = (Vec::new(), Vec::new());
        let (mut cpu_us, mut wall_us) = (Vec::new(), Vec::new());
        let mut freeable = 0;
        let mut progress = Progress::new("compaction", rounds as u64);
        for round in 0..rounds {
            progress.update(round as u64);
            let (store, _) = fragmented(&workload, steps)?;
            freeable = store.pool().freeable().get();
            let watch = Stopwatch::start();
            let done = store.pool().compact(Budget::All)?;
            whole.push(done.freed.get() as f64 / watch.elapsed().cpu_us * 1e6);

            let (store, _) = fragmented(&workload, steps)?;
            let (mut freed, mut cpu) = (0, 0.0);
            loop {
                let watch = Stopwatch::start();
                let done = store.pool().compact(Budget::Time(STEP))?;
                let took = watch.elapsed();
                if done.moved == 0 && done.freed.get() == 0 {
                    break;
                }
                freed += done.freed.get();
                cpu += took.cpu_us;
                cpu_us.push(took.cpu_us);
                wall_us.push(took.wall_us);
            }
            stepped.push(freed as f64 / cpu * 1e6);
        }
        progress.clear();
        let nothing: Vec<f64> = cpu_us.iter().map(|_| looked_at_the_clock()).collect();
        report.row("compaction_pages_per_s", who, "pages/CPU-s", &whole);
        report.remark(&format!("{freeable} pages at once"));
        report.row("compaction_pages_per_s_in_steps", who, "pages/CPU-s", &stepped);
        for (who, samples) in [(who, &cpu_us), ("a loop without work", &nothing)] {
            report.row("compaction_step_100us", who, "us CPU", samples);
            let long = samples.iter().filter(|us| **us > STEP_MOST_US).count();
            report.remark(&format!("{long} above {STEP_MOST_US}"));
        }
        report.row("compaction_step_100us", who, "us", &wall_us);
    }
    report.note(
        "compaction: a pool with the kernel's classes (chain 8, merged) that is not compacted by \
         itself, from the trace. Wall time of a step has in it whatever else ran meanwhile, CPU \
         time what the machine below a virtual one took away: as many times a loop that looks at \
         the clock alone until its 100 us are over shows how much that is.",
    );
    Ok(())
}

/// The CPU time of a step that does nothing but ask whether its time is over.
fn looked_at_the_clock() -> f64 {
    let watch = Stopwatch::start();
    let until = Instant::now() + STEP;
    while Instant::now() < until {}
    watch.elapsed().cpu_us
}

/// A pool after `steps`, and what is in it.
fn fragmented(workload: &Workload, steps: &[Step]) -> Result<(Store, Vec<Option<Handle>>), Error> {
    let store = Store::new(Classes::Rules(8, true), false)?;
    let mut handles = vec![None; workload.blocks];
    for change in steps.iter().flat_map(|step| &step.changes) {
        let (block, new) = match *change {
            Change::Drop { block } => (block, None),
            Change::Store { block, len } => {
                (block, Some(store.insert(workload.object(block, len, &mut [])?)?))
            }
        };
        if let Some(old) = std::mem::replace(&mut handles[block], new) {
            store.remove(old)?;
        }
    }
    Ok((store, handles))
}
