//! Times puts and gets beside copies of equally cold pages, and gets by one and two threads.
//!
//! The reserve is full of cache pages. Gets use random pages of the whole reserve; copies use
//! random pages of an equally large block. A clock reading would lengthen a single operation, so
//! [`BATCH`] operations are timed together. Unit: microseconds per operation.

use std::sync::Barrier;

use glebe::page_size;
use glebe::reserve::{Request, Reserve};

use super::keyed::Random;
use super::tenant::{Tenant, OBJECT};
use super::{map, page_buffer, GLEBE};
use crate::clock::timed;
use crate::report::Report;
use crate::turns::{on_threads, rounds, NO_END};
use crate::Outcome;

const BATCH: u64 = 64;
const COPY: &str = "copy";

/// The reserve must be empty.
pub(super) fn measure(reserve: &Reserve, report: &mut Report) -> Outcome {
    let tenant = Tenant::new(reserve)?;
    let gets = report.plan(20_000, 200_000);
    let threads = [("get_4k_1_thread", 1), ("get_4k_2_threads", 2)];
    for _ in rounds("threads", 9, NO_END) {
        for (case, threads) in threads {
            report.add(case, GLEBE, "us cpu", cpu_each(&tenant, threads, gets));
        }
    }
    let other = map(reserve.len().bytes(page_size()))?;
    let mut block = other.alloc(Request::new(other.len()).any())?;
    let cold = block.bytes_mut()?;
    let cold_page = |random: &mut Random| {
        let page = page_size().bytes().as_usize();
        let at = random.below(other.len().get()) as usize * page;
        at..at + page
    };
    let present = tenant.next.saturating_sub(reserve.len().get());
    let (mut random, mut page, mut misses) = (Random::new(3), page_buffer(), 0);
    for _ in rounds("get", report.plan(2000, 20_000), NO_END) {
        let mut hits = 0;
        let get = batch(|| {
            let index = present + random.below(tenant.next - present);
            hits += u64::from(tenant.pool.get(OBJECT, index, &mut page)?);
            Ok(())
        })?;
        if hits == BATCH {
            report.add("get_4k", GLEBE, "us", get);
        }
        misses += BATCH - hits;
        let copy = batch(|| {
            page.copy_from_slice(&cold[cold_page(&mut random)]);
            Ok(())
        })?;
        report.add("get_4k", COPY, "us", copy);
    }
    for round in rounds("put", report.plan(2000, 20_000), NO_END) {
        let mut next = round * BATCH;
        let put = batch(|| {
            // Each new page replaces an old one. The tenant does not check these pages.
            next += 1;
            Ok(tenant.pool.put(OBJECT + 1, next, &page).map(drop)?)
        })?;
        report.add("put_4k", GLEBE, "us", put);
        let copy = batch(|| {
            cold[cold_page(&mut random)].copy_from_slice(&page);
            Ok(())
        })?;
        report.add("put_4k", COPY, "us", copy);
    }
    if misses > 0 {
        let why = format!("batches with a miss left out ({misses} misses)");
        report.remark("get_4k", GLEBE, "us", &why);
    }
    let why = "of new pages, each of which evicts one where the cache chooses";
    report.remark("put_4k", GLEBE, "us", why);
    for (ratio, case) in [("get_vs_copy", "get_4k"), ("put_vs_copy", "put_4k")] {
        report.ratio(ratio, report.median(case, COPY) / report.median(case, GLEBE));
    }
    let [one, two] = threads.map(|(case, _)| report.median(case, GLEBE));
    report.ratio("threads_2_vs_1_cpu", one / two);
    tenant.report(report);
    Ok(())
}

fn batch(mut operation: impl FnMut() -> Outcome) -> Outcome<f64> {
    let (done, took) = timed(|| (0..BATCH).try_for_each(|_| operation()));
    done.map(|()| took.wall_us / BATCH as f64)
}

fn cpu_each(tenant: &Tenant, threads: usize, gets: u64) -> f64 {
    let run = |nth: usize, _: &Barrier| {
        let mut random = Random::new((nth as u64) << 50);
        let mut page = page_buffer();
        let mut get = |_| {
            // One and two threads miss equally often, so cheaper misses do not change the ratio.
            let index = random.below(tenant.next);
            let _ = std::hint::black_box(tenant.pool.get(OBJECT, index, &mut page));
        };
        timed(|| (0..gets).for_each(&mut get)).1.cpu_us / gets as f64
    };
    on_threads(threads, run).iter().sum::<f64>() / threads as f64
}
