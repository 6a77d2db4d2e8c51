//! A cache of tiles, by keeper; see [`tiles`] for the workload.

use super::{Benchmark, Job, NOTHING_KEPT, NOTHING_PURGED};
use crate::summary::Summary;
use crate::volatile::tiles::{self, Keeper, Served};
use crate::volatile::{Error, Which};

const CASE: &str = "tile";
const CONTESTANTS: [(&str, Keeper); 4] = [
    ("glebe scan", Keeper::Volatile(Which::Scan)),
    ("glebe tag", Keeper::Volatile(Which::Tag)),
    ("fixed size", Keeper::Fixed),
    ("whole objects", Keeper::WholeObject),
];

/// What a contestant came to, a mean a round.
#[derive(Default)]
struct Sums {
    us: Vec<f64>,
    pages: u64,
    inflated: u64,
    lost: u64,
    kept: u64,
}

/// Rows, ratios, checks.
pub(super) fn measure(bench: &mut Benchmark<'_>) -> Result<(), Error> {
    let (rounds, time_ms) = if bench.options.quick { (1, 1700) } else { (4, 3000) };
    let mut sums: Vec<Sums> = CONTESTANTS.iter().map(|_| Sums::default()).collect();
    for _ in 0..rounds {
        for ((_, keeper), sums) in CONTESTANTS.into_iter().zip(&mut sums) {
            if matches!(keeper, Keeper::Volatile(which) if bench.refused(which).is_some()) {
                continue;
            }
            let job = |_: &_| Job::Tiles(tiles::Plan { keeper, time_ms });
            let Some(served) = bench.ask::<Served>(tiles::LIMIT, job)? else { continue };
            // A mean over the run: hits and misses both count, in the share that they had.
            sums.us.push(served.us.iter().sum::<f64>() / served.us.len() as f64);
            sums.pages += served.gets * tiles::TILE;
            sums.inflated += served.inflated_pages;
            sums.lost += served.lost_pages;
            sums.kept += served.kept_pages;
            if matches!(keeper, Keeper::Volatile(_)) {
                bench.report.check("wrong_tiles", served.wrong_pages);
            }
        }
    }
    tell(bench, &sums);
    Ok(())
}

fn tell(bench: &mut Benchmark<'_>, sums: &[Sums]) {
    for ((who, keeper), sums) in CONTESTANTS.iter().zip(sums) {
        if let Keeper::Volatile(which) = keeper {
            if let Some(why) = bench.refused(*which) {
                bench.report.absent(CASE, who, "us", &why);
                continue;
            }
        }
        bench.report.row(CASE, who, "us", &sums.us);
        let inflated = sums.inflated as f64 / sums.pages as f64 * 100.0;
        let (lost, kept) = (sums.lost, sums.kept);
        let lost = match keeper {
            Keeper::Fixed => String::new(),
            _ => format!("; of tiles looked up {lost} pages lost, {kept} kept"),
        };
        bench.report.remark(&format!("{inflated:.1} % inflated{lost}"));
        if matches!(keeper, Keeper::Volatile(_)) && !sums.us.is_empty() {
            bench.report.check(NOTHING_PURGED, u64::from(sums.lost == 0));
            bench.report.check(NOTHING_KEPT, u64::from(kept == 0));
        }
    }
    let median = |wanted: &str| {
        let found = CONTESTANTS.iter().zip(sums).find(|((who, _), _)| *who == wanted);
        let summary = found.and_then(|(_, sums)| Summary::of(&sums.us));
        summary.map_or(f64::NAN, |summary| summary.median)
    };
    let own = |which: Which| median(&format!("glebe {}", which.name()));
    bench.worse("cache_vs_fixed", |which| median("fixed size") / own(which));
    bench.worse("cache_vs_whole_objects", |which| median("whole objects") / own(which));
    bench.report.note(
        "tile: CPU time, the mean of a run each, hits and misses together; the fixed cache has \
         what is left when the other part of the program has its memory, and the others have all.",
    );
}
