//! Measures the order and the excess of the kernel's purges for a known need.
//!
//! A round writes and marks a region by quarters, in [`ORDER`]. Then the round touches memory that
//! cannot be reclaimed, up to a known need beyond the group's limit. The excess is the pages that
//! unmark reports as lost, less the need. Only the region is reclaimable. Units: pages, percent.

use std::path::Path;

use glebe::page_size;
use glebe::units::Bytes;

use super::bare::Bare;
use super::marked::{Judged, Marked};
use super::{contest, Measurement, Which, LIMIT, NOTHING_KEPT, NOTHING_PURGED};
use crate::pressure::usage;
use crate::report::Report;
use crate::Outcome;

const CASE: &str = "over_purge_percent";
const UNIT: &str = "percent";
const REGION: Bytes = Bytes::mib(64);
/// Bytes beyond the limit.
const NEEDS: [Bytes; 2] = [Bytes::mib(4), Bytes::mib(24)];
/// Quarters in the order of marking.
const ORDER: [u64; 4] = [2, 0, 3, 1];

/// For each round, the need in pages, and the lost pages of each quarter in the order of marking.
/// [`Judged`] counts the pages of all unmarks.
pub(super) type Answer = (Vec<(u64, [u64; 4])>, Judged);

pub(super) fn measure(engines: &[Which], report: &mut Report) -> Outcome {
    let rounds = report.plan(2, 15);
    let job = |which: &Which| (which.who().into(), Measurement::Purge { which: *which, rounds });
    let jobs: Vec<_> = engines.iter().map(job).collect();
    contest((CASE, UNIT), 1, &jobs, report, |who, (taken, judged): Answer, report| {
        judged.report(report);
        report.check(NOTHING_KEPT, u64::from(judged.kept == 0));
        let mut quarters = [0; 4];
        for (need_pages, lost_pages) in taken {
            let lost = lost_pages.iter().sum::<u64>() as f64;
            report.add(CASE, who, UNIT, (lost / need_pages as f64 - 1.0) * 100.0);
            report.check(NOTHING_PURGED, u64::from(lost == 0.0));
            quarters.iter_mut().zip(lost_pages).for_each(|(sum, lost)| *sum += lost);
        }
        let note = format!(
            "needs of {} and {}; pages lost of the quarters in the order of marking: {quarters:?}",
            NEEDS[0], NEEDS[1]
        );
        report.remark(CASE, who, UNIT, &note);
    })
}

pub(super) fn inside(which: Which, rounds: usize, dir: &Path) -> Outcome<Answer> {
    let page = page_size().bytes();
    let mut region = Marked::new(which.map(REGION)?);
    let quarter = REGION.pages_down(page_size()).get() / ORDER.len() as u64;
    let part = |nth: u64| nth * quarter..(nth + 1) * quarter;
    let mut taken = Vec::new();
    for need in (0..rounds).flat_map(|_| NEEDS) {
        ORDER.into_iter().try_for_each(|nth| region.write(part(nth)))?;
        ORDER.into_iter().try_for_each(|nth| region.mark(part(nth)))?;
        let len = LIMIT.saturating_sub(usage(dir)?) + need;
        let len = len.pages_down(page_size()).bytes(page_size());
        let ballast = Bare::new(len, None)?;
        ballast.touch(Bytes::ZERO, len, page);
        let mut lost_pages = [0; 4];
        for (lost, nth) in lost_pages.iter_mut().zip(ORDER) {
            *lost = region.unmark(part(nth))?;
        }
        drop(ballast);
        taken.push((need.pages_down(page_size()).get(), lost_pages));
    }
    Ok((taken, region.judged))
}
