//! What it costs to have memory populated, beside the least that it can cost: zeroing it, and the
//! faults without zeroing.
//!
//! The zeroing loop runs over memory that is populated already, a base page at a time as a kernel
//! zeroes; beside it one memset over all, which a processor can stream past its caches, and the
//! loop over so little that it stays in the caches of each processor (`zeroing_cached`): what two
//! threads lose there they lose to each other's processor, what they lose in the others to the
//! memory that both wait for. The faults are those of a window onto resident huge pages. Loop and
//! faults together are what a kernel has to do that hands out zeroed pages. Unit: microseconds of
//! CPU time, of all threads of the process; the loops over what two threads populated are run by
//! two. `glebe` takes the pool's pages as they come, `glebe_in_order` puts them in order, and
//! `glebe_search` chooses the best of more. The pool has them set aside before (`populate`), or
//! they are found and added to it first (`grow_populate`), which the loop and the faults have
//! nothing of: 2 to 20 µs a page. Each is populated once before it counts: pages that the host of a
//! virtual machine has not given yet are its matter.

use glebe::contig::{Contig, Source};
use glebe::sys::page_size;
use glebe::units::{Bytes, PageSize};

use super::memory::{self, Kind, Memory};
use super::samples::Samples;
use super::{name, Error};
use crate::clock;
use crate::peers::StandingPool;
use crate::progress::Progress;
use crate::report::Report;
use crate::set_aside::SetAside;

const LEN: Bytes = Bytes::gib(4);
const LEN_QUICK: Bytes = Bytes::mib(128);
const ROUNDS: usize = 5;
const ROUNDS_QUICK: usize = 2;
/// The page of the pool that is populated from.
const POOL: PageSize = PageSize::new(2 << 20).expect("a power of two");
/// Of resident huge pages whose faults are counted.
const WINDOW: Bytes = Bytes::mib(128);
/// Of a share, what stays in a processor's own caches.
const CACHED: Bytes = Bytes::new(256 << 10);
/// The run for which a search looks at more than is needed.
const SEARCHED: Bytes = Bytes::mib(64);
const UNIT: &str = "us cpu";

/// One way to populate.
#[derive(Clone, Copy)]
enum Way {
    OneThread,
    TwoThreads,
    InOrder,
    Search,
    Thp,
    Kernel,
}

const WAYS: [Way; 6] =
    [Way::OneThread, Way::TwoThreads, Way::InOrder, Way::Search, Way::Thp, Way::Kernel];

impl Way {
    fn name(self) -> &'static str {
        match self {
            Self::OneThread => "glebe",
            Self::TwoThreads => "glebe_2_threads",
            Self::InOrder => "glebe_in_order",
            Self::Search => "glebe_search",
            Self::Thp => "glebe_thp",
            Self::Kernel => Kind::Hugetlb.name(),
        }
    }

    fn obtain(self, len: Bytes) -> Result<Memory, Error> {
        memory::fits(len)?;
        let pool = |order| Contig::options().source(Source::Hugetlb(POOL)).in_order(order);
        let options = match self {
            Self::OneThread => pool(false).threads(1),
            Self::TwoThreads => pool(false).threads(2),
            Self::InOrder => pool(true).threads(1),
            Self::Search => pool(true).threads(1).prefer_run(SEARCHED),
            Self::Thp => Contig::options().source(Source::Thp).pin(false).threads(1),
            Self::Kernel => return Memory::obtain(Kind::Hugetlb, len),
        };
        Memory::glebe(options, len)
    }
}

/// Measures and reports.
pub(super) fn measure(quick: bool, largest: Bytes, report: &mut Report) -> Result<(), Error> {
    let wanted = if quick { LEN_QUICK } else { LEN };
    let len = wanted.min(largest).min(memory::largest()?);
    let rounds = if quick { ROUNDS_QUICK } else { ROUNDS };
    let mut samples = Samples::default();
    let cases = Cases::of(len);
    let mut refused: Vec<(bool, &str)> = Vec::new();
    let mut progress = Progress::new("contig, populating", (2 * rounds * WAYS.len()) as u64);
    let mut turn = 0;
    for _ in 0..rounds {
        for grows in [false, true] {
            let aside = if grows { None } else { set_aside(len, &cases, &mut samples) };
            for way in WAYS {
                progress.update(turn);
                turn += 1;
                if !refused.contains(&(grows, way.name()))
                    && !once(way, grows, len, &cases, &mut samples)
                {
                    refused.push((grows, way.name()));
                }
            }
            drop(aside);
        }
        fault(&cases.faults, len, &mut samples);
    }
    progress.finish();
    samples.report(report);
    ratios(&samples, &cases, report);
    Ok(())
}

/// Pages for `len` and for a search, in the pool for as long as the answer lives.
fn set_aside(len: Bytes, cases: &Cases, samples: &mut Samples) -> Option<SetAside> {
    let pages = Bytes::new(len.get() / 4 * 5).pages_up(POOL).get();
    let aside = memory::fits(Bytes::new(len.get() * 3))
        .map_err(|why| why.to_string())
        .and_then(|()| SetAside::new(POOL, pages).map_err(|why| why.to_string()));
    let note = aside.as_ref().err().map(|why| format!("nothing set aside: {why}"));
    if let Some(why) = note {
        samples.note(&cases.populate, Way::OneThread.name(), UNIT, &why);
    }
    aside.ok()
}

/// Populates once; whether that could be.
fn once(way: Way, grows: bool, len: Bytes, cases: &Cases, samples: &mut Samples) -> bool {
    let who = way.name();
    let case = if grows { &cases.grow_populate } else { &cases.populate };
    drop(way.obtain(len));
    let before = clock::process_cpu();
    match way.obtain(len) {
        Ok(mut memory) => {
            let took = clock::process_cpu() - before;
            samples.add(case, who, UNIT, clock::micros(took));
            if let Some(contig) = memory.contig() {
                samples.note(case, who, UNIT, &format!("of {}", contig.source()));
            }
            if !grows {
                let threads = if matches!(way, Way::TwoThreads) { 2 } else { 1 };
                let loops = [&cases.zeroing, &cases.memset, &cases.cached];
                for (case, took) in loops.into_iter().zip(zero(&mut memory, threads)) {
                    samples.add(case, who, UNIT, took);
                }
            }
            true
        }
        Err(why) => {
            samples.note(case, who, UNIT, &why.to_string());
            false
        }
    }
}

/// The names of the rows.
struct Cases {
    populate: String,
    grow_populate: String,
    zeroing: String,
    memset: String,
    cached: String,
    faults: String,
}

impl Cases {
    fn of(len: Bytes) -> Self {
        let [populate, grow_populate, zeroing, memset, cached, faults] =
            ["populate", "grow_populate", "zeroing", "memset", "zeroing_cached", "faults"]
                .map(|what| format!("{what}_{}", name(len)));
        Self { populate, grow_populate, zeroing, memset, cached, faults }
    }
}

/// The bare loop, over pages that are there, by threads with a share each: a base page at a time,
/// then all at once, then a base page at a time again and again over the first of the share.
fn zero(memory: &mut Memory, threads: usize) -> [f64; 3] {
    let page = page_size().bytes().as_usize();
    [(page, usize::MAX), (usize::MAX, usize::MAX), (page, CACHED.as_usize())].map(|(step, most)| {
        let before = clock::process_cpu();
        let share = memory.bytes().len().div_ceil(threads);
        std::thread::scope(|scope| {
            let mut shares = memory.bytes_mut().chunks_mut(share);
            let own = shares.next();
            for share in shares {
                scope.spawn(move || zero_in_steps(share, step, most));
            }
            own.into_iter().for_each(|share| zero_in_steps(share, step, most));
        });
        clock::micros(clock::process_cpu() - before)
    })
}

/// As many bytes as there are, in the first `most` of them.
fn zero_in_steps(bytes: &mut [u8], step: usize, most: usize) {
    let mut left = bytes.len();
    while left > 0 {
        let now = left.min(most);
        for part in bytes[..now].chunks_mut(step) {
            part.fill(0);
            std::hint::black_box(part);
        }
        left -= now;
    }
}

/// Maps a window of resident huge pages; the time of as many as `len` has.
fn fault(case: &str, len: Bytes, samples: &mut Samples) {
    let window = WINDOW.min(len);
    let pages = window.pages_up(page_size());
    let sample = StandingPool::new(pages).map(|pool| pool.measure(pages));
    let who = StandingPool::NAME;
    match sample {
        Ok(sample) if sample.failed.is_none() => {
            let share = len.get() as f64 / window.get() as f64;
            samples.add(case, who, UNIT, sample.cpu_us * share);
        }
        Ok(sample) => samples.note(case, who, UNIT, &sample.failed.unwrap_or_default()),
        Err(why) => samples.note(case, who, UNIT, &why.to_string()),
    }
}

fn ratios(samples: &Samples, cases: &Cases, report: &mut Report) {
    // Without huge pages of the pool nothing can be faulted in alone: then less is compared with.
    let faults = Some(samples.median(&cases.faults, StandingPool::NAME));
    let faults = faults.filter(|us| us.is_finite()).unwrap_or(0.0);
    let took = |who| samples.median(&cases.populate, who);
    let vs = |loops: &str, who| (samples.median(loops, who) + faults) / took(who);
    report.ratio("populate_vs_zeroing_cpu", vs(&cases.zeroing, "glebe"));
    let grown = samples.median(&cases.grow_populate, "glebe");
    let bare = samples.median(&cases.zeroing, "glebe") + faults;
    report.ratio("grow_populate_vs_zeroing_cpu", bare / grown);
    report.ratio("populate_in_order_vs_zeroing_cpu", vs(&cases.zeroing, "glebe_in_order"));
    report.ratio("populate_thp_vs_zeroing_cpu", vs(&cases.zeroing, "glebe_thp"));
    report.ratio("populate_vs_memset_cpu", vs(&cases.memset, "glebe"));
    report.ratio("populate_vs_hugetlb_cpu", took("hugetlb") / took("glebe"));
    report.ratio("order_cost", took("glebe_in_order") / took("glebe"));
    report.ratio("search_cost", took("glebe_search") / took("glebe"));
    report.ratio("populate_threads_2_vs_1_cpu", took("glebe") / took("glebe_2_threads"));
    let of_two = |loops| samples.median(loops, "glebe") / samples.median(loops, "glebe_2_threads");
    report.ratio("zeroing_threads_2_vs_1_cpu", of_two(&cases.zeroing));
    report.ratio("memset_threads_2_vs_1_cpu", of_two(&cases.memset));
    report.ratio("zeroing_cached_threads_2_vs_1_cpu", of_two(&cases.cached));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn faults_belong_to_what_populating_is_compared_with() {
        let mut samples = Samples::default();
        samples.add("populate_1g", "glebe", UNIT, 200.0);
        samples.add("populate_1g", "glebe_2_threads", UNIT, 250.0);
        samples.add("zeroing_1g", "glebe", UNIT, 150.0);
        let mut report = Report::new("test", "", true);
        ratios(&samples, &Cases::of(Bytes::gib(1)), &mut report);
        assert!(report.json().contains("\"populate_vs_zeroing_cpu\": 0.75"), "{}", report.json());
        samples.add("faults_1g", StandingPool::NAME, UNIT, 30.0);
        ratios(&samples, &Cases::of(Bytes::gib(1)), &mut report);
        let json = report.json();
        assert!(json.contains("\"populate_vs_zeroing_cpu\": 0.9"), "{json}");
        assert!(json.contains("\"populate_threads_2_vs_1_cpu\": 0.8"), "{json}");
    }
}
