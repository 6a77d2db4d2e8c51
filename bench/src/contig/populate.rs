//! Compares populating memory with the least possible cost: zeroing the memory, plus faults that
//! zero nothing.
//!
//! Zeroing runs over populated memory, a base page at a time as in a kernel. The faults are
//! measured on a window of resident huge pages. Unit: microseconds of CPU time of all threads; two
//! threads zero what two threads populated. Each turn first populates once without timing, so that
//! a virtual machine's host has given its pages.

use glebe::contig::{Contig, Source};
use glebe::page_size;
use glebe::units::{Bytes, PageSize};

use super::{name, GLEBE, HUGETLB};
use crate::clock;
use crate::memory::{self, HugeFile, Memory, SetAside, Way};
use crate::report::Report;
use crate::turns::turns;
use crate::Outcome;

const POOL: PageSize = PageSize::new(2 << 20).expect("a power of two");
const WINDOW: Bytes = Bytes::mib(128);
const UNIT: &str = "us cpu";
const TWO_THREADS: &str = "glebe_2_threads";
const ALL: [(&str, usize); 3] = [(GLEBE, 1), (TWO_THREADS, 2), (HUGETLB, 1)];

fn obtain(who: &str, threads: usize, len: Bytes) -> Outcome<Memory> {
    let pool = Contig::options().source(Source::Hugetlb(POOL)).in_order(false);
    match who {
        HUGETLB => Way::Hugetlb.obtain(len),
        _ => Memory::glebe(pool.threads(threads), len),
    }
}

pub(super) fn measure(report: &mut Report) -> Outcome {
    let len = report.plan(Bytes::mib(128), Bytes::gib(4)).min(memory::largest()?);
    let size = name(len);
    let aside = memory::fits(Bytes::new(len.get() * 3))
        .and_then(|()| SetAside::new(POOL, Bytes::new(len.get() / 4 * 5).pages_up(POOL).get()));
    if let Err(why) = &aside {
        report.note(&format!("Populating: nothing was set aside: {why}."));
    }
    for (_, (who, threads)) in turns("contig, populating", report.plan(1, 5), &ALL) {
        drop(obtain(who, threads, len));
        let before = clock::process_cpu();
        let had = obtain(who, threads, len);
        let took = clock::micros(clock::process_cpu() - before);
        report.outcome(&format!("populate_{size}"), who, UNIT, had.as_ref().map(|_| took));
        if let Ok(mut memory) = had {
            report.add(&format!("zeroing_{size}"), who, UNIT, zero(&mut memory, threads));
        }
        if who == GLEBE {
            report.outcome(&format!("faults_{size}"), HugeFile::NAME, UNIT, faults(len));
        }
    }
    drop(aside);
    ratios(&size, report);
    Ok(())
}

fn zero(memory: &mut Memory, threads: usize) -> f64 {
    let zero_pages = |bytes: &mut [u8]| {
        for page in bytes.chunks_mut(page_size().bytes().as_usize()) {
            page.fill(0);
            std::hint::black_box(page);
        }
    };
    let before = clock::process_cpu();
    let share = memory.bytes().len().div_ceil(threads);
    std::thread::scope(|scope| {
        let mut shares = memory.bytes_mut().chunks_mut(share);
        let own = shares.next();
        for share in shares {
            scope.spawn(move || zero_pages(share));
        }
        own.into_iter().for_each(zero_pages);
    });
    clock::micros(clock::process_cpu() - before)
}

/// Returns the CPU microseconds of faults on a window of resident huge pages, scaled to `len`
/// bytes.
fn faults(len: Bytes) -> Outcome<f64> {
    let window = WINDOW.min(len);
    let us = HugeFile::new(window)?.window(window)?.took.cpu_us;
    Ok(us * len.get() as f64 / window.get() as f64)
}

fn ratios(size: &str, report: &mut Report) {
    let median = |what: &str, who| report.median(&format!("{what}_{size}"), who);
    // Without pool pages, faults were not measured, and the ratio compares with zeroing only.
    let faults = Some(median("faults", HugeFile::NAME)).filter(|us| us.is_finite());
    let bare = median("zeroing", GLEBE) + faults.unwrap_or(0.0);
    let by_two = |what| median(what, GLEBE) / median(what, TWO_THREADS);
    let ratios = [
        ("populate_vs_zeroing_cpu", bare / median("populate", GLEBE)),
        ("populate_threads_2_vs_1_cpu", by_two("populate")),
        ("zeroing_threads_2_vs_1_cpu", by_two("zeroing")),
    ];
    ratios.into_iter().for_each(|(name, ratio)| report.ratio(name, ratio));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn faults_belong_to_what_populating_is_compared_with() {
        let mut report = Report::default();
        for (case, us) in [("populate_1g", 200.0), ("zeroing_1g", 150.0)] {
            report.add(case, GLEBE, UNIT, us);
        }
        ratios("1g", &mut report);
        assert!(report.json().contains("\"populate_vs_zeroing_cpu\": 0.75"), "{}", report.json());
        report.add("faults_1g", HugeFile::NAME, UNIT, 30.0);
        ratios("1g", &mut report);
        assert!(report.json().contains("\"populate_vs_zeroing_cpu\": 0.9"), "{}", report.json());
    }
}
