//! Tests a cache in a shared file with processes that build, wait, purge and are killed.

use std::collections::HashMap;
use std::convert::Infallible;
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Barrier};
use std::time::{Duration, Instant};

use glebe_testing::time::{is_long, slowed, Storm};
use glebe_volatile::{
    Error, Refills, SharedBuildError, SharedCache, SharedCacheOptions, SharedCacheStats,
};
use proptest::prelude::*;

use super::program::file_of;
use super::*;
use glebe_testing::steered::{sleep_on, Process, SteeredEnd};

const LONG: Duration = Duration::from_secs(60);
const USUAL: Duration = Duration::from_millis(400);

fn options() -> SharedCacheOptions {
    SharedCache::options().entry(at(2)).patience(slowed(LONG))
}

fn cache_of(granules: u64, options: SharedCacheOptions) -> SharedCache {
    let shared = Shared::options().holders(16).create(at(granules)).unwrap();
    SharedCache::over(Arc::new(shared), options).unwrap()
}

fn other(cache: &SharedCache, options: SharedCacheOptions) -> SharedCache {
    let copy = cache.shared().fd().try_clone_to_owned().unwrap();
    SharedCache::over(Arc::new(Shared::options().adopt(copy).unwrap()), options).unwrap()
}

fn value_of(key: u64, len: usize) -> Vec<u8> {
    let mut state = key.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let mut next = || {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(key);
        (state >> 56) as u8
    };
    (0..len).map(|_| next()).collect()
}

fn right(key: u64) -> Vec<u8> {
    let most = at(2).as_usize() - 16;
    value_of(key, (key.wrapping_mul(2_654_435_761) % most as u64) as usize)
}

fn fill_in(value: &mut Vec<u8>, bytes: &[u8]) -> Result<(), Infallible> {
    value.extend_from_slice(bytes);
    Ok(())
}

fn build(cache: &SharedCache, key: u64) -> Vec<u8> {
    let mut value = vec![7; 3];
    let put = |value: &mut Vec<u8>| fill_in(value, &right(key));
    cache.get_or_build(&key.to_ne_bytes(), &mut value, put).unwrap();
    value
}

fn look(cache: &SharedCache, key: u64) -> bool {
    let mut value = Vec::new();
    let is_there = cache.get(&key.to_ne_bytes(), &mut value).unwrap();
    assert_eq!(value, if is_there { right(key) } else { Vec::new() }, "key {key}");
    is_there
}

fn seed(random: &mut u64) -> u64 {
    *random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695);
    *random >> 33
}

#[test]
fn what_one_builds_the_other_finds_until_it_is_purged_or_removed() {
    let first = cache_of(100, options());
    let second = other(&first, SharedCache::options());
    assert_eq!(first.limit(), second.limit());
    assert!(!look(&second, 1));
    assert_eq!(build(&first, 1), right(1));
    assert!(look(&second, 1) && build(&second, 1) == right(1));
    let page = page_size().bytes();
    assert_eq!(first.shared().stats().marked, right(1).len_pages());
    assert!(second.shared().purge(page, Priority::HIGHEST).unwrap() >= page);
    assert!(!look(&first, 1) && !look(&second, 1));
    assert_eq!(build(&second, 1), right(1));
    assert!(look(&first, 1));
    assert!(second.remove(&1_u64.to_ne_bytes()).unwrap());
    assert!(!second.remove(&1_u64.to_ne_bytes()).unwrap() && !look(&first, 1));
    let (one, two) = (first.stats(), second.stats());
    assert_eq!((one.hits, one.misses, one.built, one.lost), (1, 3, 1, 1), "{one}");
    assert_eq!((two.hits, two.misses, two.built, two.removed), (2, 3, 1, 1), "{two}");
    one.check().and(two.check()).unwrap();
    assert!(one.total > Pages::new(80) && one.not_kept + two.not_kept == 0);
}

trait LenPages {
    fn len_pages(&self) -> Pages;
}

impl LenPages for Vec<u8> {
    /// Includes the entry's key and checksum.
    fn len_pages(&self) -> Pages {
        Bytes::new(self.len() as u64 + 16).pages_up(page_size())
    }
}

#[test]
fn all_lengths_fit_up_to_the_limit() {
    let cache = cache_of(100, options());
    let limit = cache.limit().as_usize();
    let put = |key: &[u8], len: usize, value: &mut Vec<u8>| {
        cache.get_or_build(key, value, |value: &mut Vec<u8>| fill_in(value, &value_of(9, len)))
    };
    let mut value = Vec::new();
    for key_len in [0, 1, 7, 8, 100, limit / 2, limit] {
        let key = value_of(1, key_len);
        let len = limit - key_len;
        put(&key, len, &mut value).unwrap();
        assert!(cache.get(&key, &mut value).unwrap() && value == value_of(9, len), "{key_len}");
        assert!(cache.remove(&key).unwrap());
        let error = put(&key, len + 1, &mut value).unwrap_err();
        let said = error.to_string();
        assert!(said.contains(&(limit + 1).to_string()), "{said}");
        assert!(matches!(error, SharedBuildError::TooLong { .. }) && value.len() == len + 1);
        assert!(!cache.get(&key, &mut value).unwrap() && value.is_empty());
    }
    let long = vec![1; limit + 1];
    let error = put(&long, 0, &mut value).unwrap_err();
    assert!(matches!(error, SharedBuildError::TooLong { len, .. } if len == limit + 1));
    assert!(!cache.get(&long, &mut value).unwrap());
    cache.stats().check().unwrap();
}

#[test]
fn a_builder_that_fails_or_panics_leaves_the_slot_to_others() {
    let cache = cache_of(100, options());
    let mut value = Vec::new();
    let failed = cache.get_or_build(b"key", &mut value, |_| Err("no"));
    assert_eq!(failed.unwrap_err().to_string(), "no");
    let panics = || {
        let mut value = Vec::new();
        let _ = cache.get_or_build(b"key", &mut value, |_| -> Result<(), ()> { panic!("asked") });
    };
    std::panic::catch_unwind(std::panic::AssertUnwindSafe(panics)).unwrap_err();
    let begin = Instant::now();
    cache.get_or_build(b"key", &mut value, |_| Ok::<_, ()>(())).unwrap();
    assert!(begin.elapsed() < slowed(LONG) / 2 && cache.get(b"key", &mut value).unwrap());
    assert_eq!((cache.stats().failed, cache.stats().waited), (2, 0));
    cache.stats().check().unwrap();
}

#[test]
fn nothing_is_kept_while_refills_are_withheld() {
    let refills = Refills::new();
    let cache = cache_of(100, options().refills(refills.clone()));
    refills.withhold(LONG);
    assert_eq!((build(&cache, 5), build(&cache, 5)), (right(5), right(5)));
    assert!(!look(&cache, 5));
    assert_eq!((cache.stats().built, cache.stats().not_kept), (2, 2));
    refills.allow();
    build(&cache, 5);
    assert!(look(&cache, 5));
}

#[test]
fn patience_ends_and_a_removal_reaches_a_builder() {
    let cache = cache_of(100, options().patience(Duration::from_millis(20)));
    let (mut value, begin) = (Vec::new(), Instant::now());
    let outer = |value: &mut Vec<u8>| {
        // The outer builder owns the slot; the inner one waits and keeps nothing.
        assert_eq!(build(&cache, 3), right(3));
        assert!(!cache.remove(&3_u64.to_ne_bytes()).unwrap());
        fill_in(value, &right(3))
    };
    cache.get_or_build(&3_u64.to_ne_bytes(), &mut value, outer).unwrap();
    assert!(value == right(3) && !look(&cache, 3) && begin.elapsed() < slowed(LONG) / 6);
    let stats = cache.stats();
    assert_eq!((stats.built, stats.not_kept, stats.waited), (2, 2, 1), "{stats}");
}

proptest! {
    #![proptest_config(ProptestConfig {
        cases: if is_long() { 60 } else { 30 },
        failure_persistence: None,
        ..ProptestConfig::default()
    })]

    #[test]
    fn a_cache_is_a_map_that_forgets(steps in prop::collection::vec(any::<(u8, u8)>(), 1..200)) {
        let first = cache_of(200, options());
        let second = other(&first, options());
        let mut map: HashMap<u64, bool> = HashMap::new();
        for (at, (what, key)) in steps.into_iter().enumerate() {
            let (cache, key) = (if at % 2 == 0 { &first } else { &second }, u64::from(key % 6));
            match what % 8 {
                0..=2 => {
                    prop_assert_eq!(build(cache, key), right(key));
                    map.insert(key, true);
                }
                3 | 4 => {
                    // A set has eight slots and at most seven keys exist, so no entry is displaced.
                    prop_assert_eq!(look(cache, key), map.get(&key) == Some(&true));
                }
                5 => {
                    let removed = cache.remove(&key.to_ne_bytes()).unwrap();
                    let was = map.remove(&key);
                    prop_assert!(removed || was != Some(true));
                }
                6 => {
                    cache.shared().purge(cache.shared().len(), Priority::HIGHEST).unwrap();
                    map.values_mut().for_each(|is_there| *is_there = false);
                }
                _ => {
                    build(cache, 100 + key);
                    cache.remove(&(100 + key).to_ne_bytes()).unwrap();
                }
            }
        }
        first.stats().check().and(second.stats().check()).unwrap();
    }
}

#[test]
fn threads_find_what_is_right_while_entries_go() {
    let cache = cache_of(64, options());
    let storm = Storm::begin(USUAL);
    let is_met = |stats: &SharedCacheStats| stats.hits > 100 && stats.built > 100 && stats.lost > 0;
    std::thread::scope(|scope| {
        for thread in 0..3_u64 {
            let (cache, storm) = (&cache, &storm);
            scope.spawn(move || {
                let mut random = thread;
                while storm.goes_on(|| is_met(&cache.stats())) {
                    let key = seed(&mut random) % 60;
                    match seed(&mut random) % 16 {
                        0 => drop(cache.remove(&key.to_ne_bytes())),
                        1 => drop(cache.shared().purge(at(3), Priority::HIGHEST)),
                        2..=6 => assert_eq!(build(cache, key), right(key), "key {key}"),
                        _ => drop(look(cache, key)),
                    }
                }
            });
        }
    });
    let stats = cache.stats();
    assert!(is_met(&stats), "{stats}");
    stats.check().unwrap();
    let shared = cache.shared().stats();
    assert!(shared.pinned == Pages::ZERO && shared.marked <= stats.total, "{shared}");
}

#[test]
fn a_stampede_builds_once() {
    glebe_testing::alone!();
    const KEYS: u64 = 60;
    const THREADS: usize = 2;
    let cache = cache_of(1000, options());
    let storm = |cache: &SharedCache| {
        let barrier = Barrier::new(THREADS);
        std::thread::scope(|scope| {
            for _ in 0..THREADS {
                scope.spawn(|| {
                    for key in 0..KEYS {
                        barrier.wait();
                        let mut value = Vec::new();
                        let slow = |value: &mut Vec<u8>| {
                            std::thread::sleep(Duration::from_millis(key % 3));
                            fill_in(value, &right(key))
                        };
                        cache.get_or_build(&key.to_ne_bytes(), &mut value, slow).unwrap();
                        assert_eq!(value, right(key));
                    }
                });
            }
        });
    };
    let child = Process::start(|link| {
        let own = other(&cache, options());
        link.tell(0);
        link.hear();
        storm(&own);
        link.tell(own.stats().built as i32);
    });
    child.link.hear();
    child.link.tell(0);
    storm(&cache);
    let built = cache.stats().built + child.link.hear() as u64;
    assert_eq!(child.end(), SteeredEnd::Exit(0));
    assert_eq!(built, KEYS, "{}", cache.stats());
}

#[test]
fn a_killed_builder_is_not_waited_for() {
    glebe_testing::alone!();
    let cache = cache_of(100, options());
    let mut value = Vec::new();
    for round in 0..2 {
        let child = Process::start(|link| {
            let own = other(&cache, options());
            let mut value = Vec::new();
            let _ = own.get_or_build(b"key", &mut value, |_| -> Result<(), ()> {
                link.tell(0);
                sleep_on()
            });
        });
        child.link.hear();
        child.kill();
        // This holder gets the lowest free number, which was the child's.
        let _next = (round == 1).then(|| other(&cache, options()));
        let begin = Instant::now();
        cache.get_or_build(b"key", &mut value, |_| Ok::<_, ()>(())).unwrap();
        assert!(
            begin.elapsed() < slowed(LONG) / 2 && cache.remove(b"key").unwrap(),
            "round {round}"
        );
    }
    assert_eq!(cache.stats().not_kept, 0);
}

/// Kills children at random moments; `GLEBE_KILLS` sets how many.
#[test]
fn processes_killed_as_they_write_leave_nothing_wrong() {
    glebe_testing::alone!();
    let kills = std::env::var("GLEBE_KILLS").ok().and_then(|kills| kills.parse().ok());
    let cache = cache_of(64, options());
    let (mut random, mut hits) = (1, 0);
    for nth in 0..kills.unwrap_or(if is_long() { 150 } else { 75 }) {
        let child = Process::start(|link| {
            let mut random = nth;
            link.tell(0);
            loop {
                let key = seed(&mut random) % 40;
                assert_eq!(build(&cache, key), right(key), "key {key}");
                if seed(&mut random) % 4 == 0 {
                    let _ = cache.remove(&key.to_ne_bytes());
                }
            }
        });
        child.link.hear();
        let (begin, time) = (Instant::now(), Duration::from_micros(seed(&mut random) % 2000));
        while begin.elapsed() < time {
            hits += u64::from(look(&cache, seed(&mut random) % 40));
        }
        child.kill();
        (0..40).for_each(|key| hits += u64::from(look(&cache, key)));
        if nth % 8 == 0 {
            cache.shared().purge(at(8), Priority::HIGHEST).unwrap();
        }
    }
    (0..40).for_each(|key| assert_eq!(build(&cache, key), right(key)));
    println!("{hits} hits");
    assert!(hits > 100 && cache.stats().waited == 0, "{}", cache.stats());
    // Every value was kept, so dead processes hold no slots.
    assert_eq!(cache.stats().not_kept, 0);
    cache.stats().check().unwrap();
}

#[cfg(feature = "faults")]
#[test]
fn a_process_killed_at_every_step_leaves_nothing_wrong() {
    glebe_testing::alone!();
    use glebe_os::internal::sys::fault::{arm, disarm, Fault, Lasting};
    let cache = cache_of(64, options());
    for nth in 1.. {
        let child = Process::start(|_| {
            let own = other(&cache, options());
            arm(Fault { nth, choice: 0, lasting: Lasting::Kills });
            build(&own, 1);
            disarm();
        });
        let end = child.end();
        if end == SteeredEnd::Exit(0) {
            println!("{} steps", nth - 1);
            assert!(nth > 4 && look(&cache, 1), "{nth} steps");
            break;
        }
        assert_eq!(end, SteeredEnd::Signal(libc::SIGKILL), "step {nth}");
        look(&cache, 1);
        assert_eq!(build(&cache, 1), right(1), "step {nth}");
        assert!(look(&cache, 1) && cache.remove(&1_u64.to_ne_bytes()).unwrap(), "step {nth}");
    }
    assert_eq!((cache.stats().waited, cache.stats().not_kept), (0, 0));
}

#[test]
fn entries_outlive_their_processes_and_can_be_purged_then() {
    let Some(dir) = files::Tmpfs::new("shared-cache") else { return };
    let path = dir.join("cache");
    let made = Shared::options().create_at(&path, at(100)).unwrap();
    build(&SharedCache::over(Arc::new(made), options()).unwrap(), 1);
    let open = || Arc::new(Shared::options().open(&path).unwrap());
    let cache = SharedCache::over(open(), SharedCache::options()).unwrap();
    assert_eq!(cache.shared().stats().marked, Pages::ZERO);
    assert!(look(&cache, 1));
    assert_eq!(cache.shared().stats().marked, right(1).len_pages());
    assert!(purge_all(cache.shared()) > Bytes::ZERO && !look(&cache, 1));
}

#[test]
fn a_forked_child_goes_on_and_ends_nothing_of_its_parents() {
    glebe_testing::alone!();
    let cache = cache_of(100, options());
    build(&cache, 1);
    let mut value = Vec::new();
    let forks = |value: &mut Vec<u8>| {
        let child = Process::start(|_| {
            assert!(look(&cache, 1));
            assert_eq!(build(&cache, 2), right(2));
        });
        assert_eq!(child.end(), SteeredEnd::Exit(0));
        fill_in(value, &right(3))
    };
    cache.get_or_build(&3_u64.to_ne_bytes(), &mut value, forks).unwrap();
    assert!(look(&cache, 1) && look(&cache, 2) && look(&cache, 3));
    // This builder forks, so it returns in both processes.
    let (mut pid, mut status) = (-1, -1);
    let splits = |value: &mut Vec<u8>| {
        // SAFETY: the child uses only the allocator and the cache, and ends by `_exit`.
        pid = unsafe { libc::fork() };
        if pid > 0 {
            // SAFETY: `pid` is the child, and `status` is a local.
            assert_eq!(unsafe { libc::waitpid(pid, &raw mut status, 0) }, pid);
        }
        fill_in(value, &right(4))
    };
    cache.get_or_build(&4_u64.to_ne_bytes(), &mut value, splits).unwrap();
    if pid == 0 {
        // SAFETY: `_exit` takes no pointer.
        unsafe { libc::_exit(i32::from(cache.stats().not_kept != 1 || value != right(4))) };
    }
    assert_eq!(status, 0);
    assert!(look(&cache, 4) && cache.stats().not_kept == 0);
}

#[test]
fn a_file_that_holds_something_else_or_no_set_is_refused() {
    let make = |granules| Arc::new(Shared::options().create(at(granules)).unwrap());
    let over = |shared: &Arc<Shared>, entry| {
        SharedCache::over(Arc::clone(shared), SharedCache::options().entry(entry))
    };
    for (granules, entry) in [(8, at(1)), (16, at(2)), (100, Bytes::ZERO), (100, Bytes::new(100))] {
        let error = over(&make(granules), entry).unwrap_err();
        assert!(matches!(error, Error::BadOption { .. }), "{error}");
    }
    assert_eq!(over(&make(9), at(1)).unwrap().stats().total, Pages::new(8));
    for (word, value, what) in [
        (0, 1, "magic"),
        (0, u64::MAX, "magic"),
        (1, 1, "version"),
        (1, 3, "version"),
        (2, 3, "entry"),
        (2, u64::MAX, "entry"),
        (2, at(64).get(), "entry"),
    ] {
        let shared = make(100);
        drop(over(&shared, at(2)).unwrap());
        let pin = shared.pin(range(0, 1)).unwrap();
        pin.write(Bytes::new(8 * word), &u64::to_ne_bytes(value)).unwrap();
        drop(pin);
        let error = over(&shared, at(2)).unwrap_err();
        let is_bad = matches!(error, Error::BadFile { .. }) && error.to_string().contains(what);
        assert!(is_bad, "{error}");
    }
    // A creator killed after it wrote the magic leaves this header.
    let shared = make(100);
    let pin = shared.pin(range(0, 1)).unwrap();
    pin.write(Bytes::ZERO, b"glebeshc").unwrap();
    drop(pin);
    assert!(!look(&over(&shared, at(2)).unwrap(), 1));
}

#[test]
fn creators_at_once_make_one_cache() {
    for round in 0..30 {
        let shared = Shared::options().holders(16).create(at(64)).unwrap();
        let barrier = Barrier::new(3);
        let caches: Vec<_> = std::thread::scope(|scope| {
            let make = |entry| {
                let (shared, barrier) = (&shared, &barrier);
                scope.spawn(move || {
                    let copy = shared.fd().try_clone_to_owned().unwrap();
                    let own = Arc::new(Shared::options().adopt(copy).unwrap());
                    barrier.wait();
                    SharedCache::over(own, SharedCache::options().entry(at(entry))).unwrap()
                })
            };
            let threads = [1, 2, 4].map(make);
            threads.into_iter().map(|thread| thread.join().unwrap()).collect()
        });
        let mut value = Vec::new();
        caches[0].get_or_build(b"a", &mut value, |_| Ok::<_, ()>(())).unwrap();
        let is_one = caches.iter().all(|cache| {
            cache.limit() == caches[0].limit() && cache.get(b"a", &mut Vec::new()).unwrap()
        });
        assert!(is_one, "round {round}");
    }
}

fn spoil(file: &File, from: u64, len: u64, random: &mut u64) {
    let state = |turn: u64, phase: u64, low: u64| (turn << 34) | (phase << 32) | low;
    let noise = |random: &mut u64| match seed(random) % 4 {
        0 => state(seed(random), seed(random) % 3, seed(random) % 20_000),
        1 => state(seed(random), 2, seed(random) % (4 << 24)),
        2 => u64::MAX,
        _ => (seed(random) << 32) | seed(random),
    };
    for _ in 0..8 {
        let word = from + seed(random) % len / 8 * 8;
        let _ = file.write_at(&noise(random).to_ne_bytes(), word);
    }
}

#[test]
fn a_spoilt_index_costs_misses_and_nothing_else() {
    let cache = cache_of(64, options().patience(Duration::from_millis(2)));
    let (file, total) = file_of(cache.shared());
    let data = total - cache.shared().len().get();
    let (storm, calls) = (Storm::begin(USUAL), AtomicU64::new(0));
    let is_met = || calls.load(Ordering::Relaxed) > 50 && cache.stats().hits > 0;
    let goes_on = || storm.goes_on(is_met);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let mut random = 1;
            while goes_on() {
                // Skips the cache's header, which each cache reads only once.
                spoil(&file, data + 128, at(1).get() - 128, &mut random);
                if seed(&mut random) % 8 == 0 {
                    spoil(&file, data + 128, at(60).get(), &mut random);
                    spoil(&file, page_size().bytes().get(), 64 * 8, &mut random);
                }
            }
        });
        for thread in 0..2_u64 {
            let (cache, calls, goes_on) = (&cache, &calls, &goes_on);
            scope.spawn(move || {
                let mut random = thread;
                while goes_on() {
                    let key = seed(&mut random) % 40;
                    let mut value = Vec::new();
                    match seed(&mut random) % 8 {
                        0 => drop(cache.remove(&key.to_ne_bytes())),
                        1 => drop(cache.shared().purge(at(3), Priority::HIGHEST)),
                        2..=4 => assert_eq!(build(cache, key), right(key), "key {key}"),
                        _ => {
                            if let Ok(true) = cache.get(&key.to_ne_bytes(), &mut value) {
                                assert_eq!(value, right(key), "key {key}");
                            }
                        }
                    }
                    calls.fetch_add(1, Ordering::Relaxed);
                }
            });
        }
    });
    println!("{} calls; {}", calls.load(Ordering::Relaxed), cache.stats());
    assert!(is_met());
    cache.stats().check().unwrap();
}
