//! Runs threads on a volatile region while the kernel takes marked pages. Without swap,
//! `MADV_PAGEOUT` reclaims only marked pages not written since the mark.
//!
//! The tests check that no write is lost and that reports are exact. `GLEBE_SEED` repeats a printed
//! seed.

#![allow(unsafe_code)]

use std::ops::Range;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::Barrier;

use glebe_os::internal::sys::memory::madvise::{advise, Advice};
use glebe_os::internal::sys::page_size;
use glebe_os::units::{Bytes, Pages};
use glebe_testing::time::is_long;
use glebe_volatile::internal::without_pagemap_scan;
use glebe_volatile::{Engine, Error, Priority, Region};

use glebe_testing::stressed::Stop;

const THREADS: u64 = 4;
const PAGES_EACH: u64 = 96;

/// Sebastiano Vigna's splitmix64 (public domain).
struct Random(u64);

impl Random {
    fn below(&mut self, n: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        (z ^ (z >> 31)) % n
    }

    fn run(&mut self, pages: &Range<u64>) -> Range<u64> {
        let start = pages.start + self.below(pages.end - pages.start);
        // The engines treat short and long runs differently.
        let longest = if self.below(2) == 0 { 8 } else { 64 };
        start..(start + 1 + self.below(longest)).min(pages.end)
    }
}

fn seed() -> u64 {
    let given = std::env::var("GLEBE_SEED").ok().and_then(|seed| seed.parse().ok());
    let seed = given.unwrap_or_else(|| u64::from(std::process::id()));
    println!("GLEBE_SEED={seed}");
    seed
}

fn bytes(pages: u64) -> Bytes {
    Pages::new(pages).bytes(page_size())
}

fn bytes_of(pages: &Range<u64>) -> Range<Bytes> {
    bytes(pages.start)..bytes(pages.end)
}

fn contents(page: u64, version: u64) -> Vec<u8> {
    let word = (page << 40 | version << 8 | 0x5A).to_ne_bytes();
    word.repeat(bytes(1).as_usize() / word.len())
}

/// Most attempts at a page's reclaim, because the kernel skips pages just used on another
/// processor.
const ATTEMPTS: u64 = 20;

fn regions(pages: u64) -> Vec<Region> {
    let mut regions = Vec::new();
    for engine in [Engine::Scan, Engine::Tag] {
        for without_scan in [false, true] {
            let options = without_pagemap_scan(Region::options().engine(engine), without_scan);
            match options.build(bytes(pages)) {
                Ok(region) => regions.push(region),
                Err(error) => println!("skipped: {engine} engine: {error}"),
            }
        }
    }
    regions
}

fn reclaim(region: &Region, mut random: Random, stop: &AtomicBool) {
    let all = 0..region.len().pages_down(page_size()).get();
    while !stop.load(Ordering::Relaxed) {
        let run = bytes_of(&random.run(&all));
        let addr = region.addr() + run.start.as_usize();
        // SAFETY: the kernel takes only marked pages.
        unsafe { advise(addr, run.end - run.start, Advice::PageOut).unwrap() };
    }
}

struct Owner<'a> {
    region: &'a Region,
    pages: Range<u64>,
    random: Random,
    /// Version of each page; 0 if lost or never written.
    versions: Vec<u64>,
    marked: Vec<bool>,
    lost: u64,
    kept: u64,
}

impl Owner<'_> {
    fn at(&self, page: u64) -> usize {
        (page - self.pages.start) as usize
    }

    fn right(&self, page: u64, held: &[u8]) -> bool {
        match self.versions[self.at(page)] {
            0 => held.iter().all(|byte| *byte == 0),
            version => held == contents(page, version),
        }
    }

    fn step(&mut self) {
        let run = self.random.run(&self.pages.clone());
        match self.random.below(4) {
            0 => {
                self.region.mark(bytes_of(&run), Priority::NORMAL).unwrap();
                run.for_each(|page| {
                    let at = self.at(page);
                    self.marked[at] = true;
                });
            }
            1 => self.unmark(run),
            2 => self.write(run),
            _ => self.read(run),
        }
    }

    fn unmark(&mut self, run: Range<u64>) {
        let purged = self.region.unmark(bytes_of(&run)).unwrap();
        for gone in purged.runs().iter().flat_map(|run| run.start()..run.end()) {
            assert!(run.contains(&gone) && self.marked[self.at(gone)], "page {gone} called lost");
            let at = self.at(gone);
            self.versions[at] = 0;
            self.lost += 1;
        }
        // `kept` omits unmarked and empty pages, which an unmark cannot lose.
        let gone = |page| purged.runs().iter().any(|run| (run.start()..run.end()).contains(&page));
        let kept = |page: &u64| {
            let at = self.at(*page);
            self.marked[at] && self.versions[at] != 0 && !gone(*page)
        };
        self.kept += run.clone().filter(kept).count() as u64;
        let mut held = vec![0; bytes(1).as_usize()];
        for page in run {
            let at = self.at(page);
            self.marked[at] = false;
            self.region.read(bytes(page), &mut held).unwrap();
            let version = self.versions[at];
            assert!(self.right(page, &held), "page {page}, {version}: {:?}", &held[..16]);
        }
    }

    fn write(&mut self, run: Range<u64>) {
        for page in run {
            let at = self.at(page);
            let version = self.random.below(1 << 20) + 1;
            match self.region.write(bytes(page), &contents(page, version)) {
                Ok(()) => {
                    assert!(!self.marked[at]);
                    self.versions[at] = version;
                }
                Err(Error::Marked { .. }) => assert!(self.marked[at]),
                Err(error) => panic!("{error}"),
            }
        }
    }

    fn read(&mut self, run: Range<u64>) {
        let page = bytes(1).as_usize();
        let mut held = vec![0; (run.end - run.start) as usize * page];
        match self.region.try_read(bytes(run.start), &mut held) {
            Ok(()) => {
                let mut pages = run.zip(held.chunks(page));
                assert!(pages.all(|(page, held)| self.right(page, held)), "stale read");
            }
            Err(Error::Purged { offset }) => {
                let page = offset.pages_down(page_size()).get();
                assert!(run.contains(&page) && self.marked[self.at(page)]);
            }
            Err(error) => panic!("{error}"),
        }
    }
}

#[test]
fn threads_on_pages_of_their_own() {
    let seed = seed();
    for region in &regions(THREADS * PAGES_EACH) {
        let (stop, lost, kept) = (AtomicBool::new(false), AtomicU64::new(0), AtomicU64::new(0));
        std::thread::scope(|scope| {
            let stop = &stop;
            scope.spawn(move || reclaim(region, Random(!seed), stop));
            let owners: Vec<_> = (0..THREADS)
                .map(|i| {
                    let mut owner = Owner {
                        region,
                        pages: i * PAGES_EACH..(i + 1) * PAGES_EACH,
                        random: Random(seed + i),
                        versions: vec![0; PAGES_EACH as usize],
                        marked: vec![false; PAGES_EACH as usize],
                        lost: 0,
                        kept: 0,
                    };
                    let (lost, kept) = (&lost, &kept);
                    scope.spawn(move || {
                        let stop = Stop(stop);
                        for _ in 0..ATTEMPTS {
                            let before = (owner.lost, owner.kept);
                            let steps = if is_long() { 1500 } else { 750 };
                            (0..steps).for_each(|_| owner.step());
                            owner.unmark(owner.pages.clone());
                            let here = lost.fetch_add(owner.lost - before.0, Ordering::Relaxed);
                            kept.fetch_add(owner.kept - before.1, Ordering::Relaxed);
                            if here + owner.lost - before.0 > 0 {
                                break;
                            }
                        }
                        std::mem::forget(stop);
                    })
                })
                .collect();
            let panicked = owners.into_iter().any(|owner| owner.join().is_err());
            stop.store(true, Ordering::Relaxed);
            assert!(!panicked);
        });
        let (lost, kept) = (lost.into_inner(), kept.into_inner());
        println!("{}: {lost} lost, {kept} kept", region.engine());
        assert!(lost > 0, "the kernel took nothing: nothing was tested");
        assert!(kept > 0, "every page that was marked is called lost");
        region.stats().check().unwrap();
        assert_eq!(region.stats().purged, lost);
    }
}

#[test]
fn threads_on_the_same_pages() {
    const PAGES: u64 = 128;
    let rounds = if is_long() { 30 } else { 15 };
    let seed = seed();
    for region in &regions(PAGES) {
        let (stop, barrier) = (AtomicBool::new(false), Barrier::new(THREADS as usize));
        let told: Vec<_> = (0..PAGES).map(|_| AtomicU64::new(0)).collect();
        let (mut lost, mut kept) = (0, 0);
        for round in 0..rounds * ATTEMPTS {
            if round >= rounds && lost > 0 {
                break;
            }
            for page in 0..PAGES {
                region.write(bytes(page), &contents(page, round)).unwrap();
                told[page as usize].store(0, Ordering::Relaxed);
            }
            std::thread::scope(|scope| {
                let (stop, told, barrier) = (&stop, &told, &barrier);
                stop.store(false, Ordering::Relaxed);
                let workers: Vec<_> = (0..THREADS)
                    .map(|i| {
                        scope.spawn(move || {
                            let mut random = Random(seed ^ (round * THREADS + i));
                            barrier.wait();
                            for _ in 0..60 {
                                overlap(region, &mut random, PAGES, round, told);
                            }
                        })
                    })
                    .collect();
                scope.spawn(move || reclaim(region, Random(seed ^ !round), stop));
                let bad = workers.into_iter().any(|worker| worker.join().is_err());
                stop.store(true, Ordering::Relaxed);
                assert!(!bad);
            });
            tell(&region.unmark(bytes_of(&(0..PAGES))).unwrap(), &told);
            for page in 0..PAGES {
                let mut held = vec![0; bytes(1).as_usize()];
                region.read(bytes(page), &mut held).unwrap();
                let gone = told[page as usize].load(Ordering::Relaxed) > 0;
                lost += u64::from(gone);
                kept += u64::from(!gone);
                let zeros = held.iter().all(|byte| *byte == 0);
                assert_eq!(zeros, gone, "page {page}: zeros, and whether anybody was told");
                assert!(zeros || held == contents(page, round));
            }
        }
        println!("{}: {lost} lost, {kept} kept", region.engine());
        assert!(lost > 0, "the kernel took nothing: nothing was tested");
        assert!(kept > 0, "every page is called lost");
        region.stats().check().unwrap();
    }
}

fn tell(purged: &glebe_volatile::Purged, told: &[AtomicU64]) {
    for page in purged.runs().iter().flat_map(|run| run.start()..run.end()) {
        told[page as usize].fetch_add(1, Ordering::Relaxed);
    }
}

fn overlap(region: &Region, random: &mut Random, pages: u64, round: u64, told: &[AtomicU64]) {
    let run = random.run(&(0..pages));
    match random.below(3) {
        0 => region.mark(bytes_of(&run), Priority::NORMAL).unwrap(),
        1 => tell(&region.unmark(bytes_of(&run)).unwrap(), told),
        _ => {
            let mut held = vec![0; bytes(1).as_usize()];
            match region.try_read(bytes(run.start), &mut held) {
                Ok(()) => {
                    let zeros = held.iter().all(|byte| *byte == 0);
                    assert!(zeros || held == contents(run.start, round), "stale read");
                }
                Err(Error::Purged { .. }) => {}
                Err(error) => panic!("{error}"),
            }
        }
    }
}
