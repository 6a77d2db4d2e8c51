//! Tests objects that several threads insert, read and remove.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::Barrier;
use std::thread;

use super::*;

#[test]
fn a_place_is_used_again_and_its_old_handle_is_stale() {
    let pool = plain().compaction(Compaction::Manual).build().unwrap();
    let beside = pool.insert(&bytes_of(0, 1000)).unwrap();
    let mut old = None;
    for n in 0..20_000 {
        let handle = pool.insert(&bytes_of(n, 900 + n as usize % 100)).unwrap();
        assert_eq!(*pool.get(handle).unwrap(), *bytes_of(n, 900 + n as usize % 100));
        assert!(old.is_none_or(|old| matches!(pool.remove(old), Err(Error::Stale))));
        pool.remove(handle).unwrap();
        old = Some(handle);
    }
    assert_eq!(*pool.get(beside).unwrap(), *bytes_of(0, 1000));
    let stats = pool.stats();
    stats.check().unwrap();
    assert_eq!((stats.objects, stats.inserted, stats.stored_bytes), (1, 20_001, 1000));
    assert_eq!((stats.zspages, stats.limbo_slots), (1, 0));
    pool.check();
}

#[test]
fn a_place_that_is_read_is_not_written() {
    let pool = plain().compaction(Compaction::Manual).build().unwrap();
    let handle = pool.insert(&bytes_of(2, 1000)).unwrap();
    let guard = pool.get(handle).unwrap();
    pool.remove(handle).unwrap();
    let others: Vec<Handle> = (3..9).map(|n| pool.insert(&bytes_of(n, 1000)).unwrap()).collect();
    assert_eq!(*guard, *bytes_of(2, 1000));
    drop(guard);
    others.iter().for_each(|handle| pool.remove(*handle).unwrap());
    pool.stats().check().unwrap();
    pool.check();
}

#[test]
fn one_of_several_removes_an_object_while_its_entry_is_used_again() {
    const THREADS: u64 = 3;
    const ROUNDS: u64 = 3000;
    let pool = plain().build().unwrap();
    let (handle, gone) = (AtomicU64::new(0), AtomicU64::new(0));
    let (barrier, done) = (Barrier::new(THREADS as usize), AtomicBool::new(false));
    thread::scope(|scope| {
        for _ in 1..THREADS {
            scope.spawn(|| {
                while !done.load(Ordering::Relaxed) {
                    let Some(handle) = Handle::from_raw(handle.load(Ordering::Acquire)) else {
                        continue;
                    };
                    match pool.remove(handle) {
                        Ok(()) => gone.fetch_add(1, Ordering::Relaxed),
                        Err(error) => {
                            assert!(matches!(error, Error::Stale));
                            0
                        }
                    };
                }
                barrier.wait();
            });
        }
        let mut own = 0;
        for n in 0..ROUNDS {
            let known = pool.insert(&bytes_of(n, 1000)).unwrap();
            handle.store(known.to_raw(), Ordering::Release);
            for _ in 0..20 {
                let unknown = pool.insert(&bytes_of(n, 1000)).unwrap();
                assert!(pool.remove(unknown).is_ok(), "another removed it");
            }
            own += u64::from(pool.remove(known).is_ok());
        }
        done.store(true, Ordering::Relaxed);
        barrier.wait();
        assert_eq!(own + gone.load(Ordering::Relaxed), ROUNDS);
    });
    let stats = pool.stats();
    stats.check().unwrap();
    assert_eq!(stats.objects, 0);
    pool.check();
}

#[test]
fn another_thread_compacts_and_counts_while_objects_come_and_go() {
    let pool = plain().build().unwrap();
    let done = AtomicBool::new(false);
    thread::scope(|scope| {
        let threads: Vec<_> = (0..3_u64)
            .map(|thread| {
                let pool = &pool;
                scope.spawn(move || {
                    for n in 0..20_000 {
                        let (seed, len) = (thread << 32 | n, 700 + (n * 37 % 600) as usize);
                        let handle = pool.insert(&bytes_of(seed, len)).unwrap();
                        assert_eq!(*pool.get(handle).unwrap(), *bytes_of(seed, len));
                        pool.remove(handle).unwrap();
                    }
                })
            })
            .collect();
        let (pool, done) = (&pool, &done);
        let other = scope.spawn(move || {
            while !done.load(Ordering::Relaxed) {
                assert!(pool.freeable() < Pages::new(1000));
                pool.compact(Budget::All).unwrap();
                assert!(pool.stats().objects < 1 << 40);
            }
        });
        threads.into_iter().for_each(|thread| thread.join().unwrap());
        done.store(true, Ordering::Relaxed);
        other.join().unwrap();
    });
    pool.compact(Budget::All).unwrap(); // a class may have kept an empty zspage since
    let stats = pool.stats();
    stats.check().unwrap();
    assert_eq!((stats.objects, stats.inserted, stats.used_pages), (0, 60_000, 0));
    pool.check();
}

#[test]
fn a_zspage_that_comes_and_goes_with_one_object_stays() {
    let pool = ObjectPool::options().codec(Codec::None).build().unwrap();
    let pages = &pool.objects.memory.pages;
    let insert = || pool.insert(&bytes_of(1, 1024)).unwrap();
    let mut all: Vec<Handle> = (0..16_000).map(|_| insert()).collect();
    loop {
        let (used, handle) = (pages.used(), insert());
        if pages.used() > used {
            pool.remove(handle).unwrap();
            break;
        }
        all.push(handle);
    }
    let (made, _) = pool.objects.memory.zspages.made();
    (0..100).for_each(|_| pool.remove(insert()).unwrap());
    assert_eq!(pool.objects.memory.zspages.made().0, made);
    let freeable = pool.freeable();
    assert!(freeable > Pages::ZERO);
    assert_eq!(pool.compact(Budget::All).unwrap().freed, freeable);
    pool.check();
    pool.remove(insert()).unwrap();
    all.into_iter().for_each(|handle| pool.remove(handle).unwrap());
    pool.check();
    assert_eq!((pages.used(), pool.freeable()), (0, Pages::ZERO));
}
