//! A page in and out of the cache, against a copy of a page as cold; and gets by two threads.
//!
//! The cache is full and the pages of a batch are random ones of the whole reserve; the copies are
//! from and to random pages of a second reserve's block, of the same size and kind. Timed in
//! batches of [`BATCH`], in turns, since the clock costs a part of one operation.
//! Unit: microseconds an operation.

use std::ops::Range;

use glebe::reserve::{Namespace, Request, Reserve};
use glebe::sys::page_size;

use super::keyed::Random;
use super::tenant::{Tenant, OBJECT};
use super::{map, page_buffer, Error, GLEBE};
use crate::clock::{self, Stopwatch};
use crate::interrupt;
use crate::report::Report;
use crate::samples::{rounds, Samples, NO_END};

const BATCH: u64 = 64;
const COPY: &str = "copy";

/// Measures and reports; `reserve` is empty.
pub(super) fn measure(reserve: &Reserve, quick: bool, report: &mut Report) -> Result<(), Error> {
    let pool = reserve.page_cache().namespace("page_ops")?;
    let mut tenant = Tenant::new(pool.clone());
    tenant.fill(reserve);
    let mut table = Samples::default();
    let gets = if quick { 20_000 } else { 200_000 };
    rounds("threads", (9, NO_END), |_| {
        for (case, threads) in [("get_4k_1_thread", 1), ("get_4k_2_threads", 2)] {
            table.add(case, GLEBE, "us cpu", cpu_each(&pool, tenant.next(), threads, gets));
        }
        Ok::<_, Error>(())
    })?;
    let other = map(reserve.len().bytes(page_size()), Reserve::options())?;
    let mut block = other.alloc(Request::new(other.len()).any())?;
    let bytes = block.bytes_mut()?;
    let present = tenant.next().saturating_sub(reserve.len().get());
    let (mut random, mut page, mut misses) = (Random::new(3), page_buffer(), 0);
    let batches = if quick { 2000 } else { 20_000 };
    for _ in 0..batches {
        interrupt::check();
        let mut hits = 0;
        let get = timed(|| {
            let index = present + random.below(tenant.next() - present);
            hits += u64::from(pool.get(OBJECT, index, &mut page)?);
            Ok(())
        })?;
        if hits == BATCH {
            table.add("get_4k", GLEBE, "us", get);
        }
        misses += BATCH - hits;
        let copy = timed(|| {
            page.copy_from_slice(&bytes[random_page(&mut random, bytes.len())]);
            Ok(())
        })?;
        table.add("get_4k", COPY, "us", copy);
    }
    let mut next = 0;
    for _ in 0..batches {
        interrupt::check();
        let put = timed(|| {
            // New pages, each in place of an old one. Not looked at again: the contents are not
            // the tenant's.
            next += 1;
            pool.put(OBJECT + 1, next, &page)?;
            Ok(())
        })?;
        table.add("put_4k", GLEBE, "us", put);
        let copy = timed(|| {
            let at = random_page(&mut random, bytes.len());
            bytes[at].copy_from_slice(&page);
            Ok(())
        })?;
        table.add("put_4k", COPY, "us", copy);
    }
    if misses > 0 {
        let why = format!("batches with a miss left out ({misses} misses)");
        table.note("get_4k", GLEBE, "us", &why);
    }
    let why = "of new pages, each of which evicts one where the cache chooses";
    table.note("put_4k", GLEBE, "us", why);
    table.report(report);
    ratios(&table, report);
    tenant.report(report);
    Ok(())
}

fn ratios(table: &Samples, report: &mut Report) {
    for (ratio, case) in [("get_vs_copy", "get_4k"), ("put_vs_copy", "put_4k")] {
        let [copy, own] = [COPY, GLEBE].map(|who| table.median(case, who));
        report.ratio(ratio, copy / own);
    }
    let [one, two] = ["get_4k_1_thread", "get_4k_2_threads"];
    let cpu = |case| table.median(case, GLEBE);
    report.ratio("threads_2_vs_1_cpu", cpu(one) / cpu(two));
}

/// Microseconds of one of a batch.
fn timed(mut operation: impl FnMut() -> Result<(), Error>) -> Result<f64, Error> {
    let start = clock::wall();
    (0..BATCH).try_for_each(|_| operation())?;
    Ok(clock::micros(clock::wall().saturating_sub(start)) / BATCH as f64)
}

/// The CPU time of a get by so many threads at once, on a full cache.
fn cpu_each(pool: &Namespace, end: u64, threads: u64, gets: u64) -> f64 {
    let run = |id: u64| {
        let mut random = Random::new(id << 50);
        let mut page = page_buffer();
        let watch = Stopwatch::start();
        for _ in 0..gets {
            // A miss costs less, in both cases alike.
            let _ = std::hint::black_box(pool.get(OBJECT, random.below(end), &mut page));
        }
        watch.elapsed().cpu_us / gets as f64
    };
    let times: Vec<f64> = std::thread::scope(|scope| {
        let spawned: Vec<_> = (0..threads).map(|id| scope.spawn(move || run(id))).collect();
        spawned.into_iter().filter_map(|thread| thread.join().ok()).collect()
    });
    times.iter().sum::<f64>() / times.len() as f64
}

fn random_page(random: &mut Random, len: usize) -> Range<usize> {
    let page = page_size().bytes().as_usize();
    let at = random.below((len / page) as u64) as usize * page;
    at..at + page
}
