//! How the time of a recall grows with the reserve: the same requests of a small, a middling and a
//! large one.
//!
//! In a quick run all are of transparent huge pages, which are had in a fraction of the time that
//! long runs take; the request is the largest that all have a run for.

use glebe::contig::{Contig, Source};
use glebe::reserve::{Request, Reserve};
use glebe::sys::meminfo;
use glebe::units::{Bytes, Pages};

use super::requests::{ask, Faults, Marking, EVERY};
use super::tenant::Tenant;
use super::{map, Error, REQUEST_PAGES};
use crate::progress::Progress;
use crate::report::Report;
use crate::summary::Summary;

const SMALL: Bytes = Bytes::mib(256);
const MIDDLE: Bytes = Bytes::gib(1);
const LARGE_GIB: u64 = 8;
const ROUNDS: u64 = 100;
const ROUNDS_QUICK: u64 = 15;

/// Measures and reports all, their requests in turn, and the ratios of the last to the first.
pub(super) fn measure(quick: bool, report: &mut Report) -> Result<(), Error> {
    report.ratio(&name_of_one(LARGE_GIB), f64::NAN); // there in any case
    report.ratio(&name(LARGE_GIB), f64::NAN);
    let gib = LARGE_GIB.min(meminfo::available()?.get() / Bytes::gib(1).get() * 2 / 3);
    if gib < LARGE_GIB {
        let why = format!("no memory for {LARGE_GIB} GiB; free half as much again");
        report.absent("growth", "glebe", "us", &why);
    }
    if gib == 0 {
        return Ok(());
    }
    let mut all = Vec::new();
    for len in [SMALL, MIDDLE, Bytes::gib(gib)] {
        let reserve = if quick { map_quickly(len)? } else { map(len, Reserve::builder())? };
        let mut tenant = Tenant::new(reserve.page_cache().pool("growth")?);
        tenant.fill(&reserve);
        all.push(Sized { reserve, tenant, samples: [Vec::new(), Vec::new()] });
    }
    let runs = all.iter().map(|sized| sized.reserve.contig().longest_run().get());
    let most = runs.min().unwrap_or(0).min(all[0].reserve.len().get() / 2);
    let pages = REQUEST_PAGES.into_iter().filter(|&p| p <= most).max().unwrap_or(1);
    let rounds = if quick { ROUNDS_QUICK } else { ROUNDS };
    let mut progress = Progress::new("growth", rounds);
    let mut faults = Faults::default();
    for round in 0..rounds {
        for sized in &mut all {
            sized.ask([1, pages], &mut faults);
        }
        progress.update(round + 1);
    }
    progress.finish();
    let large = format!("{gib}g");
    for (which, pages) in [1, pages].into_iter().enumerate() {
        let mut medians = Vec::new();
        for (sized, name) in all.iter().zip(["256m", "1g", &large]) {
            let samples = &sized.samples[which];
            report.row(&format!("recall_{pages}_of_{name}"), "glebe", "us", samples);
            report.remark(&format!("of {}", sized.reserve.contig().source()));
            medians.extend(Summary::of(samples).map(|s| s.median));
        }
        if let [small, .., big] = medians[..] {
            let name = if which == 0 { name_of_one(gib) } else { name(gib) };
            report.ratio(&name, big / small);
        }
    }
    for sized in &all {
        report.check("failures", sized.tenant.failures);
    }
    report.check("failures", faults.failures);
    report.check("stray_writes", faults.stray_writes);
    report.check("over_recall", faults.over_recall);
    report.check("not_contiguous", faults.not_contiguous);
    Ok(())
}

/// A full reserve of one size, and how long its requests took.
struct Sized {
    reserve: Reserve,
    tenant: Tenant,
    samples: [Vec<f64>; 2],
}

impl Sized {
    /// One request of each number of pages, one every [`EVERY`].
    fn ask(&mut self, requests: [u64; 2], faults: &mut Faults) {
        for (pages, samples) in requests.into_iter().zip(&mut self.samples) {
            self.tenant.refill(&self.reserve);
            match ask(&self.reserve, EVERY, Request::new(Pages::new(pages)), false) {
                Ok(mut held) => {
                    samples.push(held.elapsed.wall_us);
                    faults.add(held.over_recall());
                    faults.add(held.mark(Marking::Pages));
                    faults.add(held.check(Marking::Pages));
                }
                Err(_) => faults.failures += 1,
            }
        }
    }
}

/// The ratio of blocks of one page.
fn name_of_one(gib: u64) -> String {
    format!("growth_1_page_256m_to_{gib}g")
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
