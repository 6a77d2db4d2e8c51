//! Measures contiguous runs from a reserve, whose huge pages were chosen while the machine had long
//! runs.
//!
//! A run is a block of the reserve. The peer maps a part of a resident [`HugeFile`]. [`frames`]
//! checks the library's runs and frames. Units: microseconds, MiB.

use glebe::contig::{Contig, HeldBy, Source};
use glebe::page_size;
use glebe::reserve::Reserve;
use glebe::units::{Bytes, Pages, Pfn};

use super::{mib, name, GLEBE};
use crate::clock::timed;
use crate::memory::{self, HugeFile};
use crate::report::Report;
use crate::turns::{rounds, NO_END};
use crate::{frames, Outcome};

const SIZES: [Bytes; 2] = [Bytes::mib(2), Bytes::mib(128)];
const LONGEST: &str = "longest_run";
const DISAGREE: &str = "verify_disagreements";

/// Returns the length of run that `on_demand` requires and this reserve prefers.
pub(super) fn run_len(report: &Report) -> Bytes {
    report.plan(Bytes::mib(8), Bytes::mib(64))
}

/// Returns the reserve, or why the machine could not give it.
pub(super) fn measure(report: &mut Report) -> Outcome<Outcome<Reserve>> {
    let wanted = report.plan([Bytes::mib(192); 2], [Bytes::gib(2), Bytes::gib(8)]);
    let most = memory::largest()?;
    let [len, search] = wanted.map(|len| len.min(most));
    let options = Contig::options().prefer_run(run_len(report));
    match options.clone().build(len).map_err(Into::into).and_then(|contig| disagreements(&contig)) {
        Ok(pages) => report.check(DISAGREE, pages),
        Err(why) => report.unmeasured(DISAGREE, &why.to_string()),
    }
    let memory = options.source(Source::HUGETLB_2M).search(search);
    let reserve = Reserve::options().memory(memory).build(len);
    let ratio = reserve.as_ref().map_or(f64::NAN, |reserve| longest(reserve.contig(), report));
    report.ratio("longest_run_vs_optimum", ratio);
    let file = HugeFile::new(SIZES[SIZES.len() - 1]);
    for _ in rounds("contig, windows", report.plan(50, 1000), NO_END) {
        for size in SIZES {
            let case = format!("map_{}", name(size));
            let alloc = |reserve: &Reserve| {
                let (block, took) = timed(|| reserve.alloc(size.pages_up(page_size())));
                block.map(|_| took.wall_us).map_err(|why| why.to_string())
            };
            let took = reserve.as_ref().map_err(ToString::to_string).and_then(alloc);
            report.outcome(&case, GLEBE, "us", took);
            let map = |file: &HugeFile| file.window(size).map_err(|why| why.to_string());
            let window = file.as_ref().map_err(ToString::to_string).and_then(map);
            report.outcome(&case, HugeFile::NAME, "us", window.map(|window| window.took.wall_us));
        }
    }
    Ok(reserve.map_err(Into::into))
}

/// Counts pages whose frame differs between the library and the page map, and adds 1 if the longest
/// run differs. Fails if the frames cannot be compared.
fn disagreements(contig: &Contig) -> Outcome<u64> {
    if contig.held_by() == HeldBy::Nothing {
        // Pages that nothing holds may move between two readings.
        return Err(format!("{}: nothing holds its pages", contig.source()).into());
    }
    let pages = contig.len().pages_up(page_size());
    let frames = frames::of(contig.mapping().addr(), pages);
    let frames = frames.ok_or("page frames are hidden; root sees them")?;
    let drifts = contig.verify()?;
    // The frame that the library claims: where the page moved to, or where it was.
    let claimed = |page: u64| {
        let moved = drifts.iter().find(|d| (d.pages.start()..d.pages.end()).contains(&page));
        let at = contig.mapping().addr() + Pages::new(page).bytes(page_size()).as_usize();
        match moved {
            Some(drift) => drift.now.map(|now| now.get() + page - drift.pages.start()),
            None => contig.query(at)?.pfn.map(Pfn::get),
        }
    };
    let differ = (0..).zip(&frames).filter(|(page, frame)| claimed(*page) != **frame).count();
    // After a drift the library's longest run is out of date, so it is not compared.
    let shorter = drifts.is_empty() && contig.longest_run() != frames::longest(&frames);
    Ok(differ as u64 + u64::from(shorter))
}

/// Returns the longest run divided by the longest that the same frames would give if sorted, or NaN
/// if frames are hidden.
fn longest(contig: &Contig, report: &mut Report) -> f64 {
    let Some(mut frames) = frames::of(contig.mapping().addr(), contig.len().pages_up(page_size()))
    else {
        return f64::NAN;
    };
    let of = |frames: &[_]| mib(frames::longest(frames).bytes(page_size()));
    let longest = of(&frames);
    frames.sort_unstable();
    let optimum = of(&frames);
    report.add(LONGEST, GLEBE, "MiB", longest);
    report.remark(LONGEST, GLEBE, "MiB", &format!("of {}", contig.len()));
    report.add(LONGEST, "optimum", "MiB", optimum);
    longest / optimum
}
