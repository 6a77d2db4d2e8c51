//! [`run`]: what becomes of a reserve in hours of service, for each way to choose a place.
//!
//! Every contestant meets the same sequences of blocks, which depend on the printed seeds alone.
//! The figures but for the times of requests depend on nothing else either: blocks are asked for
//! as content with virtual contiguity, so that the machine's page frames do not matter.
//! Units: base pages, per cent, microseconds.

mod cache;
mod held;
mod hours;
mod picture;
mod tell;
mod workload;

use glebe::reserve::Placement;
use glebe::units::Bytes;

use super::measure::NAME;
use super::{affordable, Error};
use crate::progress::Progress;
use crate::report::Report;
use hours::{Outcome, Scenario, Times};

/// First class would on average hold so much of the reserve, in per cent.
const PERCENTS: [u64; 3] = [30, 50, 70];
const PERCENTS_QUICK: [u64; 1] = [50];
const SEEDS: u64 = 3;
const SEEDS_QUICK: u64 = 1;

const LEN: Bytes = Bytes::gib(1);
const LEN_QUICK: Bytes = Bytes::mib(256);
/// Seconds of virtual time.
const WARM_UP_S: u64 = 1200;
const LOOKED_AT_S: u64 = 3600;
const QUICK_SHARE: u64 = 4;

/// A placement, and whether blocks that will live long are asked for as such.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Contestant {
    placement: Placement,
    hinted: bool,
    name: &'static str,
}

const fn contestant(placement: Placement, hinted: bool, name: &'static str) -> Contestant {
    Contestant { placement, hinted, name }
}

const CONTESTANTS: [Contestant; 5] = [
    contestant(Placement::Lowest, false, "lowest"),
    contestant(Placement::Lowest, true, "lowest, hinted"),
    contestant(Placement::BestFit, false, "best fit"),
    contestant(Placement::BySize, false, "by size"),
    contestant(Placement::LeastToClear, false, "least to clear"),
];

/// What to do.
#[derive(Clone, Debug, Default)]
pub struct Options {
    /// A shorter time, fewer loads, one seed.
    pub quick: bool,
    /// The first seed.
    pub seed: u64,
    /// The command line, for the report.
    pub command: String,
}

/// The figures, and a picture of the longest run over time.
#[derive(Clone, Debug)]
pub struct Aged {
    /// The figures.
    pub report: Report,
    /// An SVG document.
    pub svg: String,
}

/// What one contestant came to at one load, a run a seed.
#[derive(Debug)]
struct Runs {
    percent: u64,
    contestant: Contestant,
    runs: Vec<(Outcome, Times)>,
}

/// Ages reserves and compares.
///
/// # Errors
/// If there is no reserve or a pool refuses; what goes wrong in a request is a check.
pub fn run(options: &Options) -> Result<Aged, Error> {
    let quick = options.quick;
    let len = affordable(if quick { LEN_QUICK } else { LEN }, 4)?;
    let share = if quick { QUICK_SHARE } else { 1 };
    let scenario = Scenario {
        len,
        placement: Placement::default(),
        hinted: false,
        percent: 0,
        seed: 0,
        warm_up_s: WARM_UP_S / share,
        looked_at_s: LOOKED_AT_S / share,
    };
    let percents: &[u64] = if quick { &PERCENTS_QUICK } else { &PERCENTS };
    let seeds = options.seed..options.seed + if quick { SEEDS_QUICK } else { SEEDS };
    let steps = percents.len() as u64 * CONTESTANTS.len() as u64 * (seeds.end - seeds.start);
    let mut progress = Progress::new("age", steps);
    let mut done = 0;
    let mut all = Vec::new();
    for &percent in percents {
        for contestant in CONTESTANTS {
            let Contestant { placement, hinted, .. } = contestant;
            let mut runs = Vec::new();
            for seed in seeds.clone() {
                runs.push(hours::run(&Scenario { placement, hinted, percent, seed, ..scenario })?);
                done += 1;
                progress.update(done);
            }
            all.push(Runs { percent, contestant, runs });
        }
    }
    progress.finish();
    let mut report = Report::new(NAME, &options.command, quick);
    tell::tell(&mut report, &all);
    report.note(&format!(
        "reserve of {len}; {} s of virtual time looked at after {} s of aging, {} requests in all; \
         a row is over the runs of seeds {} to {}. `frag` counts where enough pages were free; \
         a look, every {} s, whether the largest block could be had.",
        scenario.looked_at_s,
        scenario.warm_up_s,
        all.iter().flat_map(|one| &one.runs).map(|(run, _)| run.requests).sum::<u64>(),
        seeds.start,
        seeds.end - 1,
        hours::LOOK_S,
    ));
    Ok(Aged { svg: picture::draw(&all, len), report })
}
