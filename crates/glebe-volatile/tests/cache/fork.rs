//! Tests that a forked child has its own cache, whatever other threads do.

use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

use glebe_os::units::Bytes;

use super::{build, caches, is_of, Words};
use crate::volatile::children::{child_says, fork, raw_clone};

const LEN: usize = 3000;

#[test]
fn a_child_finds_what_was_there_and_changes_nothing_in_the_parent() {
    glebe_testing::alone!();
    for cache in caches(Bytes::mib(4), &Words::options()) {
        let held = cache.get_or_build(0, LEN, build(0)).unwrap();
        drop(cache.get_or_build(1, LEN, build(1)).unwrap());
        drop(cache.get_or_build(2, LEN, build(2)).unwrap());
        cache.offer_all();
        drop(cache.get(&1));
        let said = child_says(fork, || {
            let found = [0, 1].map(|key| cache.get(&key).is_some_and(|entry| is_of(&entry, key)));
            let again = cache.get_or_build(2, LEN, build(2)).is_ok_and(|entry| is_of(&entry, 2));
            cache.drop_marked().unwrap();
            cache.clear();
            let built = cache.get_or_build(1, LEN, build(9)).is_ok_and(|entry| is_of(&entry, 9));
            found == [true, true] && again && built && cache.len() == 1 && is_of(&held, 0)
        });
        assert!(said, "{:?}", cache.engine());
        assert!([0, 1, 2].iter().all(|key| cache.get(key).is_none_or(|e| is_of(&e, *key))));
        assert!(cache.get(&0).is_some() && cache.get(&1).is_some());
    }
}

#[test]
fn a_builder_may_fork() {
    glebe_testing::alone!();
    for cache in caches(Bytes::mib(4), &Words::options()) {
        let forks = |words: &mut [u64]| {
            let said = child_says(fork, || {
                cache.get_or_build(5, LEN, build(5)).is_ok_and(|entry| is_of(&entry, 5))
            });
            assert!(said);
            build(4)(words)
        };
        assert!(is_of(&cache.get_or_build(4, LEN, forks).unwrap(), 4));
    }
}

#[test]
fn a_child_that_the_c_library_did_not_make_keeps_nothing() {
    glebe_testing::alone!();
    for cache in caches(Bytes::mib(4), &Words::options()) {
        let held = cache.get_or_build(0, LEN, build(0)).unwrap();
        let said = child_says(raw_clone, || {
            let built = cache.get_or_build(0, LEN, build(3)).unwrap();
            let apart = !built.is_kept() && is_of(&built, 3) && is_of(&held, 0);
            drop(built);
            apart && cache.get(&0).is_none() && !cache.remove(&0) && cache.len() == 0
        });
        assert!(said, "{:?}", cache.engine());
        assert!(cache.get(&0).is_some());
    }
}

#[test]
fn children_of_a_busy_process_can_use_the_cache() {
    glebe_testing::alone!();
    for cache in caches(Bytes::mib(4), &Words::options().hot(Bytes::ZERO)) {
        let stop = AtomicBool::new(false);
        thread::scope(|scope| {
            for _ in 0..2 {
                scope.spawn(|| {
                    for key in (0..8).cycle().take_while(|_| !stop.load(Ordering::Relaxed)) {
                        let entry = cache.get_or_build(key, LEN, build(key)).unwrap();
                        assert!(is_of(&entry, key));
                        drop(entry);
                        // Removals cause more builds, which must not block a fork.
                        cache.remove(&(key / 2));
                    }
                });
            }
            let all_said = (0..20).all(|_| {
                child_says(fork, || {
                    (0..8).all(|key| {
                        cache.get_or_build(key, LEN, build(key)).is_ok_and(|e| is_of(&e, key))
                    })
                })
            });
            stop.store(true, Ordering::Relaxed);
            assert!(all_said, "{:?}", cache.engine());
        });
    }
}
