//! How the time of a recall grows with the reserve: the same requests of a small, a middling and a
//! large one.
//!
//! In a quick run all are of transparent huge pages, which are had in a fraction of the time that
//! long runs take; the request is the largest that all have a run for.

use glebe::contig::{Contig, Source};
use glebe::reserve::{Request, Reserve};
use glebe::sys::meminfo;
use glebe::units::{Bytes, Pages};

use super::requests::{ask, Faults, EVERY};
use super::tenant::Tenant;
use super::{map, Error, GLEBE, REQUEST_PAGES};
use crate::report::Report;
use crate::samples::{rounds, Samples, NO_END};

const LARGE_GIB: u64 = 8;

/// Measures and reports all, their requests in turn, and the ratios of the last to the first.
pub(super) fn measure(quick: bool, report: &mut Report) -> Result<(), Error> {
    let ratio = |what: &str, gib: u64| format!("growth_{what}256m_to_{gib}g");
    report.ratio(&ratio("1_page_", LARGE_GIB), f64::NAN); // there in any case
    report.ratio(&ratio("", LARGE_GIB), f64::NAN);
    let gib = LARGE_GIB.min(meminfo::available()?.get() / Bytes::gib(1).get() * 2 / 3);
    if gib < LARGE_GIB {
        let why = format!("no memory for {LARGE_GIB} GiB; free half as much again");
        report.absent("growth", GLEBE, "us", &why);
    }
    if gib == 0 {
        return Ok(());
    }
    let mut all = Vec::new();
    for len in [Bytes::mib(256), Bytes::gib(1), Bytes::gib(gib)] {
        let reserve = if quick { map_quickly(len)? } else { map(len, Reserve::options())? };
        let mut tenant = Tenant::new(reserve.page_cache().namespace("growth")?);
        tenant.fill(&reserve);
        all.push((reserve, tenant));
    }
    let runs = all.iter().map(|(reserve, _)| reserve.contig().longest_run().get());
    let most = runs.min().unwrap_or(0).min(all[0].0.len().get() / 2);
    let large = REQUEST_PAGES.into_iter().filter(|&pages| pages <= most).max().unwrap_or(1);
    let names = ["256m", "1g", &format!("{gib}g")];
    let case = |pages: u64, name: &str| format!("recall_{pages}_of_{name}");
    let (mut table, mut faults) = <(Samples, Faults)>::default();
    rounds("growth", (if quick { 15 } else { 100 }, NO_END), |_| {
        for ((reserve, tenant), name) in all.iter_mut().zip(names) {
            for pages in [1, large] {
                tenant.refill(reserve);
                let asked = ask(reserve, EVERY, Request::new(Pages::new(pages)), false);
                let Ok(mut held) = asked else {
                    faults.failures += 1;
                    continue;
                };
                let (case, source) = (case(pages, name), reserve.contig().source());
                table.add(&case, GLEBE, "us", held.elapsed.wall_us);
                table.note(&case, GLEBE, "us", &format!("of {source}"));
                faults.add(held.over_recall());
                faults.add(held.mark());
                faults.add(held.check());
            }
        }
        Ok::<_, Error>(())
    })?;
    table.report(report);
    for (what, pages) in [("1_page_", 1), ("", large)] {
        let [small, big] = [names[0], names[2]].map(|name| table.median(&case(pages, name), GLEBE));
        report.ratio(&ratio(what, gib), big / small);
    }
    all.iter().for_each(|(_, tenant)| tenant.report(report));
    faults.report(report);
    Ok(())
}

/// A reserve of transparent huge pages with the runs that come.
fn map_quickly(len: Bytes) -> Result<Reserve, Error> {
    let contig = Contig::options().source(Source::Thp).build(len);
    let contig = contig.map_err(|source| Error::Map { len, source })?;
    Ok(Reserve::options().build_on(contig)?)
}
