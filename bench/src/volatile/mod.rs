//! The benchmark `volatile` compares marking and unmarking with giving memory back, and measures
//! refills of lost pages, and shared files. In memory cgroups, children measure purges by the
//! kernel, a working set that should stay, a cache of tiles, and a cache whose limit is lifted
//! ([`Measurement`], [`crate::pressure`]).
//!
//! A check fails if a run that must purge or keep pages does not.

mod bare;
mod cycle;
mod kept;
mod lifted;
mod marked;
mod objects;
mod purge;
mod refill;
mod shared;
mod tiles;

use std::io::Write;
use std::path::{Path, PathBuf};

use glebe::page_size;
use glebe::units::Bytes;
use glebe::volatile::{self, Engine, Region};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use serde_json::{to_value, Value};

use crate::pressure::{ask, enter, Group};
use crate::report::Report;
use crate::turns::{rounds, worst, NO_END};
use crate::Outcome;
use marked::Judged;

/// Limit of each group.
const LIMIT: Bytes = Bytes::mib(96);
const NOTHING_PURGED: &str = "nothing_purged";
const NOTHING_KEPT: &str = "nothing_kept";
const CHECKS_OF_GROUPS: [&str; 4] = ["oom_kills", "wrong_tiles", NOTHING_PURGED, NOTHING_KEPT];

pub(crate) fn run(report: &mut Report) -> Outcome {
    let here = |which: &Which| which.map(page_size().bytes()).is_ok();
    let engines: Vec<Which> = Which::ALL.into_iter().filter(here).collect();
    // Measures purges first, because a test waits for their groups.
    purge::measure(&engines, report)?;
    cycle::measure(report)?;
    cycle::one_page(report)?;
    refill::measure(report)?;
    shared::measure(report)?;
    kept::measure(&engines, report)?;
    tiles::measure(&engines, report)?;
    lifted::measure(&engines, report)?;
    name_checks(report);
    Ok(())
}

fn name_checks(report: &mut Report) {
    let checks = CHECKS_OF_GROUPS.iter().chain(&Judged::CHECKS);
    checks.for_each(|check| report.unmeasured(check, "no memory cgroup, or no engine"));
}

/// A child's work in a cgroup, passed as JSON.
#[derive(Clone, Debug, Serialize, Deserialize)]
enum Measurement {
    Purge { which: Which, rounds: usize },
    Kept { beside: kept::Beside, steps: u64, dir: PathBuf },
    Tiles { keeper: objects::Keeper, time_ms: u64 },
    Lifted { keeper: objects::Keeper, limited: u32, lifted_ms: u64 },
}

/// Enters the cgroup `dir` and takes the measurement.
pub(crate) fn inside(dir: &Path, measurement: &str) -> Outcome<Value> {
    enter(dir);
    Ok(match serde_json::from_str(measurement)? {
        Measurement::Purge { which, rounds } => to_value(purge::inside(which, rounds, dir)?),
        Measurement::Kept { beside, steps, dir } => to_value(kept::inside(beside, steps, &dir)?),
        Measurement::Tiles { keeper, time_ms } => to_value(tiles::inside(keeper, time_ms)?),
        Measurement::Lifted { keeper, limited, lifted_ms } => {
            to_value(lifted::inside(keeper, limited, lifted_ms, dir)?)
        }
    }?)
}

pub(crate) fn pin_shared(path: &Path, out: &mut dyn Write) -> Outcome {
    shared::pin_for_ever(path, out)
}

/// Runs each job in turn, `count` times, in a new memory cgroup. A killed job adds to the check
/// `oom_kills` and gives no answer.
fn contest<T: DeserializeOwned>(
    (case, unit): (&str, &'static str),
    count: u64,
    jobs: &[(String, Measurement)],
    report: &mut Report,
    mut tell: impl FnMut(&str, T, &mut Report),
) -> Outcome {
    for _ in rounds(case, count, NO_END) {
        for (who, job) in jobs {
            let group = Group::make(LIMIT).inspect_err(|why| report.remark(case, who, unit, why));
            let Ok(group) = group else { continue };
            let (answer, kills) = ask(&group, "inside", &serde_json::to_string(job)?)?;
            report.check("oom_kills", kills);
            match answer {
                Some(text) => tell(who, serde_json::from_str(&text)?, report),
                None => report.remark(case, who, unit, "killed for want of memory"),
            }
        }
    }
    Ok(())
}

/// Adds each engine's ratio, and the worst ratio as `name`.
fn ratios(
    name: &str,
    engines: &[Which],
    report: &mut Report,
    ratio: impl Fn(Which, &Report) -> f64,
) {
    let ratios: Vec<f64> = engines.iter().map(|&which| ratio(which, report)).collect();
    for (which, ratio) in engines.iter().zip(&ratios) {
        report.ratio(&format!("{name}_{}", which.name()), *ratio);
    }
    report.ratio(name, worst(&ratios));
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
enum Which {
    /// userfaultfd and PAGEMAP_SCAN.
    Scan,
    /// Exchanges a word of each page.
    Tag,
}

impl Which {
    const ALL: [Self; 2] = [Self::Scan, Self::Tag];

    fn who(self) -> &'static str {
        match self {
            Self::Scan => "glebe scan",
            Self::Tag => "glebe tag",
        }
    }

    fn name(self) -> &'static str {
        self.who().trim_start_matches("glebe ")
    }

    fn engine(self) -> Engine {
        match self {
            Self::Scan => Engine::Scan,
            Self::Tag => Engine::Tag,
        }
    }

    fn options(self) -> volatile::Options {
        Region::options().engine(self.engine())
    }

    fn map(self, len: Bytes) -> Result<Region, volatile::Error> {
        self.options().build(len)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn without_a_group_no_check_of_one_is_zero_and_all_is_named() {
        let mut report = Report::default();
        ratios("working_set_kept", &[], &mut report, |_, _| 1.0);
        name_checks(&mut report);
        let json: Value = serde_json::from_str(&report.json()).unwrap();
        for check in CHECKS_OF_GROUPS.iter().chain(&Judged::CHECKS) {
            assert!(json["checks"].get(check).is_some_and(Value::is_null), "{json}");
        }
        assert!(json["ratios"].get("working_set_kept").is_some());
    }

    #[test]
    fn the_worse_engine_counts_and_none_without_a_figure_is_passed_over() {
        assert_eq!((worst(&[3.0, 2.0]), worst(&[1.0, 2.0])), (2.0, 1.0));
        assert!([&[f64::NAN, 2.0][..], &[2.0, f64::NAN], &[]].iter().all(|of| worst(of).is_nan()));
    }
}
