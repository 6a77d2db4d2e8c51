//! The benchmark `reserve` times puts and gets of pages, requests for blocks under load, their cost
//! for the load, and recalls in a small and a large reserve.
//!
//! The benchmark requests blocks as first-class code does, while a tenant keeps pages in the same
//! reserve's page cache. Each block and page has its own bytes, so that lost and stray writes are
//! counted. Units: base pages, microseconds.

mod background;
mod evacuation;
pub(crate) mod keyed;
mod page_ops;
mod recall;
mod requests;
mod system;
mod tenant;

use glebe::contig::{self, Contig};
use glebe::internal::sys::machine::meminfo;
use glebe::internal::sys::page_size;
use glebe::reserve::Reserve;
use glebe::units::{Bytes, Pages};

use crate::memory::Way;
use crate::report::{Report, GLEBE};
use crate::Outcome;
use background::Background;
use tenant::Tenant;

/// Timed sizes in base pages; the last is not a power of two.
const REQUEST_PAGES: [u64; 8] = [1, 512, 1024, 2048, 4096, 8192, 16384, LARGEST];
const LARGEST: u64 = 32000;

const KERNEL: [(&str, Way); 3] = [SURPLUS, THP, ("plain", Way::Plain)];
const SURPLUS: (&str, Way) = ("surplus_hugetlb", Way::Hugetlb);
const THP: (&str, Way) = ("thp", Way::Thp);

pub(crate) fn run(report: &mut Report) -> Outcome {
    // A reserve takes at most a quarter of available memory, because the memory to compare with
    // takes another quarter. A quick run still exceeds the processor's caches.
    let sizes = report.plan([Bytes::mib(256), Bytes::mib(512)], [Bytes::gib(1); 2]);
    let quarter = Bytes::new(meminfo::available()?.get() / 4);
    let [ops, requested] = sizes.map(|wanted| wanted.min(quarter));
    report.check("failures", 0);
    page_ops::measure(&map(ops)?, report)?;
    requests(&map(requested)?, report)?;
    recall::growth(report)?;
    report.note(
        "Kernel memory comes zeroed and is counted so; the reserve's does in the rows `zeroed`. \
         The kernel promises no contiguity beyond a huge page, and may move what is no hugetlb \
         page: for one page, `plain` is contiguous by itself but does not stay where it is.",
    );
    Ok(())
}

fn requests(reserve: &Reserve, report: &mut Report) -> Outcome {
    let contig = reserve.contig();
    let why = reserve.why_counted().map_or(String::new(), |why| format!(" ({why})"));
    report.note(&format!(
        "reserve: {} of {}, longest run {}; writers {}{why}",
        reserve.len().bytes(page_size()),
        contig.source(),
        contig.longest_run(),
        reserve.writers(),
    ));
    let mut tenant = Tenant::new(reserve)?;
    let background = Background::new(&report.options).inspect_err(|why| {
        report.remark(system::CASE, "alone", "s", &why.to_string());
        report.note("load while requests are timed: none");
    });
    match &background {
        Err(_) => recall::measure(reserve, &mut tenant, report),
        Ok(background) => {
            let what = &background.what;
            report.note(&format!("load while requests are timed: {what}, again and again"));
            background.during(|| recall::measure(reserve, &mut tenant, report))?;
        }
    }
    system::measure(background.ok().as_ref(), reserve, &mut tenant, report)?;
    evacuation::measure(reserve, &mut tenant, report)?;
    tenant.report(report);
    Ok(())
}

fn map(len: Bytes) -> Outcome<Reserve> {
    let run = Pages::new(LARGEST).bytes(page_size()).min(Bytes::new(len.get() / 2));
    map_on(Contig::options().prefer_run(run), len)
}

/// Makes a reserve of `len`, rounded up to a multiple of 2 MiB.
fn map_on(options: contig::Options, len: Bytes) -> Outcome<Reserve> {
    let len = Bytes::new(len.get().next_multiple_of(Bytes::mib(2).get()));
    let contig = options.build(len).map_err(|why| format!("a reserve of {len}: {why}"))?;
    Ok(Reserve::options().build_on(contig)?)
}

fn page_buffer() -> Vec<u8> {
    vec![0; page_size().bytes().as_usize()]
}
