//! [`run`]: the benchmark `volatile`: mark and unmark beside giving memory back, single pages
//! beside the bare calls, and, in a memory cgroup, what the kernel purges, whether a working set is
//! kept, a cache of tiles, and the stress.
//!
//! Where no memory cgroup can be made the checks that need one are not made and say so. A ratio
//! without an engine's name is that of the worse engine. A run that purged nothing, or kept
//! nothing, has shown nothing: that is a check of its own.

use std::path::PathBuf;
use std::time::Duration;

use glebe::sys::page_size;
use glebe::units::Bytes;

use super::purge::{self, Taken};
use super::{cycle, job, refill, stress, Error, Job, Which};
use crate::interrupt;
use crate::pressure::{self, Group};
use crate::report::Report;

mod cache;
mod working_set;

/// The name on the command line and in the JSON.
pub const NAME: &str = "volatile";

/// No job here takes as long on a machine that does anything else at all.
const PATIENCE: Duration = Duration::from_secs(300);

const NOTHING_PURGED: &str = "nothing_purged";
const NOTHING_KEPT: &str = "nothing_kept";
/// What every report has, and what of it needs a group.
const CASES: [&str; 3] = ["one_page", "sigbus_refill", "shared_pin"];
const CASES_OF_GROUPS: [&str; 5] = [
    "over_purge_percent",
    "working_set_refaults",
    "working_set_refaults_even",
    "tile",
    "stress_purged",
];
const RATIOS: [&str; 3] =
    ["cycle_vs_dontneed_4k", "cycle_vs_dontneed_2m", "one_page_vs_bare_calls"];
const RATIOS_OF_GROUPS: [&str; 6] = [
    "working_set_kept",
    "working_set_kept_capped",
    "working_set_kept_even",
    "working_set_kept_even_capped",
    "cache_vs_fixed",
    "cache_vs_whole_objects",
];
const CHECKS: [&str; 1] = ["wrong_refills"];
const CHECKS_OF_GROUPS: [&str; 9] = [
    "lost_writes",
    "stale_reads",
    "false_intact",
    "false_purged",
    "oom_kills",
    "failures",
    "wrong_tiles",
    NOTHING_PURGED,
    NOTHING_KEPT,
];

/// What to do.
#[derive(Clone, Debug, Default)]
pub struct Options {
    /// Few samples.
    pub quick: bool,
    /// Where the files lie that are read to make memory short; the temporary directory without.
    pub dir: Option<PathBuf>,
    /// The command line, for the report.
    pub command: String,
}

/// A run under way.
struct Benchmark<'a> {
    options: &'a Options,
    report: Report,
    /// Why there is no such engine here.
    refused: Vec<(Which, String)>,
}

/// Runs the benchmark.
///
/// # Errors
/// If a region cannot be used or a child fails, or the report has not all that it must; a machine
/// without memory cgroups has rows and checks that say so.
pub fn run(options: &Options) -> Result<Report, Error> {
    let mut report = Report::new(NAME, &options.command, options.quick);
    cycle::measure(options.quick, &mut report)?;
    cycle::one_page(options.quick, &mut report)?;
    refill::measure(options.quick, &mut report)?;
    let later = "private memory only: shared volatile memory is not there yet";
    report.absent("shared_pin", "glebe", "us", later);
    let refused = Which::ALL.into_iter().filter_map(|which| Some((which, which.refused()?)));
    let mut bench = Benchmark { options, report, refused: refused.collect() };
    match Group::of(Bytes::mib(1)) {
        Ok(group) => {
            drop(group);
            bench.under_pressure()?;
        }
        Err(why @ pressure::Error::NoGroup(_)) => {
            without_groups(&mut bench.report, &why.to_string())
        }
        Err(error) => return Err(error.into()),
    }
    let report = bench.report;
    let missing = missing(&report);
    if missing.is_empty() {
        return Ok(report);
    }
    Err(Error::Incomplete(missing.join(", ")))
}

/// Names what needs a group, without a figure.
fn without_groups(report: &mut Report, why: &str) {
    CASES_OF_GROUPS.iter().for_each(|case| report.absent(case, "glebe", "", why));
    for ratio in RATIOS_OF_GROUPS {
        report.ratio(ratio, f64::NAN);
    }
    CHECKS_OF_GROUPS.iter().for_each(|check| report.unmeasured(check, why));
}

/// What the report should have and has not.
fn missing(report: &Report) -> Vec<&'static str> {
    let mut missing = report.missing(&CASES, &RATIOS, &CHECKS);
    missing.extend(report.missing(&CASES_OF_GROUPS, &RATIOS_OF_GROUPS, &CHECKS_OF_GROUPS));
    missing
}

impl Benchmark<'_> {
    /// Why there is no such engine here, if there is none.
    fn refused(&self, which: Which) -> Option<String> {
        self.refused.iter().find(|(of, _)| *of == which).map(|(_, why)| why.clone())
    }

    fn dir(&self) -> PathBuf {
        self.options.dir.clone().unwrap_or_else(std::env::temp_dir)
    }

    /// Does a job in a group of its own; a kill is counted, and gives no answer.
    fn ask<T: serde::de::DeserializeOwned>(
        &mut self,
        limit: Bytes,
        job: impl FnOnce(&Group) -> Job,
    ) -> Result<Option<T>, Error> {
        let group = Group::of(limit)?;
        let job = job(&group);
        let (answer, counters) = job::ask(&group, &job, PATIENCE, |_| interrupt::check())?;
        self.report.check("oom_kills", counters.oom_kills);
        Ok(answer)
    }

    /// The ratio of each engine, and without a name that of the worse; none if there is no figure
    /// of an engine that is here.
    fn worse(&mut self, name: &str, ratio: impl Fn(Which) -> f64) {
        let mut own = Vec::new();
        for which in Which::ALL {
            let ratio = ratio(which);
            self.report.ratio(&format!("{name}_{}", which.name()), ratio);
            if self.refused(which).is_none() {
                own.push(ratio);
            }
        }
        self.report.ratio(name, worst(&own));
    }

    fn under_pressure(&mut self) -> Result<(), Error> {
        self.purge()?;
        working_set::measure(self)?;
        cache::measure(self)?;
        self.stress()
    }

    /// How much more than needed is purged, and of what.
    fn purge(&mut self) -> Result<(), Error> {
        const CASE: &str = "over_purge_percent";
        let rounds = if self.options.quick { 2 } else { 15 };
        for which in Which::ALL {
            let who = format!("glebe {}", which.name());
            if let Some(why) = self.refused(which) {
                self.report.absent(CASE, &who, "percent", &why);
                continue;
            }
            let taken = self.ask::<Vec<Taken>>(purge::LIMIT, |group| {
                Job::Purge(purge::Plan { which, rounds, usage: group.usage_file() })
            })?;
            let Some(taken) = taken else {
                self.report.absent(CASE, &who, "percent", "killed for want of memory");
                continue;
            };
            for need in purge::NEEDS {
                let need = need.pages_down(page_size()).get();
                let of_need: Vec<_> = taken.iter().filter(|t| t.need_pages == need).collect();
                tell_purge(&mut self.report, &who, need, &of_need);
            }
        }
        Ok(())
    }

    /// The stress, for its checks.
    fn stress(&mut self) -> Result<(), Error> {
        const CASE: &str = "stress_purged";
        if self.refused.len() == Which::ALL.len() {
            for (which, why) in self.refused.clone() {
                self.report.absent(CASE, &format!("glebe {}", which.name()), "pages", &why);
                CHECKS_OF_GROUPS.iter().for_each(|check| self.report.unmeasured(check, &why));
            }
            return Ok(());
        }
        let engines = (Which::ALL.len() - self.refused.len()) as u64;
        let time = Duration::from_secs(engines * if self.options.quick { 5 } else { 60 });
        let dir = self.options.dir.clone();
        let outcome = stress::run(&stress::Options { time, engine: None, dir, signal_hz: None })?;
        for (which, why) in &outcome.refused {
            let who = format!("glebe {}", which.name());
            self.report.absent(CASE, &who, "pages", why);
        }
        for part in &outcome.parts {
            self.report.check("oom_kills", part.group.oom_kills);
            let who = format!("glebe {}", part.which.name());
            let Some(found) = &part.found else {
                self.report.absent(CASE, &who, "pages", "killed for want of memory");
                continue;
            };
            for (ground, counts) in found.grounds() {
                for (name, count) in counts.checks() {
                    self.report.check(name, count);
                }
                self.report.check("failures", counts.errors.len() as u64);
                self.report.check(NOTHING_PURGED, u64::from(counts.purged_pages == 0));
                self.report.check(NOTHING_KEPT, u64::from(counts.intact_pages == 0));
                let who = format!("{who}, {}", ground.name());
                self.report.row(CASE, &who, "pages", &[counts.purged_pages as f64]);
                self.report.remark(&format!("{} told as intact", counts.intact_pages));
            }
        }
        Ok(())
    }
}

/// The least; none where there is none, or one that is no number: `min` passes over these.
pub(super) fn worst(ratios: &[f64]) -> f64 {
    let none = ratios.is_empty() || ratios.iter().any(|ratio| ratio.is_nan());
    if none {
        f64::NAN
    } else {
        ratios.iter().copied().fold(f64::INFINITY, f64::min)
    }
}

fn tell_purge(report: &mut Report, who: &str, need: u64, taken: &[&Taken]) {
    let lost = |taken: &&Taken| taken.lost_pages.iter().sum::<u64>();
    let percent = |taken| (lost(taken) as f64 - need as f64) / need as f64 * 100.0;
    let percent: Vec<f64> = taken.iter().map(percent).collect();
    report.row("over_purge_percent", who, "percent", &percent);
    let shares: Vec<String> = (0..purge::ORDER.len())
        .map(|nth| {
            let lost: u64 = taken.iter().map(|taken| taken.lost_pages[nth]).sum();
            (lost / taken.len().max(1) as u64).to_string()
        })
        .collect();
    let (least, most) = (taken.iter().map(lost).min(), taken.iter().map(lost).max());
    let nothing = if least == Some(0) { "; a round purged nothing" } else { "" };
    report.remark(&format!(
        "{need} pages needed; lost of the quarters in the order of marking: {}{nothing}",
        shares.join(", ")
    ));
    report.check(NOTHING_PURGED, u64::from(least == Some(0)));
    let all = purge::REGION.pages_down(page_size()).get();
    report.check(NOTHING_KEPT, u64::from(most == Some(all)));
}

#[cfg(test)]
mod tests;
