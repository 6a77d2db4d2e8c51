//! Runs out of a pool that stands (`glebe::contig::StandingPool`): chosen for its runs out of more
//! pages while the machine still has them, and kept.
//!
//! It is mapped already, so that a run is a matter of bookkeeping (`mapped`), unless it shall have
//! a mapping of its own (`map`). Beside that a window is mapped onto resident huge pages of a file,
//! which is what a program can do by itself. What the library says of runs and frames is compared
//! with page frames read here. Unit: microseconds, MiB.

use glebe::contig::{Contig, Drift, HeldBy, Run, StandingPool};
use glebe::sys::page_size;
use glebe::units::{Bytes, Pages};

use super::{memory, name, Error};
use crate::clock::Stopwatch;
use crate::peers::{Peer, StandingPool as HugePageFile};
use crate::report::Report;
use crate::samples::Samples;
use crate::{frames, interrupt};

/// Sizes that are mapped out of a pool.
const SIZES: [Bytes; 2] = [Bytes::mib(2), Bytes::mib(128)];
const LONGEST: &str = "longest_run";
const OPTIMUM: &str = "longest_run_vs_optimum";
const DISAGREE: &str = "verify_disagreements";

/// The run that is required, as what is chosen is chosen for it.
pub(super) fn run_len(quick: bool) -> Bytes {
    if quick {
        Bytes::mib(8)
    } else {
        Bytes::mib(64)
    }
}

/// Measures and reports; the pool, if the machine has the memory.
pub(super) fn measure(
    quick: bool,
    largest: Bytes,
    report: &mut Report,
) -> Result<Result<StandingPool, String>, Error> {
    let (len, search) = match quick {
        true => (Bytes::mib(192), Bytes::mib(192)),
        false => (Bytes::gib(2), Bytes::gib(8)),
    };
    let most = largest.min(memory::largest()?);
    let (len, search) = (len.min(most), search.min(most));
    let options = || Contig::options().prefer_run(run_len(quick));
    match options().build(len).map_err(Error::from).and_then(|contig| disagreements(&contig)) {
        Ok(Ok(pages)) => report.check(DISAGREE, pages),
        Ok(Err(why)) => report.unmeasured(DISAGREE, &why),
        Err(why) => report.unmeasured(DISAGREE, &why.to_string()),
    }
    let mut samples = Samples::default();
    let unasked = Peer::SurplusHugetlb.alloc(len.pages_up(page_size()));
    let unasked = unasked.map_err(|why| why.to_string()).and_then(|(block, _)| {
        block.longest_run().map(mib).ok_or_else(|| "page frames are hidden".into())
    });
    samples.outcome(LONGEST, "hugetlb", "MiB", unasked);
    let pool = StandingPool::options().memory(options().search(search)).build(len);
    report.ratio(OPTIMUM, f64::NAN);
    let maps = if quick { 50 } else { 1000 };
    windows(pool.as_ref().ok(), maps, &mut samples);
    match &pool {
        Ok(pool) => {
            mapped(pool, maps, &mut samples);
            if let Some(ratio) = longest(pool, &mut samples)? {
                report.ratio(OPTIMUM, ratio);
            }
        }
        Err(why) => samples.outcome("mapped_longest", "glebe", "us", Err(why)),
    }
    samples.report(report);
    Ok(pool.map_err(|why| why.to_string()))
}

fn mib(pages: Pages) -> f64 {
    pages.bytes(page_size()).get() as f64 / (1 << 20) as f64
}

/// Pages of which the library says something else than the page map, when it looks again; or why
/// that cannot be told.
fn disagreements(contig: &Contig) -> Result<Result<u64, String>, Error> {
    if contig.held_by() == HeldBy::Nothing {
        // Pages that nothing holds move between two readings: no disagreement.
        return Ok(Err(format!("{}: nothing holds its pages", contig.source())));
    }
    let pages = contig.len().pages_up(page_size());
    let Some(frames) = frames::of(contig.mapping().addr(), pages) else {
        return Ok(Err("page frames are hidden; root sees them".into()));
    };
    let drifts = contig.verify()?;
    let claimed = claimed(contig.runs(), &drifts, frames.len());
    let differ = claimed.iter().zip(&frames).filter(|(claimed, frame)| claimed != frame).count();
    // Drift makes runs shorter than they were said to be.
    let shorter = drifts.is_empty() && contig.longest_run() != frames::longest(&frames);
    Ok(Ok(differ as u64 + u64::from(shorter)))
}

/// The frame of every page, by the library's runs and what it says has moved.
fn claimed(runs: &[Run], drifts: &[Drift], pages: usize) -> Vec<Option<u64>> {
    let mut frames = vec![None; pages];
    let of_runs = runs.iter().map(|run| (run.pages, run.pfn));
    for (extent, first) in of_runs.chain(drifts.iter().map(|drift| (drift.pages, drift.now))) {
        for page in 0..extent.len() {
            if let Some(frame) = frames.get_mut((extent.start() + page) as usize) {
                *frame = first.map(|first| first.get() + page);
            }
        }
    }
    frames
}

/// The longest run of the pool over the best that its frames would make in another order.
fn longest(pool: &StandingPool, samples: &mut Samples) -> Result<Option<f64>, Error> {
    // All of it is free, and the lowest position is given first.
    let start = pool.take(page_size().bytes())?.addr();
    let Some(mut frames) = frames::of(start, pool.contig().len().pages_up(page_size())) else {
        return Ok(None);
    };
    let longest = mib(frames::longest(&frames));
    frames.sort_unstable();
    let optimum = mib(frames::longest(&frames));
    samples.add(LONGEST, "glebe", "MiB", longest);
    samples.note(LONGEST, "glebe", "MiB", &format!("of {}", pool.contig().len()));
    samples.add(LONGEST, "optimum", "MiB", optimum);
    Ok(Some(longest / optimum))
}

/// Runs in a mapping of their own: the pool's, and windows onto resident huge pages of a file.
fn windows(pool: Option<&StandingPool>, maps: u64, samples: &mut Samples) {
    let file = HugePageFile::new(SIZES[SIZES.len() - 1].pages_up(page_size()));
    for _ in 0..maps {
        for size in SIZES {
            interrupt::check();
            let case = format!("map_{}", name(size));
            if let Some(pool) = pool {
                let watch = Stopwatch::start();
                let window = pool.map(size);
                let took = watch.elapsed().wall_us;
                samples.outcome(&case, "glebe", "us", window.map(|_| took));
            }
            let took = match &file {
                Ok(file) => {
                    let sample = file.measure(size.pages_up(page_size()));
                    sample.failed.map_or(Ok(sample.wall_us), Err)
                }
                Err(why) => Err(why.to_string()),
            };
            samples.outcome(&case, HugePageFile::NAME, "us", took);
        }
    }
}

/// Runs of the mapping that is there.
fn mapped(pool: &StandingPool, maps: u64, samples: &mut Samples) {
    let longest = pool.largest_free_run().unwrap_or_default().bytes(page_size());
    for _ in 0..maps {
        for size in SIZES.into_iter().filter(|&size| size < longest).chain([longest]) {
            interrupt::check();
            let case = match size == longest {
                true => "mapped_longest".to_string(),
                false => format!("mapped_{}", name(size)),
            };
            let watch = Stopwatch::start();
            let piece = pool.take(size);
            let took = watch.elapsed().wall_us;
            samples.outcome(&case, "glebe", "us", piece.map(|_| took));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use glebe::extent::Extent;
    use glebe::units::Pfn;

    #[test]
    fn runs_and_drift_name_a_frame_for_every_page() {
        let extent = |start, len| Extent::new(start, len).unwrap();
        let run = |start, len, pfn| Run { pages: extent(start, len), pfn: Some(Pfn::new(pfn)) };
        let runs = [run(0, 3, 10), run(4, 1, 30)];
        let drift = Drift { pages: extent(1, 1), was: Pfn::new(11), now: Some(Pfn::new(50)) };
        let frames = claimed(&runs, &[drift], 6);
        assert_eq!(frames, [Some(10), Some(50), Some(12), None, Some(30), None]);
    }

    #[test]
    fn the_library_and_the_page_map_agree() {
        let contig = Contig::options().build(Bytes::mib(4)).unwrap();
        match disagreements(&contig).unwrap() {
            Ok(pages) => assert_eq!(pages, 0),
            Err(why) => println!("skipped: {why}"),
        }
    }
}
