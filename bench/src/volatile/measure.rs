//! [`run`]: the benchmark `volatile`: mark and unmark beside giving memory back, single pages
//! beside the bare calls, and, in a memory cgroup, what the kernel purges, whether a working set is
//! kept, a cache of tiles, and the stress.

use std::path::PathBuf;
use std::time::Duration;

use glebe::units::Bytes;

use super::kept::{self, Beside, Kept};
use super::purge::{self, Taken};
use super::tiles::{self, Keeper, Served};
use super::{cycle, job, refill, stress, Error, Job, Which};
use crate::interrupt;
use crate::pressure::{self, Counters, Group};
use crate::report::Report;
use crate::summary::Summary;

/// The name on the command line and in the JSON.
pub const NAME: &str = "volatile";

/// No job here takes as long on a machine that does anything else at all.
const PATIENCE: Duration = Duration::from_secs(300);

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

/// Runs the benchmark.
///
/// # Errors
/// If a region cannot be used or a child fails; a machine without memory cgroups has rows that say
/// so.
pub fn run(options: &Options) -> Result<Report, Error> {
    let mut report = Report::new(NAME, &options.command, options.quick);
    for check in ["lost_writes", "stale_reads", "false_intact", "false_purged", "oom_kills"] {
        report.check(check, 0);
    }
    cycle::measure(options.quick, &mut report)?;
    cycle::one_page(options.quick, &mut report)?;
    refill::measure(options.quick, &mut report)?;
    report.absent("shared_pin", "glebe", "us", "private memory only in this version");
    match Group::of(Bytes::mib(1)) {
        Ok(group) => drop(group),
        Err(why @ pressure::Error::NoGroup(_)) => {
            for case in ["over_purge_percent", "working_set_refaults", "tile", "stress_purged"] {
                report.absent(case, "glebe", "", &why.to_string());
            }
            for ratio in ["working_set_kept", "cache_vs_fixed"] {
                report.ratio(ratio, f64::NAN);
            }
            return Ok(report);
        }
        Err(error) => return Err(error.into()),
    }
    purge(options.quick, &mut report)?;
    working_set(options, &mut report)?;
    tiles(options.quick, &mut report)?;
    stress(options, &mut report)?;
    Ok(report)
}

/// Does a job in a group of its own; a kill is counted, and gives no answer.
fn ask<T: serde::de::DeserializeOwned>(
    limit: Bytes,
    job: impl FnOnce(&Group) -> Job,
    report: &mut Report,
) -> Result<Option<(T, Counters)>, Error> {
    let group = Group::of(limit)?;
    let job = job(&group);
    let (answer, counters) = job::ask(&group, &job, PATIENCE, |_| interrupt::check())?;
    report.check("oom_kills", counters.oom_kills);
    Ok(answer.map(|answer| (answer, counters)))
}

/// How much more than needed is purged, and of what.
fn purge(quick: bool, report: &mut Report) -> Result<(), Error> {
    let rounds = if quick { 2 } else { 15 };
    for which in Which::ALL {
        let who = format!("glebe {}", which.name());
        let job =
            |group: &Group| Job::Purge(purge::Plan { which, rounds, usage: group.usage_file() });
        let Some((taken, _)) = ask::<Vec<Taken>>(purge::LIMIT, job, report)? else { continue };
        let mut needs: Vec<u64> = taken.iter().map(|taken| taken.need_pages).collect();
        needs.dedup();
        needs.truncate(taken.len() / rounds.max(1));
        for need in needs {
            let of_need: Vec<_> = taken.iter().filter(|taken| taken.need_pages == need).collect();
            let excess = |taken: &&Taken| {
                let lost: u64 = taken.lost_pages.iter().sum();
                (lost as f64 - need as f64) / need as f64 * 100.0
            };
            let percent: Vec<f64> = of_need.iter().map(excess).collect();
            report.row("over_purge_percent", &who, "percent", &percent);
            let shares: Vec<String> = (0..4)
                .map(|nth| {
                    let lost: u64 = of_need.iter().map(|taken| taken.lost_pages[nth]).sum();
                    (lost / of_need.len() as u64).to_string()
                })
                .collect();
            report.remark(&format!(
                "{need} pages needed; lost of the quarters in the order of marking: {}",
                shares.join(", ")
            ));
        }
    }
    Ok(())
}

/// Refaults of a working set beside volatile memory, beside nothing, beside page cache.
fn working_set(options: &Options, report: &mut Report) -> Result<(), Error> {
    const CASE: &str = "working_set_refaults";
    let (rounds, steps) = if options.quick { (2, 250) } else { (7, 1000) };
    let dir = options.dir.clone().unwrap_or_else(std::env::temp_dir);
    let contestants = [
        ("glebe scan", Beside::Volatile(Which::Scan, false)),
        ("glebe tag", Beside::Volatile(Which::Tag, false)),
        ("glebe scan, capped", Beside::Volatile(Which::Scan, true)),
        ("nothing beside it", Beside::Nothing),
        ("page cache beside it", Beside::PageCache),
    ];
    let mut percent = vec![Vec::new(); contestants.len()];
    let mut purged = vec![0; contestants.len()];
    for _ in 0..rounds {
        for (nth, (_, beside)) in contestants.into_iter().enumerate() {
            let job = |group: &Group| {
                let (dir, stat) = (dir.clone(), group.dir().join("memory.stat"));
                Job::Kept(kept::Plan { beside, steps, dir, stat })
            };
            let Some((kept, _)) = ask::<Kept>(kept::LIMIT, job, report)? else { continue };
            percent[nth].push(kept.refaults as f64 / kept.reads as f64 * 100.0);
            purged[nth] += kept.purged;
        }
    }
    for ((who, beside), (percent, purged)) in contestants.iter().zip(percent.iter().zip(&purged)) {
        report.row(CASE, who, "percent of reads", percent);
        if matches!(beside, Beside::Volatile(..)) {
            report.remark(&format!("{purged} pages purged"));
        }
    }
    // A machine's own noise, so that nothing is not divided by nothing.
    const FLOOR_PERCENT: f64 = 1.0;
    let median = |nth: usize| {
        Summary::of(&percent[nth]).map_or(f64::NAN, |summary| summary.median.max(FLOOR_PERCENT))
    };
    report.ratio("working_set_kept", median(3) / median(0).max(median(1)));
    report.ratio("working_set_kept_capped", median(3) / median(2));
    report.note(
        "working_set_kept: refaults with nothing beside the working set over those with volatile \
         memory beside it, of the worse engine; less than 1 % of the reads counts as 1 %. With \
         page cache beside it, refaults of both files count.",
    );
    Ok(())
}

/// A cache of tiles.
fn tiles(quick: bool, report: &mut Report) -> Result<(), Error> {
    const CASE: &str = "tile";
    let (rounds, time_ms) = if quick { (1, 1700) } else { (5, 4000) };
    let contestants = [
        ("glebe scan", Keeper::Volatile(Which::Scan)),
        ("glebe tag", Keeper::Volatile(Which::Tag)),
        ("fixed size", Keeper::Fixed),
        ("whole objects", Keeper::WholeObject),
    ];
    let mut us = vec![Vec::new(); contestants.len()];
    let mut pages = vec![(0, 0); contestants.len()];
    for _ in 0..rounds {
        for (nth, (_, keeper)) in contestants.into_iter().enumerate() {
            let job = |_: &Group| Job::Tiles(tiles::Plan { keeper, time_ms });
            let Some((served, _)) = ask::<Served>(tiles::LIMIT, job, report)? else { continue };
            // A mean over the run: hits and misses both count, in the share that they had.
            us[nth].push(served.us.iter().sum::<f64>() / served.us.len() as f64);
            pages[nth].0 += served.inflated_pages;
            pages[nth].1 += served.gets * tiles::TILE;
            if matches!(keeper, Keeper::Volatile(_)) {
                report.check("false_intact", served.wrong_pages);
            }
        }
    }
    for ((who, _), (us, (inflated, asked))) in contestants.iter().zip(us.iter().zip(pages)) {
        report.row(CASE, who, "us", us);
        report.remark(&format!("{:.1} % inflated", inflated as f64 / asked as f64 * 100.0));
    }
    let median = |nth: usize| Summary::of(&us[nth]).map_or(f64::NAN, |summary| summary.median);
    let best = median(0).min(median(1));
    report.ratio("cache_vs_fixed", median(2) / best);
    report.ratio("cache_vs_whole_objects", median(3) / best);
    report.note(
        "tile: CPU time, the mean of a run each, hits and misses together; the fixed cache has \
         what is left when the other part of the program has its memory, and the others have all.",
    );
    Ok(())
}

/// The stress, for its checks.
fn stress(options: &Options, report: &mut Report) -> Result<(), Error> {
    let time = Duration::from_secs(if options.quick { 4 } else { 60 });
    let dir = options.dir.clone();
    let outcome = stress::run(&stress::Options { time, engine: None, dir })?;
    for part in &outcome.parts {
        report.check("oom_kills", part.group.oom_kills);
        let Some(counts) = &part.counts else { continue };
        for (name, count) in counts.checks() {
            report.check(name, count);
        }
        report.check("failures", counts.errors.len() as u64);
        report.check("nothing_purged", u64::from(counts.purged_pages == 0));
        let who = format!("glebe {}", part.which.name());
        report.row("stress_purged", &who, "pages", &[counts.purged_pages as f64]);
        report.remark(&format!("{} told as intact", counts.intact_pages));
    }
    Ok(())
}
