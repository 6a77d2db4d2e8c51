//! What it costs to have memory populated, beside the least that it can cost: zeroing it, and the
//! faults without zeroing.
//!
//! The zeroing loop runs over memory that is populated already, a base page at a time as a kernel
//! zeroes. The faults are those of a window onto resident huge pages. Loop and faults together are
//! what a kernel has to do that hands out zeroed pages. Unit: microseconds of CPU time, of all
//! threads of the process; the loops over what two threads populated are run by two. Each is
//! populated once before it counts: a virtual machine's host may not have given its pages yet.

use glebe::contig::{Contig, Source};
use glebe::sys::page_size;
use glebe::units::{Bytes, PageSize};

use super::memory::{self, Kind, Memory};
use super::{name, Error};
use crate::clock;
use crate::peers::StandingPool;
use crate::progress::Progress;
use crate::report::Report;
use crate::samples::{in_turn, Samples};
use crate::set_aside::SetAside;

const LEN: Bytes = Bytes::gib(4);
const LEN_QUICK: Bytes = Bytes::mib(128);
const ROUNDS: usize = 5;
const ROUNDS_QUICK: usize = 2;
/// The page of the pool that is populated from.
const POOL: PageSize = PageSize::new(2 << 20).expect("a power of two");
/// Of resident huge pages whose faults are counted.
const WINDOW: Bytes = Bytes::mib(128);
const UNIT: &str = "us cpu";

const GLEBE: &str = "glebe";
const TWO_THREADS: &str = "glebe_2_threads";
const HUGETLB: &str = Kind::Hugetlb.name();
const WAYS: [&str; 3] = [GLEBE, TWO_THREADS, HUGETLB];

fn obtain(way: &str, len: Bytes) -> Result<Memory, Error> {
    memory::fits(len)?;
    let pool = Contig::options().source(Source::Hugetlb(POOL)).in_order(false);
    match way {
        HUGETLB => Memory::obtain(Kind::Hugetlb, len),
        TWO_THREADS => Memory::glebe(pool.threads(2), len),
        _ => Memory::glebe(pool.threads(1), len),
    }
}

/// Measures and reports.
pub(super) fn measure(quick: bool, largest: Bytes, report: &mut Report) -> Result<(), Error> {
    let wanted = if quick { LEN_QUICK } else { LEN };
    let len = wanted.min(largest).min(memory::largest()?);
    let rounds = if quick { ROUNDS_QUICK } else { ROUNDS };
    let mut samples = Samples::default();
    let size = name(len);
    let aside =
        memory::fits(Bytes::new(len.get() * 3)).map_err(|why| why.to_string()).and_then(|()| {
            SetAside::new(POOL, Bytes::new(len.get() / 4 * 5).pages_up(POOL).get())
                .map_err(|why| why.to_string())
        });
    if let Err(why) = &aside {
        report.note(&format!("Populating: nothing was set aside: {why}."));
    }
    let mut progress = Progress::new("contig, populating", (rounds * WAYS.len()) as u64);
    let mut refused = Vec::new();
    for (turn, (_, way)) in in_turn(rounds, &WAYS).enumerate() {
        progress.update(turn as u64);
        if !refused.contains(&way) && !once(way, len, &mut samples) {
            refused.push(way);
        }
        if way == GLEBE {
            fault(&format!("faults_{size}"), len, &mut samples);
        }
    }
    drop(aside);
    samples.report(report);
    ratios(&samples, &size, report);
    Ok(())
}

/// Populates once; whether that could be.
fn once(way: &'static str, len: Bytes, samples: &mut Samples) -> bool {
    let case = |what: &str| format!("{what}_{}", name(len));
    drop(obtain(way, len));
    let before = clock::process_cpu();
    let had = obtain(way, len);
    let took = clock::micros(clock::process_cpu() - before);
    samples.outcome(&case("populate"), way, UNIT, had.as_ref().map(|_| took));
    let Ok(mut memory) = had else { return false };
    let threads = if way == TWO_THREADS { 2 } else { 1 };
    samples.add(&case("zeroing"), way, UNIT, zero(&mut memory, threads));
    true
}

/// The bare loop, over pages that are there, by threads with a share each.
fn zero(memory: &mut Memory, threads: usize) -> f64 {
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

fn zero_pages(bytes: &mut [u8]) {
    for page in bytes.chunks_mut(page_size().bytes().as_usize()) {
        page.fill(0);
        std::hint::black_box(page);
    }
}

/// Maps a window of resident huge pages; the time of as many as `len` has.
fn fault(case: &str, len: Bytes, samples: &mut Samples) {
    let window = WINDOW.min(len);
    let pages = window.pages_up(page_size());
    let share = len.get() as f64 / window.get() as f64;
    let sample = StandingPool::new(pages).map(|pool| pool.measure(pages));
    let took = match sample {
        Ok(sample) => sample.failed.map_or(Ok(sample.cpu_us * share), Err),
        Err(why) => Err(why.to_string()),
    };
    samples.outcome(case, StandingPool::NAME, UNIT, took);
}

fn ratios(samples: &Samples, size: &str, report: &mut Report) {
    let median = |what: &str, who| samples.median(&format!("{what}_{size}"), who);
    // Without huge pages of the pool nothing can be faulted in alone: then less is compared with.
    let faults = Some(median("faults", StandingPool::NAME)).filter(|us| us.is_finite());
    let bare = |who| median("zeroing", who) + faults.unwrap_or(0.0);
    report.ratio("populate_vs_zeroing_cpu", bare(GLEBE) / median("populate", GLEBE));
    for what in ["populate", "zeroing"] {
        let ratio = median(what, GLEBE) / median(what, TWO_THREADS);
        report.ratio(&format!("{what}_threads_2_vs_1_cpu"), ratio);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn faults_belong_to_what_populating_is_compared_with() {
        let mut samples = Samples::default();
        samples.add("populate_1g", GLEBE, UNIT, 200.0);
        samples.add("populate_1g", TWO_THREADS, UNIT, 250.0);
        samples.add("zeroing_1g", GLEBE, UNIT, 150.0);
        let mut report = Report::new("test", "", true);
        ratios(&samples, "1g", &mut report);
        assert!(report.json().contains("\"populate_vs_zeroing_cpu\": 0.75"), "{}", report.json());
        samples.add("faults_1g", StandingPool::NAME, UNIT, 30.0);
        ratios(&samples, "1g", &mut report);
        let json = report.json();
        assert!(json.contains("\"populate_vs_zeroing_cpu\": 0.9"), "{json}");
        assert!(json.contains("\"populate_threads_2_vs_1_cpu\": 0.8"), "{json}");
    }
}
