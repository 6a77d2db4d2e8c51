//! [`run`]: the benchmark `volatile`: mark and unmark beside giving memory back, single pages
//! beside the bare calls, and, in a memory cgroup, what the kernel purges, whether a working set is
//! kept, and a cache of tiles.
//!
//! Where no memory cgroup can be made the checks that need one are not made and say so. A ratio
//! without an engine's name is that of the worse engine. A run that purged nothing, or kept
//! nothing, has shown nothing: that is a check of its own.

use glebe::sys::page_size;
use glebe::units::Bytes;
use serde::de::DeserializeOwned;

use super::kept::{self, Beside, Kept};
use super::marked::Judged;
use super::purge::Taken;
use super::tiles::{self, Keeper, Served};
use super::{cycle, job, purge, refill, Error, Job, Which};
use crate::pressure::{self, Group};
use crate::report::{Options, Report};
use crate::samples::{rounds, Samples, NO_END};
use crate::Outcome;

const NOTHING_PURGED: &str = "nothing_purged";
const NOTHING_KEPT: &str = "nothing_kept";
const KILLED: &str = "killed for want of memory";
const PURGE: &str = "over_purge_percent";
const REFAULTS: &str = "working_set_refaults";
const TILE: &str = "tile";
const RATIOS_OF_GROUPS: [&str; 4] =
    ["working_set_kept", "working_set_kept_capped", "cache_vs_fixed", "cache_vs_whole_objects"];
const CHECKS_OF_GROUPS: [&str; 4] = ["oom_kills", "wrong_tiles", NOTHING_PURGED, NOTHING_KEPT];

const WORKING_SETS: [(&str, Beside); 5] = [
    ("glebe scan", Some((Which::Scan, false))),
    ("glebe tag", Some((Which::Tag, false))),
    ("glebe scan, capped", Some((Which::Scan, true))),
    ("glebe tag, capped", Some((Which::Tag, true))),
    ("nothing beside it", None),
];
const CACHES: [(&str, Keeper); 4] = [
    ("glebe scan", Keeper::Volatile(Which::Scan)),
    ("glebe tag", Keeper::Volatile(Which::Tag)),
    ("fixed size", Keeper::Fixed),
    ("whole objects", Keeper::WholeObject),
];

/// Runs the benchmark.
///
/// # Errors
/// If a region cannot be used or a child fails; a machine without memory cgroups has rows and
/// checks that say so.
pub fn run(report: &mut Report) -> Outcome {
    let options = &report.options.clone();
    cycle::measure(options.quick, report)?;
    cycle::one_page(options.quick, report)?;
    refill::measure(options.quick, report)?;
    let later = "private memory only: shared volatile memory is not there yet";
    report.remark("shared_pin", "glebe", "us", later);
    match Group::of(Bytes::mib(1)).map(drop) {
        Ok(()) => UnderPressure { options, report }.measure()?,
        Err(why @ pressure::Error::NoGroup(_)) => without_groups(report, &why.to_string()),
        Err(error) => return Err(error.into()),
    }
    Ok(())
}

/// Names what needs a group, without a figure.
fn without_groups(report: &mut Report, why: &str) {
    [PURGE, REFAULTS, TILE].iter().for_each(|case| report.remark(case, "glebe", "", why));
    RATIOS_OF_GROUPS.iter().for_each(|ratio| report.ratio(ratio, f64::NAN));
    let checks = CHECKS_OF_GROUPS.iter().chain(&Judged::CHECKS);
    checks.for_each(|check| report.unmeasured(check, why));
}

/// The least; none where there is none, or one that is no number: `min` passes over these.
pub(super) fn worst(ratios: &[(Which, f64)]) -> f64 {
    let ratios = ratios.iter().map(|(_, ratio)| *ratio);
    ratios
        .reduce(|a, b| if a.is_nan() || b.is_nan() { f64::NAN } else { a.min(b) })
        .unwrap_or(f64::NAN)
}

/// The part that needs a group.
struct UnderPressure<'a> {
    options: &'a Options,
    report: &'a mut Report,
}

impl UnderPressure<'_> {
    fn measure(&mut self) -> Result<(), Error> {
        let here = |which: &Which| which.map(page_size().bytes()).is_ok();
        let engines: Vec<Which> = Which::ALL.into_iter().filter(here).collect();
        if engines.is_empty() {
            without_groups(self.report, "no engine of volatile memory is here");
            return Ok(());
        }
        let quick = self.options.quick;
        self.purge(&engines, if quick { 2 } else { 15 })?;
        self.working_set(&engines, if quick { (1, 150) } else { (5, 700) })?;
        self.cache(&engines, if quick { (1, 1700) } else { (4, 3000) })
    }

    /// Does a job in a group of its own; a kill is counted, and gives no answer.
    fn ask<T: DeserializeOwned>(
        &mut self,
        limit: Bytes,
        job: impl FnOnce(&Group) -> Job,
    ) -> Result<Option<T>, Error> {
        let (answer, counters) = job::ask(limit, job)?;
        self.report.check("oom_kills", counters.oom_kills);
        Ok(answer)
    }

    /// How much more than needed is purged, and of what.
    fn purge(&mut self, engines: &[Which], rounds: usize) -> Result<(), Error> {
        for &which in engines {
            let answer: Option<purge::Answer> = self.ask(purge::LIMIT, |group| {
                Job::Purge(purge::Plan { which, rounds, usage: group.usage_file() })
            })?;
            let Some((taken, judged)) = answer else {
                self.report.remark(PURGE, which.who(), "percent", KILLED);
                continue;
            };
            judged.report(self.report);
            self.report.check(NOTHING_KEPT, u64::from(judged.kept == 0));
            for need in taken.iter().take(purge::NEEDS.len()).map(|first| first.need_pages) {
                let of_need: Vec<_> = taken.iter().filter(|t| t.need_pages == need).collect();
                tell_purge(self.report, which.who(), need, &of_need);
            }
        }
        Ok(())
    }

    fn working_set(&mut self, engines: &[Which], (count, steps): (u64, u64)) -> Result<(), Error> {
        let dir = self.options.scratch();
        let mut table = Samples::default();
        rounds(REFAULTS, (count, NO_END), |_| {
            for (who, beside) in WORKING_SETS {
                if beside.is_some_and(|(which, _)| !engines.contains(&which)) {
                    continue;
                }
                let job = |_: &_| Job::Kept(kept::Plan { beside, steps, dir: dir.clone() });
                let kept: Option<Kept> = self.ask(kept::LIMIT, job)?;
                let Some(kept) = kept else {
                    table.remark(REFAULTS, who, "pages", KILLED);
                    continue;
                };
                table.add(REFAULTS, who, "pages", kept.refaults as f64);
                let text =
                    format!("of {} read, {} purged in the last run", kept.reads, kept.purged);
                table.remark(REFAULTS, who, "pages", &text);
                kept.judged.report(self.report);
                if let Some((_, false)) = beside {
                    self.report.check(NOTHING_PURGED, u64::from(kept.purged == 0));
                }
            }
            Ok::<_, Error>(())
        })?;
        table.report(self.report);
        let refaults = |who: &str| table.median(REFAULTS, who) + 1.0;
        for suffix in ["", "_capped"] {
            let capped = suffix.replace('_', ", ");
            let ratio = |which: &Which| {
                let own = refaults(&format!("{}{capped}", which.who()));
                (*which, refaults("nothing beside it") / own)
            };
            let ratios: Vec<_> = engines.iter().map(ratio).collect();
            cycle::tell_worst(&format!("working_set_kept{suffix}"), &ratios, self.report);
        }
        self.report.note(
            "working_set_refaults: pages of the working set that were not in memory when they \
             were read, a run each; the ratios are (those with nothing beside it + 1) / (those \
             with volatile memory beside it + 1). A cap that leaves room for the working set is \
             what is recommended where that matters.",
        );
        Ok(())
    }

    fn cache(&mut self, engines: &[Which], (count, time_ms): (u64, u64)) -> Result<(), Error> {
        let mut table = Samples::default();
        rounds(TILE, (count, NO_END), |_| {
            for (who, keeper) in CACHES {
                let is_ours = matches!(keeper, Keeper::Volatile(_));
                if is_ours && !engines.iter().any(|which| keeper == Keeper::Volatile(*which)) {
                    continue;
                }
                let job = |_: &_| Job::Tiles(tiles::Plan { keeper, time_ms });
                let Some(served) = self.ask::<Served>(tiles::LIMIT, job)? else {
                    table.remark(TILE, who, "us", KILLED);
                    continue;
                };
                // A mean over the run: hits and misses both count, in the share that they had.
                table.add(TILE, who, "us", served.us.iter().sum::<f64>() / served.us.len() as f64);
                let share = |pages: u64| 100.0 * pages as f64 / (served.gets * tiles::TILE) as f64;
                table.add("tile_inflated", who, "percent", share(served.inflated_pages));
                if is_ours {
                    self.report.check("wrong_tiles", served.wrong_pages);
                    self.report.check(NOTHING_PURGED, u64::from(served.lost_pages == 0));
                    self.report.check(NOTHING_KEPT, u64::from(served.kept_pages == 0));
                }
            }
            Ok::<_, Error>(())
        })?;
        table.report(self.report);
        let us = |who: &str| table.median(TILE, who);
        for (name, peer) in
            [("cache_vs_fixed", "fixed size"), ("cache_vs_whole_objects", "whole objects")]
        {
            let ratio = |which: &Which| (*which, us(peer) / us(which.who()));
            let ratios: Vec<_> = engines.iter().map(ratio).collect();
            cycle::tell_worst(name, &ratios, self.report);
        }
        self.report.note(
            "tile: CPU time, the mean of a run each, hits and misses together; the fixed cache \
             has what is left when the other part of the program has its memory, and the others \
             have all.",
        );
        Ok(())
    }
}

fn tell_purge(report: &mut Report, who: &str, need: u64, taken: &[&Taken]) {
    let lost = |taken: &&Taken| taken.lost_pages.iter().sum::<u64>();
    let percent = |taken| (lost(taken) as f64 - need as f64) / need as f64 * 100.0;
    report.row(PURGE, who, "percent", &taken.iter().map(percent).collect::<Vec<f64>>());
    let share = |nth: usize| {
        let lost: u64 = taken.iter().map(|taken| taken.lost_pages[nth]).sum();
        (lost / taken.len().max(1) as u64).to_string()
    };
    let shares: Vec<String> = (0..4).map(share).collect();
    let text = format!(
        "{need} pages needed; lost of the quarters in the order of marking: {}",
        shares.join(", ")
    );
    report.remark(PURGE, who, "percent", &text);
    report.check(NOTHING_PURGED, u64::from(taken.iter().any(|taken| lost(taken) == 0)));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn without_a_group_no_check_of_one_is_zero_and_all_is_named() {
        let mut report = Report::default();
        without_groups(&mut report, "no memory cgroup: none is mounted");
        let json: serde_json::Value = serde_json::from_str(&report.json()).unwrap();
        for check in CHECKS_OF_GROUPS.iter().chain(&Judged::CHECKS) {
            assert!(json["checks"].get(check).is_some_and(serde_json::Value::is_null), "{json}");
        }
        assert!(json["ratios"].get("working_set_kept").is_some());
        assert!(report.passed() && report.text().contains("not measured: no memory cgroup"));
    }

    #[test]
    fn a_need_that_purged_nothing_is_a_wrong_check_and_the_worse_engine_counts() {
        for (lost_pages, passes) in [([900, 0, 0, 0], true), ([0; 4], false)] {
            let mut report = Report::default();
            let taken = Taken { need_pages: 800, lost_pages };
            let other = Taken { need_pages: 800, lost_pages: [1; 4] };
            tell_purge(&mut report, "glebe", 800, &[&taken, &other]);
            assert_eq!(report.passed(), passes);
        }
        let of = |scan, tag| worst(&[(Which::Scan, scan), (Which::Tag, tag)]);
        assert_eq!((of(3.0, 2.0), of(1.0, 2.0)), (2.0, 1.0));
        // An engine that is here and gave no figure is not passed over.
        assert!(of(f64::NAN, 2.0).is_nan() && of(2.0, f64::NAN).is_nan() && worst(&[]).is_nan());
    }
}
