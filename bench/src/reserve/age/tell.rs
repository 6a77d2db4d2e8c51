//! The outcomes as rows and checks of a report.

use super::hours::{Look, Outcome, Times};
use super::Runs;
use crate::report::Report;
use crate::summary::Summary;

fn percent(part: u64, whole: u64) -> f64 {
    part as f64 * 100.0 / whole.max(1) as f64
}

fn summary(run: &Outcome, pages: fn(&Look) -> u64) -> Option<Summary> {
    Summary::of(&run.looks.iter().map(|look| pages(look) as f64).collect::<Vec<_>>())
}

fn largest(run: &Outcome) -> Option<Summary> {
    summary(run, |look| look.largest)
}

/// A figure of a run: what the row is called after its load, and the unit.
type Figure = (&'static str, &'static str, fn(&(Outcome, Times)) -> f64);

const FIGURES: [Figure; 10] = [
    ("largest_run", "pages", |(run, _)| largest(run).map_or(f64::NAN, |s| s.median)),
    ("largest_run_min", "pages", |(run, _)| largest(run).map_or(f64::NAN, |s| s.min)),
    ("frag_looks", "%", |(run, _)| percent(run.looks_fragmented, run.looks.len() as u64)),
    ("frag_failures", "requests", |(run, _)| run.failures_fragmented as f64),
    ("full_failures", "requests", |(run, _)| run.failures_full as f64),
    ("held", "pages", |(run, _)| summary(run, |look| look.held).map_or(f64::NAN, |s| s.mean)),
    ("recalled", "% of pages", |(run, _)| percent(run.recalled_pages, run.allocated_pages)),
    ("cache_hits", "%", |(run, _)| percent(run.hits, run.gets)),
    ("alloc_mean", "us", |(_, times)| times.mean_us()),
    ("alloc_large_mean", "us", |(_, times)| times.large_mean_us()),
];

/// Adds a row for each load, figure and contestant, and the checks.
pub(super) fn tell(report: &mut Report, all: &[Runs]) {
    let mut loads: Vec<u64> = all.iter().map(|one| one.percent).collect();
    loads.dedup();
    for load in loads {
        for (name, unit, figure) in FIGURES {
            for one in all.iter().filter(|one| one.percent == load) {
                let samples: Vec<f64> = one.runs.iter().map(figure).collect();
                report.row(&format!("age_{load}_{name}"), one.contestant.name, unit, &samples);
            }
        }
    }
    for check in ["overlaps", "unexplained_failures", "wrong_pages", "wrong_stats"] {
        report.check(check, 0);
    }
    for (run, _) in all.iter().flat_map(|one| &one.runs) {
        report.check("overlaps", run.faults.overlaps);
        report.check("unexplained_failures", run.faults.unexplained);
        report.check("wrong_pages", run.faults.wrong_pages);
        report.check("wrong_stats", run.faults.wrong_stats);
    }
}
