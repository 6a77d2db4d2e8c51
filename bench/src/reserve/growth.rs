//! How the time of a recall grows with the reserve: the same request of a small and of a large one.
//!
//! In a quick run both are of transparent huge pages, which are had in a fraction of the time that
//! long runs take; the request is the largest that both have a run for.

use glebe::contig::{Contig, Source};
use glebe::reserve::{Request, Reserve};
use glebe::sys::meminfo;
use glebe::units::{Bytes, Pages};

use super::requests::{ask, Faults, Marking};
use super::tenant::Tenant;
use super::{map, Error, REQUEST_PAGES};
use crate::progress::Progress;
use crate::report::Report;
use crate::summary::Summary;

const SMALL: Bytes = Bytes::mib(256);
const LARGE_GIB: u64 = 8;
const ROUNDS: u64 = 100;
const ROUNDS_QUICK: u64 = 15;

/// Measures and reports both, their requests in turn, and their ratio.
pub(super) fn measure(quick: bool, report: &mut Report) -> Result<(), Error> {
    report.ratio(&name(LARGE_GIB), f64::NAN); // there in any case
    let gib = LARGE_GIB.min(meminfo::available()?.get() / Bytes::gib(1).get() * 2 / 3);
    if gib < LARGE_GIB {
        let why = format!("no memory for {LARGE_GIB} GiB; free half as much again");
        report.absent("growth", "glebe", "us", &why);
    }
    if gib == 0 {
        return Ok(());
    }
    let mut both = Vec::new();
    for len in [SMALL, Bytes::gib(gib)] {
        let reserve = if quick { map_quickly(len)? } else { map(len, Reserve::builder())? };
        let mut tenant = Tenant::new(reserve.page_cache().pool("growth")?);
        tenant.fill(&reserve);
        both.push((reserve, tenant, Vec::new()));
    }
    let runs = both.iter().map(|(reserve, ..)| reserve.contig().longest_run().get());
    let most = runs.min().unwrap_or(0).min(both[0].0.len().get() / 2);
    let pages = REQUEST_PAGES.into_iter().filter(|&p| p <= most).max().unwrap_or(1);
    let rounds = if quick { ROUNDS_QUICK } else { ROUNDS };
    let mut progress = Progress::new("growth", rounds);
    let mut faults = Faults::default();
    for round in 0..rounds {
        for (reserve, tenant, samples) in &mut both {
            tenant.refill(reserve);
            match ask(reserve, Request::new(Pages::new(pages)), false) {
                Ok(mut held) => {
                    samples.push(held.elapsed.wall_us);
                    faults.add(held.over_recall());
                    faults.add(held.mark(Marking::Pages));
                    faults.add(held.check(Marking::Pages));
                }
                Err(_) => faults.failures += 1,
            }
        }
        progress.update(round + 1);
    }
    progress.finish();
    let mut medians = Vec::new();
    let large = format!("{gib}g");
    for ((reserve, tenant, samples), name) in both.iter().zip(["256m", &large]) {
        report.row(&format!("recall_{pages}_of_{name}"), "glebe", "us", samples);
        report.remark(&format!("of {}", reserve.contig().source()));
        medians.extend(Summary::of(samples).map(|s| s.median));
        report.check("failures", tenant.failures);
    }
    if let [small, big] = medians[..] {
        report.ratio(&name(gib), big / small);
    }
    report.check("failures", faults.failures);
    report.check("stray_writes", faults.stray_writes);
    report.check("over_recall", faults.over_recall);
    report.check("not_contiguous", faults.not_contiguous);
    Ok(())
}

fn name(gib: u64) -> String {
    format!("growth_256m_to_{gib}g")
}

/// A reserve of transparent huge pages with the runs that come.
fn map_quickly(len: Bytes) -> Result<Reserve, Error> {
    let contig = Contig::options().source(Source::Thp).map(len);
    let contig = contig.map_err(|source| Error::Map { len, source })?;
    Ok(Reserve::builder().build(contig)?)
}
