//! Measures the time to get a page back from compressed memory: by a touch of a region, a touch of
//! memory that the kernel swapped to zram, or a pin of a store.
//!
//! No touch or pin evicts, because each side has room for all pages. Sides take turns: each is made
//! cold, then touched in random order. The first round warms up and does not count. Unit:
//! microseconds per touch; nanoseconds for pins of pages in memory.

use std::hint::black_box;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::Barrier;
use std::thread;
use std::time::Duration;

use glebe::page_size;
use glebe::swap::{Key, Store};
use glebe::units::{Bytes, Pages};

use super::kernel::KernelSwap;
use super::touched::{page_bytes, pool_limit, stamp, stamped, Corpus, Touched, Wrong};
use super::trace::shuffled;
use super::{KERNEL, REGION};
use crate::clock::{micros, wall};
use crate::report::Report;
use crate::reserve::keyed::Random;
use crate::summary::Summary;
use crate::turns::{by_round, on_threads, turns};
use crate::Outcome;

const THREADS: [usize; 3] = [1, 2, 4];
const STORE: &str = "glebe store";
const P99: &str = "fault_p99";
const UNIT: &str = "us";
const TRIES: u32 = 100;
/// Bytes kept per page beside its compressed copy.
const SLOT: f64 = 32.0;
const HOT: usize = 1024;
const PASSES: usize = 64;

fn case(threads: usize) -> String {
    match threads {
        1 => "fault".into(),
        more => format!("fault_{more}_threads"),
    }
}

pub(super) fn measure(corpus: &Corpus<'_>, report: &mut Report) -> Outcome {
    let (pages, count) = report.plan((512, 2), (8192, 9));
    let len = Pages::new(pages).bytes(page_size());
    let twice = len + len;
    let mut all = Vec::new();
    match Touched::region(pages, twice) {
        Ok(region) => all.push((REGION, region)),
        Err(why) => report.remark("fault", REGION, UNIT, &why.to_string()),
    }
    let swap = KernelSwap::new(twice);
    match &swap {
        Ok(_) => all.push((KERNEL, Touched::plain(pages)?)),
        Err(why) => report.remark("fault", KERNEL, UNIT, &why.to_string()),
    }
    all.iter_mut().for_each(|(_, memory)| memory.fill(corpus));
    let mut pins = Pins::new(corpus, pages, twice)?;
    let sides: Vec<Option<usize>> = (0..all.len()).map(Some).chain([None]).collect();
    for (round, side) in turns("faults", count, &sides) {
        let is_counted = round > 0;
        let Some((who, memory)) = side.map(|at| &all[at]) else {
            pins.chill()?;
            let us = pins.pin_all(report)?;
            if is_counted {
                tell(1, STORE, &us, report);
            }
            continue;
        };
        for threads in THREADS {
            chill(memory, &swap, len)?;
            if round == 0 && threads == 1 {
                overhead(memory, report);
            }
            let us = touch_all(memory, pages, threads, report);
            if is_counted {
                tell(threads, who, &us, report);
            }
        }
    }
    drop(all);
    pins.hot(report)?;
    ratios(report);
    Ok(())
}

fn tell(threads: usize, who: &str, us: &[f64], report: &mut Report) {
    let case = if who == STORE { "cold_pin".into() } else { case(threads) };
    report.row(&case, who, UNIT, us);
    if let Some(summary) = Summary::of(us) {
        report.add(&format!("{case}_round_p50"), who, UNIT, summary.median);
        let p99 = if threads == 1 { P99.into() } else { format!("{P99}_{threads}_threads") };
        let p99 = if who == STORE { "cold_pin_p99".into() } else { p99 };
        report.add(&p99, who, UNIT, summary.p99);
    }
}

fn ratios(report: &mut Report) {
    for threads in THREADS {
        let case = case(threads);
        let p50 = format!("{case}_round_p50");
        let p99 = case.replacen("fault", P99, 1);
        for (row, name) in [(&p50, &case), (&p99, &p99)] {
            let (ours, kernels) = (report.of(row, REGION, UNIT), report.of(row, KERNEL, UNIT));
            let ratio = by_round(kernels, ours);
            report.ratio(&format!("{name}_vs_zram_swap"), ratio);
        }
    }
    let pins = report.of("cold_pin_round_p50", STORE, UNIT);
    let ratio = by_round(report.of("fault_round_p50", KERNEL, UNIT), pins);
    report.ratio("cold_pin_vs_zram_fault", ratio);
    report.note(
        "fault: nothing has to leave; bars: fault_vs_zram_swap 0.71 (1.4 times as long), p99 0.5, \
         cold_pin_vs_zram_fault 1.33. Of more threads than processors the p99 is the scheduler's.",
    );
}

/// Makes `memory` cold. Repeats the page-out of plain memory until the kernel has swapped 90 % of
/// `len`, because the kernel skips pages in use. Fails after [`TRIES`] tries.
fn chill(memory: &Touched, swap: &Outcome<KernelSwap>, len: Bytes) -> Outcome {
    let mut held = Bytes::ZERO;
    for _ in 0..TRIES {
        memory.chill()?;
        let (None, Ok(swap)) = (memory.as_region(), swap) else { return Ok(()) };
        held = swap.holds()?;
        if held.get() >= len.get() / 10 * 9 {
            return Ok(());
        }
        thread::sleep(Duration::from_millis(10));
    }
    Err(format!("{held} of {len} were swapped, told {TRIES} times").into())
}

fn touch_all(memory: &Touched, pages: u64, threads: usize, report: &mut Report) -> Vec<f64> {
    let order = shuffled(pages, &mut Random::new(5));
    let share = order.len() / threads;
    let work = |nth: usize, begin: &Barrier| {
        // Prepares stack, buffers and samples before the clock starts.
        if let Some(region) = memory.as_region() {
            let _ = region.arm_thread();
        }
        let (mut us, mut wrong) = (vec![1.0; share], Wrong::default());
        begin.wait();
        for (us, page) in us.iter_mut().zip(&order[nth * share..]) {
            let page = u64::from(*page);
            let start = wall();
            let found = black_box(memory.stamp(page));
            *us = micros(wall() - start);
            wrong.look(found, stamp(page, 0));
        }
        (us, wrong)
    };
    let mut all = Vec::new();
    for (us, wrong) in on_threads(threads, work) {
        super::judged(wrong, report);
        all.extend(us);
    }
    all
}

fn overhead(memory: &Touched, report: &mut Report) {
    let Some(stats) = memory.as_region().map(|region| region.stats()) else { return };
    let bytes = stats.block_bytes as f64 + stats.raw as f64 * page_bytes() as f64;
    let held = stats.pool.bytes(page_size()).get() as f64 + stats.stored.get() as f64 * SLOT;
    report.add("stored_overhead_percent", REGION, "%", (held / bytes - 1.0) * 100.0);
    let ratio = stats.stored.bytes(page_size()).get() as f64 / bytes;
    report.note(&format!("pages of the corpus compress {ratio:.2} times, one by one"));
}

struct Pins {
    store: Store,
    keys: Vec<Key>,
}

impl Pins {
    fn new(corpus: &Corpus<'_>, pages: u64, budget: Bytes) -> Outcome<Self> {
        let store = Store::options().pool_limit(pool_limit(budget)).build(budget)?;
        let insert = |page| store.insert(&stamped(corpus, page, 0));
        let keys = (0..pages).map(insert).collect::<Result<_, _>>()?;
        Ok(Self { store, keys })
    }

    fn chill(&mut self) -> Outcome {
        let budget = self.store.budget();
        self.store.set_budget(page_size().bytes())?;
        Ok(self.store.set_budget(budget)?)
    }

    fn pin_all(&self, report: &mut Report) -> Outcome<Vec<f64>> {
        let (mut us, mut wrong) = (vec![1.0; self.keys.len()], Wrong::default());
        let order = shuffled(self.keys.len() as u64, &mut Random::new(5));
        for (us, nth) in us.iter_mut().zip(order) {
            let start = wall();
            let pin = self.store.pin(self.keys[nth as usize])?;
            *us = micros(wall() - start);
            let found = pin[..8].try_into().map_or(0, u64::from_ne_bytes);
            wrong.look(found, stamp(u64::from(nth), 0));
        }
        super::judged(wrong, report);
        Ok(us)
    }

    fn hot(&self, report: &mut Report) -> Outcome {
        let hot = &self.keys[..HOT.min(self.keys.len())];
        hot.iter().try_for_each(|key| self.store.pin(*key).map(drop))?;
        for _ in 0..report.plan(3, 20) {
            let start = wall();
            for key in (0..PASSES).flat_map(|_| hot) {
                black_box(&*self.store.pin(*key)?);
            }
            let each = |took| micros(took) * 1e3 / (PASSES * hot.len()) as f64;
            report.add("hot_pin", STORE, "ns", each(wall() - start));
            // Times the least that a pin needs.
            let words: Vec<_> = hot.iter().map(|_| [const { AtomicU64::new(0) }; 4]).collect();
            let start = wall();
            for [word, ..] in (0..PASSES).flat_map(|_| &words) {
                black_box(word.fetch_add(1, Ordering::Acquire));
                word.fetch_sub(1, Ordering::Release);
            }
            report.add("hot_pin", "two atomic additions", "ns", each(wall() - start));
        }
        Ok(())
    }
}
