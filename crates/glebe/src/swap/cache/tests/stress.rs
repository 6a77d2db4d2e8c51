//! Threads use one area while first-class clients take lent pages, the policy changes and the
//! device fails.
//!
//! A page's offset and version determine its bytes. Each offset has one writing thread.

use std::sync::Barrier;
use std::thread;
use std::time::{Duration, Instant};

use glebe_testing::time::{storm, Storm};

use super::*;
use glebe_os::internal::sync::AtomicU64;

const WRITERS: u64 = 3;
const PAGES: u64 = 1500;
const USUAL: Duration = Duration::from_secs(2);

struct Rng(u64);

impl Rng {
    fn below(&mut self, end: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        mix(mix(self.0)) % end
    }
}

fn page_at(offset: u64, version: u64) -> Vec<u8> {
    let head = offset << 32 | version;
    let word = |at: u64| match offset % 8 {
        0 => head,
        1 if at > 0 => mix(head ^ at << 50) << 17 ^ mix(head + at),
        _ if at % 2 == 1 => mix(head ^ at << 50),
        _ => head,
    };
    (0..page() as u64 / 8).flat_map(|at| word(at).to_le_bytes()).collect()
}

fn version_of(offset: u64, page: &[u8]) -> u64 {
    let head = u64::from_le_bytes(*page.first_chunk().unwrap());
    let version = head & u64::from(u32::MAX);
    assert!(
        page == page_at(offset, version),
        "offset {offset}: not one whole page of it: {head:x}"
    );
    version
}

struct Shared {
    area: Area,
    storm: Storm,
    begun: Vec<AtomicU64>,
    has_file: bool,
    has_faults: bool,
}

impl Shared {
    fn is_over(&self) -> bool {
        !self.storm.goes_on(|| {
            let stats = self.area.stats();
            stats.stored > 1000 && (!self.has_file || stats.read_back > 0 && stats.cleaned > 0)
        })
    }

    fn allowed<T>(&self, result: Result<T, SwapError>) -> Option<T> {
        match result {
            Ok(done) => Some(done),
            Err(SwapError::Os(error)) if self.has_faults => {
                assert!(error.to_string().contains("a test's device"), "{error}");
                None
            }
            Err(SwapError::Full { .. }) if self.area.copies.file.is_none() => None,
            Err(SwapError::PutBackBelowStored { .. }) if self.area.copies.file.is_none() => None,
            Err(error) => panic!("{error}"),
        }
    }

    fn write(&self, whose: u64) {
        let mut rng = Rng(whose);
        let (mut known, mut out) = (vec![None; PAGES as usize], vec![0; page()]);
        while !self.is_over() {
            let offset = rng.below(PAGES / WRITERS) * WRITERS + whose;
            let at = offset as usize;
            match rng.below(10) {
                0..5 => {
                    let version = self.begun[at].load(Ordering::Relaxed) + 1;
                    self.begun[at].store(version, Ordering::Relaxed);
                    let stored = self.area.store(offset, &page_at(offset, version));
                    known[at] = self.allowed(stored).map(|()| version);
                }
                5..8 => self.expect(offset, known[at], self.area.load(offset, &mut out), &out),
                8 => {
                    let taken = self.area.take(offset, &mut out);
                    let is_gone = taken.is_ok();
                    self.expect(offset, known[at], taken, &out);
                    known[at] = known[at].filter(|_| !is_gone);
                }
                _ => {
                    let was = self.area.invalidate_page(offset).unwrap();
                    assert_eq!(was, known[at].take().is_some(), "offset {offset}");
                }
            }
        }
        self.finish(whose, &known);
    }

    fn finish(&self, whose: u64, known: &[Option<u64>]) {
        if self.area.copies.file.is_some() {
            refuse(&self.area, 0);
        }
        let mut out = vec![0; page()];
        for offset in (whose..PAGES).step_by(WRITERS as usize) {
            let found = loop {
                match self.area.load(offset, &mut out) {
                    Err(SwapError::Os(_)) if self.has_faults => refuse(&self.area, 0),
                    done => break done,
                }
            };
            let version = found.unwrap().then(|| version_of(offset, &out));
            assert_eq!(version, known[offset as usize], "offset {offset}, at the end");
        }
    }

    fn expect(&self, offset: u64, known: Option<u64>, found: Result<bool, SwapError>, out: &[u8]) {
        if let Some(found) = self.allowed(found) {
            assert_eq!(found.then(|| version_of(offset, out)), known, "offset {offset}");
        }
    }

    fn read(&self) {
        let (mut rng, mut out) = (Rng(77), vec![0; page()]);
        while !self.is_over() {
            let offset = rng.below(PAGES);
            if self.allowed(self.area.load(offset, &mut out)) == Some(true) {
                let begun = self.begun[offset as usize].load(Ordering::Relaxed);
                assert!(version_of(offset, &out) <= begun, "offset {offset}: from the future");
            }
        }
    }

    fn change(&self, policies: &[WritePolicy]) {
        let mut rng = Rng(99);
        while !self.is_over() {
            self.allowed(self.area.set_policy(policies[rng.below(policies.len() as u64) as usize]));
            self.allowed(self.area.clean(Bytes::new(rng.below(len_of(256).get()))));
            if self.has_faults {
                refuse(&self.area, [0, 0, 0, WRITES, READS, WRITES | READS][rng.below(6) as usize]);
            }
            thread::sleep(Duration::from_micros(rng.below(3000)));
        }
    }
}

fn recall(reserve: &Reserve, shared: &Shared) {
    let (mut rng, mut blocks) = (Rng(55), Vec::new());
    while !shared.is_over() {
        let pages = Pages::new(1 + rng.below(reserve.len().get() / 2));
        if let Ok(mut block) = reserve.alloc(pages) {
            let fill = rng.below(256) as u8;
            block.bytes_mut().unwrap().fill(fill);
            blocks.push((block, fill));
        }
        if blocks.len() > 2 || rng.below(3) == 0 {
            let at = (rng.below(4) as usize).min(blocks.len().saturating_sub(1));
            for (block, fill) in blocks.drain(at..) {
                assert!(block.bytes().unwrap().iter().all(|byte| *byte == fill), "a stray write");
            }
        }
    }
}

fn run(reserve: Option<&Reserve>, has_file: bool, has_faults: bool) {
    let limit = || SwapCache::with_limit(len_of(256));
    let cache = reserve.map_or_else(limit, SwapCache::on).unwrap();
    let small = WritePolicy { write_back: len_of(25), put_back: len_of(75) };
    let mut policies = vec![put_back(len_of(512)), put_back(len_of(150)), small];
    if has_file {
        let parts = len_of(2) + Bytes::new(808);
        policies.extend([Bytes::ZERO, parts, len_of(256)].map(write_back));
    }
    let area = match has_file {
        true => with_file(&cache, PAGES),
        false => without_file(&cache, PAGES, Bytes::ZERO),
    };
    area.set_policy(policies[0]).unwrap();
    let begun = (0..PAGES).map(|_| AtomicU64::new(0)).collect();
    let shared = Shared { area, storm: Storm::begin(USUAL), begun, has_file, has_faults };
    thread::scope(|scope| {
        let shared = &shared;
        (0..WRITERS).for_each(|whose| drop(scope.spawn(move || shared.write(whose))));
        scope.spawn(|| shared.read());
        scope.spawn(|| shared.change(&policies));
        if let Some(reserve) = reserve {
            scope.spawn(|| recall(reserve, shared));
        }
    });
    let stats = shared.area.stats();
    println!("{stats}");
    let (charged, limit) = (stats.charged_bytes, shared.area.stats().limit_bytes);
    assert!(charged <= limit, "{charged} of {limit}");
    stats.check().unwrap();
    assert!(stats.stored > 1000, "{stats}");
    assert!(!has_file || stats.read_back > 0 && stats.cleaned > 0, "{stats}");
}

#[test]
fn on_a_reserve_whose_device_refuses_now_and_then() {
    run(Some(&reserve()), true, true);
}

#[test]
fn on_a_reserve_without_a_file() {
    run(Some(&reserve()), false, false);
}

#[test]
fn in_a_pool_of_its_own() {
    run(None, true, false);
}

fn replaced_all_the_time(area: &Area) {
    let (until, begun) = (Instant::now() + storm(USUAL) / 2, AtomicU64::new(0));
    thread::scope(|scope| {
        scope.spawn(|| {
            while Instant::now() < until {
                let version = begun.fetch_add(1, Ordering::Relaxed) + 1;
                area.store(2, &page_at(2, version)).unwrap();
                area.clean(len_of(256)).unwrap();
            }
        });
        let (mut out, mut last) = (vec![0; page()], 0);
        // A store removes the old page before it writes the new one, so a load may miss.
        while Instant::now() < until {
            if area.load(2, &mut out).unwrap() {
                let version = version_of(2, &out);
                assert!(version >= last && version <= begun.load(Ordering::Relaxed));
                last = version;
            }
        }
    });
    let mut out = vec![0; page()];
    assert!(area.load(2, &mut out).unwrap());
    assert_eq!(version_of(2, &out), begun.load(Ordering::Relaxed));
    area.stats().check().unwrap();
}

#[test]
fn a_page_in_the_file_that_is_replaced_all_the_time_is_read_whole() {
    let area = with_file(&SwapCache::on(&reserve()).unwrap(), 4);
    replaced_all_the_time(&area);
}

#[test]
fn a_page_that_is_cleaned_all_the_time_is_read_whole() {
    let area = with_file(&SwapCache::on(&reserve()).unwrap(), 4);
    area.set_policy(write_back(len_of(256))).unwrap();
    replaced_all_the_time(&area);
}

#[test]
fn a_page_in_memory_that_is_replaced_all_the_time_is_read_whole() {
    let area = without_file(&SwapCache::with_limit(len_of(256)).unwrap(), 4, len_of(256));
    replaced_all_the_time(&area);
}

#[test]
fn a_page_that_is_stored_while_it_is_taken_is_there_or_was_taken() {
    let area = with_file(&SwapCache::with_limit(len_of(256)).unwrap(), 4);
    let (barrier, mut out) = (Barrier::new(2), vec![0; page()]);
    for version in (2..600).step_by(2) {
        area.set_policy(WritePolicy::default()).unwrap();
        area.store(2, &page_at(2, version - 1)).unwrap();
        area.kept_gone();
        area.set_policy(put_back(len_of(256))).unwrap();
        let was_there = thread::scope(|scope| {
            scope.spawn(|| {
                let page = page_at(2, version);
                barrier.wait();
                area.store(2, &page).unwrap();
            });
            barrier.wait();
            area.take(2, &mut out).unwrap()
        });
        let taken = was_there.then(|| version_of(2, &out));
        let left = area.load(2, &mut out).unwrap().then(|| version_of(2, &out));
        assert_eq!(left, (taken != Some(version)).then_some(version), "taken: {taken:?}");
    }
}
