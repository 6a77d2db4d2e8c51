//! How the time of a recall grows with the reserve: the same requests of a small, a middling and a
//! large one.
//!
//! In a quick run all are of transparent huge pages, which are had in a fraction of the time that
//! long runs take; the request is the largest that all have a run for.

use glebe::contig::{Contig, Source};
use glebe::sys::meminfo;
use glebe::units::Bytes;

use super::requests::{ask, EVERY};
use super::tenant::Tenant;
use super::{map, map_on, GLEBE, REQUEST_PAGES};
use crate::report::Report;
use crate::turns::{rounds, NO_END};
use crate::Outcome;

const LARGE_GIB: u64 = 8;

/// Measures and reports all, their requests in turn, and the ratios of the last to the first.
pub(super) fn measure(report: &mut Report) -> Outcome {
    let ratio = |what: &str, gib: u64| format!("growth_{what}256m_to_{gib}g");
    report.ratio(&ratio("1_page_", LARGE_GIB), f64::NAN); // there in any case
    report.ratio(&ratio("", LARGE_GIB), f64::NAN);
    let gib = LARGE_GIB.min(meminfo::available()?.get() / Bytes::gib(1).get() * 2 / 3);
    if gib < LARGE_GIB {
        let why = format!("no memory for {LARGE_GIB} GiB; free half as much again");
        report.remark("growth", GLEBE, "us", &why);
    }
    if gib == 0 {
        return Ok(());
    }
    let mut all = Vec::new();
    let (small, large) = ("256m".to_string(), format!("{gib}g"));
    let sizes = [Bytes::mib(256), Bytes::gib(1), Bytes::gib(gib)];
    for (len, name) in sizes.into_iter().zip([small.clone(), "1g".into(), large.clone()]) {
        let reserve = match report.options.quick {
            true => map_on(Contig::options().source(Source::Thp), len)?,
            false => map(len)?,
        };
        let tenant = Tenant::new(&reserve)?;
        all.push((name, reserve, tenant));
    }
    let runs = all.iter().map(|(_, reserve, _)| reserve.contig().longest_run().get());
    let most = runs.min().unwrap_or(0).min(all[0].1.len().get() / 2);
    let most = REQUEST_PAGES.into_iter().filter(|&pages| pages <= most).max().unwrap_or(1);
    let case = |pages: u64, name: &str| format!("recall_{pages}_of_{name}");
    for _ in rounds("growth", report.plan(15, 100), NO_END) {
        for (name, reserve, tenant) in &mut all {
            for pages in [1, most] {
                tenant.refill(reserve);
                let Ok(mut held) = ask(reserve, EVERY, pages, false) else {
                    report.check("failures", 1);
                    continue;
                };
                report.add(&case(pages, name), GLEBE, "us", held.took.wall_us);
                let source = format!("of {}", reserve.contig().source());
                report.remark(&case(pages, name), GLEBE, "us", &source);
                held.over_recall(report);
                held.mark(report);
                held.check(report);
            }
        }
    }
    for (what, pages) in [("1_page_", 1), ("", most)] {
        let [first, last] = [&small, &large].map(|name| report.median(&case(pages, name), GLEBE));
        report.ratio(&ratio(what, gib), last / first);
    }
    all.iter().for_each(|(_, _, tenant)| tenant.report(report));
    Ok(())
}
