//! Stresses the reserve: writers and readers of the page cache, owners of blocks, and forks.
//!
//! The words of a page follow from its key and version, and the words of a block from its number.
//! This reveals stray and torn stores. Each key has one writer, which publishes the least version
//! that may still be found. This reveals stale pages.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use glebe::contig::{Contig, Source};
use glebe::internal::with_writers;
use glebe::page_size;
use glebe::reserve::{
    Block, Namespace, Promise, Put, Request, Reserve, ReserveError, Stats, Writers,
};
use glebe::units::{Bytes, Pages};
use glebe_testing::time::{slowed, Storm};

use glebe_testing::stressed::signals::Signals;
use glebe_testing::stressed::{in_child, page_buffer, ChildEnd, Random, Stop};

const WRITERS: u64 = 4;
const READERS: u64 = 2;
const OWNERS: u64 = 2;
/// Keys of each writer. There are more keys than pages, so that pages are evicted.
const KEYS_EACH: u64 = 1 << 14;
const KEYS_OF_OBJECT: u64 = 1 << 8;
const KEYS_HOT: u64 = 64;
/// Most pages of a block, for two loads: large blocks span many granules, small blocks at most two.
const BLOCK_PAGES_LARGE: u64 = 5000;
const BLOCK_PAGES_SMALL: u64 = 150;
const KEPT_PAGES: u64 = 64;
const HOLD_MAX: Duration = Duration::from_millis(3);
const ZERO_AHEAD: Pages = Pages::new(1024);
const USUAL: Duration = Duration::from_millis(1500);
const PATIENCE: Duration = Duration::from_secs(10);
const BETWEEN_FORKS: Duration = Duration::from_millis(100);

fn key(random: &mut Random) -> u64 {
    let end = if random.below(2) == 0 { KEYS_HOT } else { KEYS_EACH };
    random.below(end)
}

/// Returns the word at index `at` of a block or page. `seed` is the number of the block, or the key
/// and version of the page.
fn word(seed: u64, at: usize) -> u64 {
    (seed ^ at as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ seed.rotate_left(17)
}

fn write(bytes: &mut [u8], seed: u64) {
    for (at, chunk) in bytes.chunks_exact_mut(8).enumerate() {
        chunk.copy_from_slice(&word(seed, at).to_ne_bytes());
    }
}

fn first_wrong(bytes: &[u8], seed: u64) -> Option<usize> {
    let wrong = |(at, chunk): (usize, &[u8])| *chunk != word(seed, at).to_ne_bytes();
    bytes.chunks_exact(8).enumerate().position(wrong)
}

fn write_page(bytes: &mut [u8], key: u64, version: u64) {
    let (head, body) = bytes.split_at_mut(16);
    head[..8].copy_from_slice(&key.to_ne_bytes());
    head[8..].copy_from_slice(&version.to_ne_bytes());
    write(body, (version << 32) | key);
}

fn version_of(bytes: &[u8], key: u64) -> u64 {
    let (head, body) = bytes.split_at(16);
    let [of, version] = [0, 8].map(|at| u64::from_ne_bytes(head[at..at + 8].try_into().unwrap()));
    assert_eq!(of, key, "a page of another key");
    let wrong = first_wrong(body, (version << 32) | key);
    assert_eq!(wrong, None, "a wrong word in key {key}, version {version}");
    version
}

struct Load<'a> {
    reserve: &'a Reserve,
    pool: Namespace,
    block_pages_max: u64,
    /// The least version that a get from now on may find, by key.
    least: Vec<AtomicU64>,
    /// The last version whose put began, by key.
    last: Vec<AtomicU64>,
    stop: AtomicBool,
    hits: AtomicU64,
    blocks: AtomicU64,
    promises: AtomicU64,
}

impl Load<'_> {
    fn is_met(&self) -> bool {
        let stats = self.reserve.stats();
        let [hits, promises] = [&self.hits, &self.promises].map(|n| n.load(Ordering::Relaxed));
        hits > 0 && promises > 0 && stats.recalled > 0 && stats.replaced > 0
    }

    fn stopped(&self) -> bool {
        self.stop.load(Ordering::Relaxed)
    }

    fn place(writer: u64, key: u64) -> (u64, u64) {
        ((writer << 32) | (key / KEYS_OF_OBJECT), key % KEYS_OF_OBJECT)
    }

    fn write(&self, writer: u64) {
        let mut random = Random(writer);
        let mut bytes = page_buffer();
        while !self.stopped() {
            let key = key(&mut random);
            let at = (writer * KEYS_EACH + key) as usize;
            let (object, index) = Self::place(writer, key);
            match random.below(1000) {
                0 => {
                    self.pool.invalidate_object(object).unwrap();
                    let first = at - index as usize;
                    for at in first..first + KEYS_OF_OBJECT as usize {
                        self.forget(at);
                    }
                }
                1..100 => {
                    self.pool.invalidate_page(object, index).unwrap();
                    self.forget(at);
                }
                _ => {
                    let version = self.last[at].load(Ordering::Relaxed) + 1;
                    self.last[at].store(version, Ordering::Release);
                    write_page(&mut bytes, at as u64, version);
                    let put = self.pool.put(object, index, &bytes).unwrap();
                    // A rejected put drops the old page.
                    let least = version + u64::from(put != Put::Stored);
                    self.least[at].store(least, Ordering::Release);
                }
            }
        }
    }

    fn forget(&self, at: usize) {
        let least = self.last[at].load(Ordering::Relaxed) + 1;
        self.least[at].store(least, Ordering::Release);
    }

    fn read(&self, reader: u64) {
        let mut random = Random(reader << 32);
        let mut bytes = page_buffer();
        while !self.stopped() {
            let (writer, key) = (random.below(WRITERS), key(&mut random));
            let at = (writer * KEYS_EACH + key) as usize;
            let (object, index) = Self::place(writer, key);
            let least = self.least[at].load(Ordering::Acquire);
            if self.pool.get(object, index, &mut bytes).unwrap() {
                let version = version_of(&bytes, at as u64);
                let last = self.last[at].load(Ordering::Acquire);
                let found = format!("key {at}: {version} is not in {least}..={last}");
                assert!((least..=last).contains(&version), "{found}");
                self.hits.fetch_add(1, Ordering::Relaxed);
            }
        }
    }

    fn own(&self, owner: u64) {
        let mut random = Random(owner << 48);
        while !self.stopped() {
            let number = self.blocks.fetch_add(1, Ordering::Relaxed) + 1;
            let end = [1, 64, 600, u64::MAX][random.below(4) as usize];
            let pages = Pages::new(1 + random.below(end.min(self.block_pages_max)));
            let zeroed = random.below(4) == 0;
            let request = Request::new(pages).any();
            let request = if zeroed { request.zeroed() } else { request };
            let is_promised = !zeroed && pages == Pages::new(1);
            let mut block = match is_promised {
                true => self.promised(pages, &mut random),
                false => self.reserve.alloc(request).unwrap(),
            };
            if zeroed {
                let wrong = block.bytes().unwrap().iter().position(|byte| *byte != 0);
                assert_eq!(wrong, None, "a zeroed block, {:?}", block.extent());
            }
            write(block.bytes_mut().unwrap(), number);
            thread::sleep(HOLD_MAX * random.below(100).saturating_sub(25) as u32 / 75);
            let wrong = first_wrong(block.bytes().unwrap(), number);
            assert_eq!(wrong, None, "a stray write into {:?}", block.extent());
        }
    }
}

impl Load<'_> {
    fn promised(&self, pages: Pages, random: &mut Random) -> Block {
        let promise = self.reserve.promise(pages).unwrap();
        random.rest(HOLD_MAX);
        self.promises.fetch_add(1, Ordering::Relaxed);
        promise.take().unwrap()
    }
}

struct Inherited {
    reserve: Reserve,
    pool: Namespace,
    block: Block,
    /// Each child takes its own copy.
    promise: Option<Promise>,
}

impl Inherited {
    /// Allocates nothing.
    fn refuses_all(&mut self, bytes: &mut [u8]) -> bool {
        fn refused<T>(result: Result<T, ReserveError>) -> bool {
            matches!(result, Err(ReserveError::Forked))
        }
        let one = Pages::new(1);
        let _ = self.reserve.stats();
        let _ = self.block.contiguity();
        refused(self.pool.get(0, 0, bytes))
            && refused(self.pool.put(0, 0, bytes))
            && refused(self.pool.invalidate_page(0, 0))
            && refused(self.reserve.alloc(one))
            && refused(self.reserve.try_alloc(one))
            && refused(self.reserve.promise(one))
            && refused(self.reserve.largest_run())
            && refused(self.block.bytes().map(|_| ()))
            && refused(self.block.bytes_mut().map(|_| ()))
            && self.promise.take().is_some_and(|promise| refused(promise.take()))
    }
}

fn fork_while(kept: &mut Inherited, goes_on: impl Fn() -> bool) -> u64 {
    let mut bytes = page_buffer();
    let mut forks = 0;
    while goes_on() {
        let ended = in_child(|| u8::from(!kept.refuses_all(&mut bytes)));
        assert_eq!(ended, ChildEnd::Exit(0), "what the child was to be refused, or how it ended");
        forks += 1;
        thread::sleep(BETWEEN_FORKS);
    }
    forks
}

/// Builds a reserve in which a block of `block_pages_max` always fits: the other owner's block, the
/// kept block and the promise leave at most four gaps, with at least `4 * block_pages_max` pages in
/// total, so one gap is long enough.
fn reserve(writers: Option<Writers>, block_pages_max: u64, zero_ahead: Pages) -> Reserve {
    let granule = Bytes::mib(2);
    let len = Pages::new(5 * block_pages_max + 1 + KEPT_PAGES)
        .bytes(page_size())
        .get()
        .div_ceil(granule.get());
    let len = Bytes::new(len * granule.get());
    let contig = Contig::options().source(Source::Plain).build(len).expect("ordinary memory");
    let builder = Reserve::options().zero_ahead(zero_ahead);
    let builder = match writers {
        Some(writers) => with_writers(builder, writers),
        None => builder,
    };
    builder.build_on(contig).expect("a whole number of granules")
}

fn stress(writers: Option<Writers>, block_pages_max: u64, zero_ahead: Pages) {
    let reserve = reserve(writers, block_pages_max, zero_ahead);
    println!("writers: {:?}, {:?}", reserve.writers(), reserve.why_counted());
    let pool = reserve.page_cache().namespace("stress").unwrap();
    let zeros = || (0..WRITERS * KEYS_EACH).map(|_| AtomicU64::new(0)).collect();
    let mut block = reserve.alloc(Request::new(Pages::new(KEPT_PAGES)).any()).unwrap();
    write(block.bytes_mut().unwrap(), u64::MAX);
    let promise = reserve.promise(Pages::new(1)).unwrap();
    let mut kept =
        Inherited { reserve: reserve.clone(), pool: pool.clone(), block, promise: Some(promise) };
    let load = Load {
        reserve: &reserve,
        pool,
        block_pages_max,
        least: zeros(),
        last: zeros(),
        stop: AtomicBool::new(false),
        hits: AtomicU64::new(0),
        blocks: AtomicU64::new(0),
        promises: AtomicU64::new(0),
    };
    let storm = Storm::begin(USUAL);
    let forks = thread::scope(|scope| {
        let load = &load;
        (0..WRITERS).for_each(|n| drop(scope.spawn(move || load.write(n))));
        (0..READERS).for_each(|n| drop(scope.spawn(move || load.read(n))));
        (0..OWNERS).for_each(|n| drop(scope.spawn(move || load.own(n))));
        let _stop = Stop(&load.stop);
        fork_while(&mut kept, || storm.goes_on(|| load.is_met()))
    });
    assert_eq!(first_wrong(kept.block.bytes().unwrap(), u64::MAX), None);
    drop((kept.promise.unwrap().take().unwrap(), kept.block));
    let stats = at_rest(&reserve);
    let [hits, promises] = [&load.hits, &load.promises].map(|n| n.load(Ordering::Relaxed));
    let Stats { stored, recalled, allocs, .. } = stats;
    println!("stored {stored}, recalled {recalled}, blocks {allocs}, forks {forks}, hits {hits}");
    assert!(promises > 0 && hits > 0);
    assert_eq!((stats.alloc_failures, stats.held), (0, Pages::ZERO));
    assert!(stats.recalled > 0 && stats.replaced > 0, "a load that met nothing: {stats}");
    let all = reserve.alloc(Request::new(reserve.len()).any()).unwrap();
    assert_eq!(reserve.stats().live, Pages::ZERO);
    drop(all);
    at_rest(&reserve);
}

/// Waits until the zeroing thread rests, because only then the statistics add up.
fn at_rest(reserve: &Reserve) -> Stats {
    let begin = Instant::now();
    loop {
        let stats = reserve.stats();
        match stats.check() {
            Ok(()) => return stats,
            Err(why) => assert!(begin.elapsed() < slowed(PATIENCE), "{why}"),
        }
        thread::sleep(Duration::from_millis(1));
    }
}

#[test]
fn large_blocks_and_the_best_writers_of_the_machine() {
    glebe_testing::alone!();
    stress(None, BLOCK_PAGES_LARGE, Pages::ZERO);
}

#[test]
fn large_blocks_and_counted_writers() {
    glebe_testing::alone!();
    stress(Some(Writers::Counted), BLOCK_PAGES_LARGE, ZERO_AHEAD);
}

#[test]
fn small_blocks_and_the_best_writers_of_the_machine() {
    glebe_testing::alone!();
    stress(None, BLOCK_PAGES_SMALL, ZERO_AHEAD);
}

#[test]
fn small_blocks_and_counted_writers() {
    glebe_testing::alone!();
    stress(Some(Writers::Counted), BLOCK_PAGES_SMALL, Pages::ZERO);
}

#[test]
fn signals_in_the_middle_of_either_way() {
    glebe_testing::alone!();
    let signals = Signals::start(Duration::from_millis(1));
    stress(None, BLOCK_PAGES_SMALL, Pages::ZERO);
    stress(Some(Writers::Counted), BLOCK_PAGES_SMALL, ZERO_AHEAD);
    assert!(signals.came() > 100, "{} signals", signals.came());
}
