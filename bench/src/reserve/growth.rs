//! How the time of a recall grows with the reserve: the same requests of a small and a large one.
//!
//! In a quick run both are of transparent huge pages, which are had in a fraction of the time that
//! long runs take; the request is the largest that both have a run for.

use glebe::contig::{Contig, Source};
use glebe::sys::meminfo;
use glebe::units::Bytes;

use super::requests::{ask, EVERY};
use super::tenant::Tenant;
use super::{map, map_on, GLEBE, REQUEST_PAGES};
use crate::contig::name;
use crate::report::Report;
use crate::turns::{rounds, NO_END};
use crate::Outcome;

const SMALL: Bytes = Bytes::mib(256);
const LARGE: Bytes = Bytes::gib(8);

/// Measures and reports both, their requests in turn, and the ratio of the large to the small.
pub(super) fn measure(report: &mut Report) -> Outcome {
    let ratio = |large| format!("growth_{}_to_{}", name(SMALL), name(large));
    report.ratio(&ratio(LARGE), f64::NAN); // there in any case
    let gib = meminfo::available()?.get() / Bytes::gib(1).get() * 2 / 3;
    let large = LARGE.min(Bytes::gib(gib));
    if large < LARGE {
        let why = format!("no memory for {LARGE}; free half as much again");
        report.remark("growth", GLEBE, "us", &why);
    }
    if gib == 0 {
        return Ok(());
    }
    let mut both = Vec::new();
    for len in [SMALL, large] {
        let reserve = match report.options.quick {
            true => map_on(Contig::options().source(Source::Thp), len)?,
            false => map(len)?,
        };
        let tenant = Tenant::new(&reserve)?;
        both.push((len, reserve, tenant));
    }
    let runs = both.iter().map(|(_, reserve, _)| reserve.contig().longest_run().get());
    let most = runs.min().unwrap_or(0).min(both[0].1.len().get() / 2);
    let pages = REQUEST_PAGES.into_iter().filter(|&pages| pages <= most).max().unwrap_or(1);
    let case = |len| format!("recall_{pages}_of_{}", name(len));
    for _ in rounds("growth", report.plan(15, 100), NO_END) {
        for (len, reserve, tenant) in &mut both {
            tenant.refill(reserve);
            let Ok(mut held) = ask(reserve, EVERY, pages, false) else {
                report.check("failures", 1);
                continue;
            };
            report.add(&case(*len), GLEBE, "us", held.took.wall_us);
            let source = format!("of {}", reserve.contig().source());
            report.remark(&case(*len), GLEBE, "us", &source);
            held.over_recall(report);
            held.mark(report);
            held.check(report);
        }
    }
    let [first, last] = [SMALL, large].map(|len| report.median(&case(len), GLEBE));
    report.ratio(&ratio(large), last / first);
    both.iter().for_each(|(_, _, tenant)| tenant.report(report));
    Ok(())
}
