//! Tests builders of entries: threads that miss at once share a build; some builders fail, panic or
//! call the cache.

use std::panic::{catch_unwind, AssertUnwindSafe};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Barrier, Mutex};
use std::thread;
use std::time::Duration;

use glebe_os::units::Bytes;
use glebe_volatile::{BuildError, Refills};

use super::{build, caches, is_of, Words};

const LEN: usize = 3000;
const THREADS: u64 = 8;

/// Returns the numbers of builds and of kept entries.
fn stampede(cache: &Words) -> (u64, u64) {
    let (builds, kept) = (AtomicU64::new(0), AtomicU64::new(0));
    let barrier = Barrier::new(THREADS as usize);
    thread::scope(|scope| {
        for _ in 0..THREADS {
            scope.spawn(|| {
                barrier.wait();
                let slow = |words: &mut [u64]| {
                    builds.fetch_add(1, Ordering::Relaxed);
                    thread::sleep(Duration::from_millis(100));
                    build(7)(words)
                };
                let entry = cache.get_or_build(7, LEN, slow).unwrap();
                assert!(entry.len() == LEN && is_of(&entry, 7));
                kept.fetch_add(u64::from(entry.is_kept()), Ordering::Relaxed);
            });
        }
    });
    (builds.into_inner(), kept.into_inner())
}

#[test]
fn of_threads_that_miss_at_once_one_builds() {
    for cache in caches(Bytes::mib(4), &Words::options()) {
        assert_eq!(stampede(&cache), (1, THREADS));
        cache.stats().check().unwrap();
    }
}

#[test]
fn what_is_not_kept_is_built_once_for_all_who_wait() {
    let refills = Refills::new();
    for cache in caches(Bytes::mib(4), &Words::options().refills(refills.clone())) {
        refills.withhold(Duration::from_secs(3600));
        let (builds, kept) = stampede(&cache);
        // A thread that comes after a build builds again, because nothing is kept.
        let stats = cache.stats();
        assert!(builds < THREADS && kept == 0, "{builds} {kept}");
        assert_eq!((stats.not_kept, stats.handed), (builds, THREADS - builds));
        assert_eq!(cache.len(), 0);
        stats.check().unwrap();
    }
}

#[test]
fn a_builder_that_fails_or_panics_leaves_no_entry_and_the_next_builds() {
    for cache in caches(Bytes::mib(4), &Words::options()) {
        let failed = cache.get_or_build(1, LEN, |words| {
            words.fill(1);
            Err("no such picture")
        });
        let Err(why) = failed else { panic!("it was built") };
        assert_eq!(why.to_string(), "no such picture");
        assert!(matches!(why, BuildError::Builder("no such picture")));
        let panicked = catch_unwind(AssertUnwindSafe(|| {
            let _ = cache.get_or_build(1, LEN, |words| -> Result<(), ()> {
                words.fill(2);
                panic!("on purpose")
            });
        }));
        assert!(panicked.is_err());
        assert!(cache.get(&1).is_none() && cache.len() == 0);
        assert_eq!(cache.stats().kept.get(), 0);
        assert!(is_of(&cache.get_or_build(1, LEN, build(1)).unwrap(), 1));
        let stats = cache.stats();
        assert_eq!((stats.failed, stats.built), (2, 1));
        stats.check().unwrap();
    }
}

#[test]
fn those_who_wait_for_a_builder_that_fails_build_one_after_the_other() {
    for cache in caches(Bytes::mib(4), &Words::options()) {
        let tries = AtomicU64::new(0);
        let barrier = Barrier::new(THREADS as usize);
        let outcomes = Mutex::new(Vec::new());
        thread::scope(|scope| {
            for _ in 0..THREADS {
                scope.spawn(|| {
                    barrier.wait();
                    let third_time = |words: &mut [u64]| {
                        thread::sleep(Duration::from_millis(20));
                        match tries.fetch_add(1, Ordering::Relaxed) {
                            0 => Err("not yet"),
                            1 => panic!("on purpose"),
                            _ => build(7)(words).map_err(|_| "never"),
                        }
                    };
                    let got = catch_unwind(AssertUnwindSafe(|| {
                        cache.get_or_build(7, LEN, third_time).is_ok_and(|entry| is_of(&entry, 7))
                    }));
                    outcomes.lock().unwrap().push(got.unwrap_or(false));
                });
            }
        });
        assert_eq!(tries.into_inner(), 3);
        let good = outcomes.into_inner().unwrap().into_iter().filter(|good| *good).count();
        assert_eq!(good as u64, THREADS - 2);
    }
}

#[test]
fn a_builder_may_build_another_key_but_not_its_own() {
    for cache in caches(Bytes::mib(4), &Words::options()) {
        let mut inner = None;
        let outer = |words: &mut [u64]| {
            // `get` does not wait for this thread's own build.
            assert!(cache.get(&1).is_none());
            inner = Some(cache.get_or_build(1, LEN, build(1)).map(drop));
            let other = cache.get_or_build(2, LEN, build(2))?;
            assert!(is_of(&other, 2));
            build(1)(words).map_err(BuildError::Builder)
        };
        assert!(is_of(&cache.get_or_build(1, LEN, outer).unwrap(), 1));
        let why = inner.unwrap().unwrap_err();
        assert!(matches!(why, BuildError::Recursion), "{why}");
        assert!(cache.get(&2).is_some());
        cache.stats().check().unwrap();
    }
}

#[test]
fn builders_that_wait_for_each_other_in_a_circle_are_told() {
    for cache in caches(Bytes::mib(4), &Words::options()) {
        let (both, refused) = (Barrier::new(2), AtomicU64::new(0));
        let ask = |own: u64, other: u64| {
            let outer = |words: &mut [u64]| {
                both.wait();
                match cache.get_or_build(other, LEN, build(other)) {
                    Ok(entry) => assert!(is_of(&entry, other)),
                    Err(BuildError::Recursion) => {
                        refused.fetch_add(1, Ordering::Relaxed);
                    }
                    Err(why) => panic!("{why}"),
                }
                build(own)(words)
            };
            assert!(is_of(&cache.get_or_build(own, LEN, outer).unwrap(), own));
        };
        thread::scope(|scope| {
            scope.spawn(|| ask(1, 2));
            scope.spawn(|| ask(2, 1));
        });
        assert_eq!(refused.into_inner(), 1);
    }
}
