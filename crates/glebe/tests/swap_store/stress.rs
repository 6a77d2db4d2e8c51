//! Stresses a store with threads whose objects exceed its budget. Each thread changes its own
//! objects, and reads all, while the budget changes.
//!
//! The bytes of an object contain its number and version and follow from them. This reveals foreign
//! bytes, mixtures and lost writes.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::Mutex;
use std::time::{Duration, Instant};

use glebe::swap::{Key, Stats, Store, SwapError, SwapOptions};
use glebe::units::Bytes;
use glebe_testing::time::{slowed, Storm};

use super::{page, pages};
use glebe_testing::stressed::{mix, Stop};

const THREADS: usize = 4;
const OBJECTS: usize = 48;
/// Pages: less than a third of all objects' pages.
const BUDGET: u64 = 120;
/// Pages of the incompressible third.
const NOISE: u64 = 128;
/// The pool's own tables and more.
const TABLES: Bytes = Bytes::new(88 << 10);
const PATIENCE: Duration = Duration::from_secs(60);
const USUAL: Duration = Duration::from_millis(1500);

#[derive(Default)]
struct Known {
    key: Mutex<Option<Key>>,
    /// The last version written completely.
    version: AtomicU64,
}

struct Shared {
    store: Store,
    known: Vec<Known>,
    stop: AtomicBool,
    reads: AtomicU64,
}

/// Returns little more than the stored copies of the incompressible third take.
fn pool_limit() -> Bytes {
    pages(NOISE) + TABLES
}

struct Rng(u64);

impl Rng {
    fn below(&mut self, end: usize) -> usize {
        self.0 = mix(self.0);
        (self.0 >> 20) as usize % end
    }
}

fn len_of(whose: usize) -> usize {
    match whose % 8 {
        0 => 7 * page() + 11,
        1 => 3 * page(),
        _ => page() - 8 * (whose % 3),
    }
}

/// Returns word number `at` of an object. By `whose`, the words are noise, compress well, or equal
/// the first word.
fn word_of(whose: usize, version: u64, at: usize) -> u64 {
    match whose % 3 {
        0 => mix((whose as u64) << 40 ^ version << 16 ^ at as u64),
        1 => head_of(whose, version) ^ (at as u64 % 4),
        _ => head_of(whose, version),
    }
}

fn head_of(whose: usize, version: u64) -> u64 {
    version << 16 | whose as u64
}

fn write(bytes: &mut [u8], whose: usize, version: u64) {
    bytes[..8].copy_from_slice(&head_of(whose, version).to_le_bytes());
    for (at, chunk) in bytes[8..].chunks_mut(8).enumerate() {
        chunk.copy_from_slice(&word_of(whose, version, at).to_le_bytes()[..chunk.len()]);
    }
}

fn version_of(bytes: &[u8], whose: usize) -> u64 {
    assert_eq!(bytes.len(), len_of(whose));
    let head = u64::from_le_bytes(bytes[..8].try_into().unwrap());
    let version = head >> 16;
    assert_eq!(head, head_of(whose, version), "another object's bytes");
    for (at, chunk) in bytes[8..].chunks(8).enumerate() {
        let expected = word_of(whose, version, at).to_le_bytes();
        assert!(*chunk == expected[..chunk.len()], "object {whose}, version {version}, word {at}");
    }
    version
}

/// Returns true if the refusal may end when other threads unpin or load objects.
fn is_passing(error: &SwapError) -> bool {
    matches!(error, SwapError::Budget { .. } | SwapError::Full { .. } | SwapError::Pinned)
}

fn retry<T>(mut call: impl FnMut() -> Result<T, SwapError>) -> T {
    let begin = Instant::now();
    loop {
        match call() {
            Err(error) if is_passing(&error) => {
                assert!(begin.elapsed() < slowed(PATIENCE), "no more room, ever: {error}");
                std::thread::yield_now();
            }
            done => return done.unwrap_or_else(|error| panic!("{error}")),
        }
    }
}

fn read(shared: &Shared, whose: usize) {
    let known = &shared.known[whose];
    let Some(key) = *known.key.lock().unwrap() else { return };
    let before = known.version.load(Ordering::SeqCst);
    match shared.store.pin(key) {
        Ok(pin) => {
            let version = version_of(&pin, whose);
            assert!(version >= before, "object {whose}: a write was lost");
            assert_eq!(version, version_of(&pin, whose), "it changed under a guard");
            shared.reads.fetch_add(1, Ordering::Relaxed);
        }
        Err(SwapError::Stale | SwapError::Dead) => {}
        Err(error) if is_passing(&error) => {}
        Err(error) => panic!("object {whose}: {error}"),
    }
}

fn change(shared: &Shared, rng: &mut Rng, whose: usize) {
    let (store, known) = (&shared.store, &shared.known[whose]);
    let key = *known.key.lock().unwrap();
    let last = known.version.load(Ordering::SeqCst);
    let Some(key) = key else {
        let mut object = retry(|| store.create(len_of(whose)));
        assert!(object.iter().all(|byte| *byte == 0), "a new object holds another's bytes");
        write(&mut object, whose, last + 1);
        let key = object.key();
        drop(object);
        known.version.store(last + 1, Ordering::SeqCst);
        *known.key.lock().unwrap() = Some(key);
        return;
    };
    match rng.below(16) {
        0 => store.cold(key).unwrap(),
        1 => match store.will_need(key) {
            Err(error) if !is_passing(&error) => panic!("{error}"),
            _ => {}
        },
        2 => {
            *known.key.lock().unwrap() = None;
            assert_eq!(version_of(&retry(|| store.take(key)), whose), last);
        }
        3 => {
            *known.key.lock().unwrap() = None;
            store.dead(key).unwrap();
            retry(|| store.free(key));
        }
        4 => {
            *known.key.lock().unwrap() = None;
            retry(|| store.free(key));
        }
        _ => {
            let mut guard = retry(|| store.pin_mut(key));
            assert_eq!(version_of(&guard, whose), last, "a write was lost");
            write(&mut guard, whose, last + 1);
            drop(guard);
            known.version.store(last + 1, Ordering::SeqCst);
        }
    }
}

fn work(shared: &Shared, thread: usize) {
    let mut rng = Rng(thread as u64 + 1);
    while !shared.stop.load(Ordering::Relaxed) {
        if rng.below(2) == 0 {
            read(shared, rng.below(THREADS * OBJECTS));
        } else {
            let whose = thread * OBJECTS + rng.below(OBJECTS);
            change(shared, &mut rng, whose);
        }
    }
}

#[test]
fn threads_lose_no_write_and_see_no_other_byte() {
    // Kept copies fill this pool at times.
    run(Store::options().pool_limit(pool_limit()), |stats| stats.kept_dropped > 0);
}

#[test]
fn nor_do_they_with_a_file() {
    let options = Store::options().pool_limit(Bytes::new(pool_limit().get() / 3));
    let options = options.file_in(std::env::temp_dir(), pages(512));
    #[cfg(feature = "encrypt")]
    let options = options.encrypted();
    run(options, |stats| stats.spilled > 100 && stats.read_back > 100);
}

fn run(options: SwapOptions, is_met: impl Fn(&Stats) -> bool) {
    let is_met = |stats: &Stats| {
        let kinds = [stats.coded, stats.raw, stats.filled, stats.reused];
        kinds.iter().all(|count| *count > 0) && stats.loaded > 1000 && is_met(stats)
    };
    let options = options.capacity(pages(4096));
    let known = (0..THREADS * OBJECTS).map(|_| Known::default()).collect();
    let shared = Shared {
        store: options.build(pages(BUDGET)).unwrap(),
        known,
        stop: AtomicBool::new(false),
        reads: AtomicU64::new(0),
    };
    std::thread::scope(|scope| {
        for thread in 0..THREADS {
            let shared = &shared;
            scope.spawn(move || {
                let _stop = Stop(&shared.stop);
                work(shared, thread);
            });
        }
        let (_stop, storm, mut turn) = (Stop(&shared.stop), Storm::begin(USUAL), 0);
        let is_met = || is_met(&shared.store.stats());
        while storm.goes_on(is_met) && !shared.stop.load(Ordering::Relaxed) {
            std::thread::sleep(Duration::from_millis(7));
            turn += 1;
            match shared.store.set_budget(pages(BUDGET - turn % 3 * 30)) {
                Ok(()) | Err(SwapError::BudgetBelowPinned { .. } | SwapError::Full { .. }) => {}
                Err(error) => panic!("{error}"),
            }
        }
    });
    let stats = shared.store.stats();
    println!("{} reads; {}", shared.reads.load(Ordering::Relaxed), stats.to_json());
    stats.check().unwrap();
    assert!(is_met(&stats), "{stats}");
    for (whose, known) in shared.known.iter().enumerate() {
        if let Some(key) = *known.key.lock().unwrap() {
            let bytes = shared.store.take(key).unwrap();
            assert_eq!(version_of(&bytes, whose), known.version.load(Ordering::SeqCst));
        }
    }
    let end = shared.store.stats();
    end.check().unwrap();
    assert_eq!((end.resident, end.stored, end.buried, end.file), Default::default());
}
