//! A page in and out of the cache, against a copy of a page as cold.
//!
//! The cache is full and the pages of a batch are random ones of the whole reserve; the copies are
//! from and to random pages of a second reserve's block, of the same size and kind. Timed in
//! batches of [`BATCH`], the three in turn, since the clock costs a part of one operation.
//! Unit: microseconds an operation.

use glebe::reserve::{Pool, Request, Reserve};
use glebe::sys::page_size;

use super::keyed::Random;
use super::tenant::{Tenant, OBJECT};
use super::{map, page_buffer, Error};
use crate::clock::{self, Stopwatch};
use crate::interrupt;
use crate::report::Report;
use crate::summary::Summary;

const BATCH: u64 = 64;
const BATCHES: u64 = 20_000;
const BATCHES_QUICK: u64 = 2000;

/// Times per operation, one for each batch.
#[derive(Default)]
struct Times {
    get: Vec<f64>,
    put: Vec<f64>,
    copy_out: Vec<f64>,
    copy_in: Vec<f64>,
    misses: u64,
}

/// Measures and reports; `pool` is that of `tenant`, and full.
pub(super) fn measure(
    reserve: &Reserve,
    pool: &Pool,
    tenant: &mut Tenant,
    quick: bool,
    report: &mut Report,
) -> Result<(), Error> {
    let batches = if quick { BATCHES_QUICK } else { BATCHES };
    let other = map(reserve.len().bytes(page_size()), Reserve::builder())?;
    let mut block = other.alloc_with(Request::new(other.len()).any())?;
    let present = tenant.next().saturating_sub(reserve.len().get())..tenant.next();
    let mut random = Random::new(3);
    let mut times = Times::default();
    let (mut page, bytes) = (page_buffer(), block.bytes_mut()?);
    for _ in 0..batches {
        interrupt::check();
        let start = clock::wall();
        let mut hits = 0;
        for _ in 0..BATCH {
            let index = present.start + random.below(present.end - present.start);
            hits += u64::from(pool.get(OBJECT, index, &mut page)?);
        }
        if hits == BATCH {
            times.get.push(each(start));
        }
        times.misses += BATCH - hits;
        let start = clock::wall();
        for _ in 0..BATCH {
            page.copy_from_slice(&bytes[random_page(&mut random, bytes.len())]);
        }
        times.copy_out.push(each(start));
    }
    for _ in 0..batches {
        interrupt::check();
        let start = clock::wall();
        for nth in 0..BATCH {
            // New pages, each in place of an old one. Not looked at again: the contents are not
            // the tenant's.
            pool.put(OBJECT + 1, times.put.len() as u64 * BATCH + nth, &page)?;
        }
        times.put.push(each(start));
        let start = clock::wall();
        for _ in 0..BATCH {
            let at = random_page(&mut random, bytes.len());
            bytes[at].copy_from_slice(&page);
        }
        times.copy_in.push(each(start));
    }
    times.report(report);
    Ok(())
}

/// Reports the CPU time of a get by one thread and by each of two at once, on a full cache.
pub(super) fn threads(pool: &Pool, tenant: &Tenant, quick: bool, report: &mut Report) {
    const SAMPLES: u64 = 9;
    let gets = if quick { 20_000 } else { 200_000 };
    let (mut one, mut two) = (Vec::new(), Vec::new());
    for _ in 0..SAMPLES {
        interrupt::check();
        one.push(cpu_each(pool, tenant.next(), 1, gets));
        two.push(cpu_each(pool, tenant.next(), 2, gets));
    }
    report.row("get_4k_1_thread", "glebe", "us cpu", &one);
    report.row("get_4k_2_threads", "glebe", "us cpu", &two);
    if let (Some(one), Some(two)) = (Summary::of(&one), Summary::of(&two)) {
        report.ratio("threads_2_vs_1_cpu", one.median / two.median);
    }
}

fn cpu_each(pool: &Pool, end: u64, threads: u64, gets: u64) -> f64 {
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

impl Times {
    fn report(&self, report: &mut Report) {
        report.row("get_4k", "glebe", "us", &self.get);
        if self.misses > 0 {
            report.remark(&format!("batches with a miss left out ({} misses)", self.misses));
        }
        report.row("get_4k", "copy", "us", &self.copy_out);
        report.row("put_4k", "glebe", "us", &self.put);
        report.remark("of new pages, each of which evicts one where the cache chooses");
        report.row("put_4k", "copy", "us", &self.copy_in);
        let median = |samples: &[f64]| Summary::of(samples).map_or(f64::NAN, |s| s.median);
        report.ratio("get_vs_copy", median(&self.copy_out) / median(&self.get));
        report.ratio("put_vs_copy", median(&self.copy_in) / median(&self.put));
    }
}

fn each(start: std::time::Duration) -> f64 {
    clock::micros(clock::wall().saturating_sub(start)) / BATCH as f64
}

fn random_page(random: &mut Random, len: usize) -> std::ops::Range<usize> {
    let page = page_size().bytes().as_usize();
    let at = random.below((len / page) as u64) as usize * page;
    at..at + page
}
