//! Measures calls of an area, and recalls of pages lent to the page cache or to areas of each write
//! policy.

use std::time::Instant;

use glebe::reserve::{PageCache, Reserve};
use glebe::swap::cache::{Area, SwapCache};
use glebe::units::{Bytes, Pages};

use super::page_of;

const RESERVE: Bytes = Bytes::mib(64);
const TURNS: usize = 16;
const RUNS: [u64; 3] = [64, 512, 8192];
const CACHES: usize = 128 << 20;
/// Pages of the area. Even compressed, they exceed the reserve.
const PAGES: u64 = 40_000;
const BATCH: u64 = 128;

enum Tenant {
    Clean(PageCache),
    Area(Box<Area>),
}

struct Case {
    name: &'static str,
    reserve: Reserve,
    tenant: Tenant,
    next: u64,
}

impl Case {
    fn clean() -> Self {
        let reserve = Reserve::new(RESERVE).unwrap();
        let tenant = Tenant::Clean(reserve.page_cache());
        Self { name: "clean pages of the page cache", reserve, tenant, next: 0 }
    }

    fn area(name: &'static str, write_back: Bytes, put_back: Bytes) -> Self {
        let reserve = Reserve::new(RESERVE).unwrap();
        let cache = SwapCache::on(&reserve).unwrap();
        let area = cache.area(Pages::new(PAGES), &std::env::temp_dir(), Bytes::mib(512)).unwrap();
        area.set_write_back(write_back).unwrap();
        area.set_put_back(put_back).unwrap();
        Self { name, reserve, tenant: Tenant::Area(Box::new(area)), next: 0 }
    }

    fn fill(&mut self, pages: &[Vec<u8>], most: u64) {
        let end = self.next + most;
        while self.next < end && self.reserve.stats().free > Pages::new(16) {
            match &self.tenant {
                Tenant::Clean(cache) => {
                    let namespace = cache.namespace("cost").unwrap();
                    for (index, page) in (self.next..).zip(pages) {
                        namespace.put(1, index, page).unwrap();
                    }
                }
                Tenant::Area(area) => {
                    let offsets = (self.next..).map(|at| at % PAGES);
                    area.store_all(offsets.zip(pages.iter().map(Vec::as_slice))).unwrap();
                }
            }
            self.next += pages.len() as u64;
        }
    }

    fn recall(&self, pages: u64) -> (f64, u64) {
        let before = self.reserve.stats().recalled;
        let begin = Instant::now();
        let block = self.reserve.alloc(Pages::new(pages)).unwrap();
        let micros = begin.elapsed().as_nanos() as f64 / 1e3;
        drop(block);
        (micros, self.reserve.stats().recalled - before)
    }
}

fn median(values: &mut [f64]) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}

pub fn measure() {
    recalls();
    calls();
}

fn time(count: u64, mut call: impl FnMut(u64)) -> f64 {
    let begin = Instant::now();
    (0..count).for_each(&mut call);
    begin.elapsed().as_nanos() as f64 / 1e3 / count as f64
}

fn calls() {
    const COUNT: u64 = 4096;
    let pages: Vec<_> = (0..COUNT).map(|n| page_of(n, 2)).collect();
    let mut out = pages[0].clone();
    for (name, put_back) in [("write-through", Bytes::ZERO), ("put-back", Bytes::mib(64))] {
        let reserve = Reserve::new(RESERVE).unwrap();
        let cache = SwapCache::on(&reserve).unwrap();
        let area = cache.area(Pages::new(PAGES), &std::env::temp_dir(), Bytes::mib(512)).unwrap();
        area.set_put_back(put_back).unwrap();
        let page = |n: u64| &pages[(n % COUNT) as usize][..];
        let alone = time(COUNT, |n| area.store(n, page(n)).unwrap());
        let batch = time(COUNT / BATCH, |n| {
            area.store_all((n * BATCH..(n + 1) * BATCH).map(|n| (n, page(n)))).unwrap();
        }) / BATCH as f64;
        let mut load = |n| assert!(area.load(n, &mut out).unwrap());
        let kept = time(COUNT, &mut load);
        drop(reserve.alloc(reserve.largest_run().unwrap()).unwrap());
        let recalled = time(COUNT, &mut load);
        println!("{name}: store {alone:.2} us, in batches {batch:.2}");
        println!("{name}: load {kept:.2} us, after a recall {recalled:.2}");
        let stats = area.stats();
        if stats.unsaved > Pages::ZERO {
            let own = stats.own.bytes(glebe::page_size()).get() + 32 * COUNT;
            println!(
                "memory for a byte of blocks: {:.3}",
                own as f64 / stats.unsaved_block_bytes.get() as f64
            );
        }
    }
}

fn recalls() {
    let (write_back, put_back) = (Bytes::mib(4), Bytes::mib(16));
    let mut cases = [
        Case::clean(),
        Case::area("area, write-through", Bytes::ZERO, Bytes::ZERO),
        Case::area("area, write-back of 4 MiB", write_back, Bytes::ZERO),
        Case::area("area, put-back of 16 MiB", Bytes::ZERO, put_back),
    ];
    let mut cold = vec![0_u8; CACHES];
    let pages: Vec<_> = (0..BATCH).map(|n| page_of(n, 2)).collect();
    cases.iter_mut().for_each(|case| case.fill(&pages, PAGES));
    for run in RUNS {
        let mut micros = vec![Vec::new(); cases.len()];
        let mut taken = vec![0; cases.len()];
        for turn in 0..TURNS {
            cases.iter_mut().for_each(|case| case.fill(&pages, run * 3));
            for nth in (turn..turn + cases.len()).map(|nth| nth % cases.len()) {
                // Evicts the processor's caches, because their contents would favour some cases.
                cold.iter_mut().step_by(64).for_each(|byte| *byte = byte.wrapping_add(1));
                let (one, pages) = cases[nth].recall(run);
                micros[nth].push(one);
                taken[nth] += pages;
            }
        }
        for (nth, case) in cases.iter().enumerate() {
            let share = taken[nth] as f64 / (TURNS as u64 * run) as f64;
            let clean = median(&mut micros[0]);
            let own = median(&mut micros[nth]);
            let name = case.name;
            println!(
                "{run:5} pages  {name:32} {own:8.2} us  {:5.2}x  lent {share:.2}",
                own / clean
            );
        }
    }
}
