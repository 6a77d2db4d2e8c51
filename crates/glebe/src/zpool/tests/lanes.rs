//! Slots that threads keep for their next objects.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::Barrier;
use std::thread;

use super::*;
use crate::zpool::lanes::{Lane, Magazine};
use crate::zpool::threads::{thread_number, NO_NUMBER};

/// A pool, whether this thread parks slots there, and an object beside the one to come, so that
/// zspages stay.
fn parking() -> Option<(Pool, Handle)> {
    let pool = plain().compaction(Compaction::Manual).build().unwrap();
    let beside = pool.insert(&bytes_of(0, 1000)).unwrap();
    warm(&pool);
    pool.remove(pool.insert(&bytes_of(1, 1000)).unwrap()).unwrap();
    if pool.objects.lanes.has_parked() {
        return Some((pool, beside));
    }
    println!("skipped: no lanes (thread {}, or no membarrier)", thread_number());
    None
}

/// Makes this thread's lane and its magazine.
fn warm(pool: &Pool) {
    for _ in 0..3 {
        pool.remove(pool.insert(&bytes_of(1, 1000)).unwrap()).unwrap();
    }
}

#[test]
fn what_is_parked_is_used_again_and_its_old_handle_is_stale() {
    let Some((pool, beside)) = parking() else { return };
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
    assert_eq!((stats.objects, stats.inserted, stats.stored_bytes), (1, 20_005, 1000));
    assert_eq!((stats.zspages, stats.limbo_slots), (1, 0));
    pool.check();
}

#[test]
fn a_parked_slot_that_is_read_is_not_written() {
    let Some((pool, _)) = parking() else { return };
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

fn is_owned(pool: &Pool, handle: Handle) -> bool {
    pool.objects.memory.entries.owner(handle.index()).is_some()
}

/// A pool, and an object that this thread's lane owns.
fn owning() -> Option<(Pool, Handle)> {
    let (pool, _) = parking()?;
    let handle = pool.insert(&bytes_of(7, 1000)).unwrap();
    assert!(is_owned(&pool, handle));
    Some((pool, handle))
}

#[test]
fn what_a_lane_owns_is_an_object_to_whoever_asks() {
    let ask: [fn(&Pool, Handle); 6] = [
        |pool, handle| assert_eq!(pool.read(handle, &mut [0; 1000]).unwrap(), 1000),
        |pool, handle| assert_eq!(*pool.get(handle).unwrap(), *bytes_of(7, 1000)),
        |pool, handle| assert_eq!(pool.len_of(handle).unwrap(), 1000),
        |pool, handle| pool.replace(handle, &bytes_of(7, 1000)).unwrap(),
        |pool, _| assert!(pool.compact(Budget::All).is_ok()),
        |pool, _| assert!(pool.stats().objects == 2),
    ];
    for (nth, ask) in ask.into_iter().enumerate() {
        for by_other in [false, true] {
            let Some((pool, handle)) = owning() else { return };
            if by_other {
                thread::scope(|scope| scope.spawn(|| ask(&pool, handle)).join().unwrap());
            } else {
                ask(&pool, handle);
            }
            assert!(!is_owned(&pool, handle), "case {nth}, by another: {by_other}");
            assert_eq!(*pool.get(handle).unwrap(), *bytes_of(7, 1000));
            pool.stats().check().unwrap();
            pool.check();
            pool.remove(handle).unwrap();
            assert!(matches!(pool.get(handle), Err(Error::Stale)));
        }
    }
}

#[test]
fn what_a_lane_owns_is_removed_by_another_thread() {
    let Some((pool, handle)) = owning() else { return };
    thread::scope(|scope| scope.spawn(|| pool.remove(handle).unwrap()).join().unwrap());
    assert!(matches!(pool.remove(handle), Err(Error::Stale)));
    assert_eq!(pool.stats().objects, 1);
    pool.stats().check().unwrap();
    pool.check();
}

#[test]
fn a_stale_handle_takes_nothing_from_a_lane() {
    let Some((pool, old)) = owning() else { return };
    pool.remove(old).unwrap();
    let new = pool.insert(&bytes_of(8, 1000)).unwrap();
    assert!(new.index() == old.index() && is_owned(&pool, new));
    let stale = || {
        assert!(matches!(pool.get(old), Err(Error::Stale)));
        assert!(matches!(pool.remove(old), Err(Error::Stale)));
        assert!(matches!(pool.replace(old, b"x"), Err(Error::Stale)));
    };
    stale();
    thread::scope(|scope| scope.spawn(stale).join().unwrap());
    assert!(is_owned(&pool, new));
    assert_eq!(*pool.get(new).unwrap(), *bytes_of(8, 1000));
}

#[test]
fn objects_that_stay_make_place_in_the_lane() {
    let Some((pool, _)) = parking() else { return };
    let all: Vec<Handle> = (0..40).map(|n| pool.insert(&bytes_of(n, 1000)).unwrap()).collect();
    let (gone, mut there) = all.split_at(20);
    let (mut most, mut kept) = (0, Vec::new());
    for (n, handle) in (40..).zip(gone) {
        pool.remove(*handle).unwrap();
        kept.push((n, pool.insert(&bytes_of(n, 1000)).unwrap()));
        most = most.max(kept.iter().filter(|(_, handle)| is_owned(&pool, *handle)).count());
    }
    assert!(most > 1 && most <= 6, "{most} owned");
    there = &there[1..];
    let olds = (21..).zip(there.iter().copied());
    for (n, handle) in olds.chain(kept) {
        assert_eq!(*pool.get(handle).unwrap(), *bytes_of(n, 1000));
        pool.remove(handle).unwrap();
    }
    pool.stats().check().unwrap();
    pool.check();
}

#[test]
fn parked_bytes_are_few_and_counted_as_held() {
    let Some((pool, _)) = parking() else { return };
    let handles: Vec<Handle> =
        (0..4000).map(|n| pool.insert(&bytes_of(n, 40 + n as usize % 4000)).unwrap()).collect();
    handles.iter().for_each(|handle| pool.remove(*handle).unwrap());
    // Each parked slot keeps a zspage of a few pages at most.
    let held = pool.objects.memory.pages.used() * page() as u64;
    let lanes = pool.objects.lanes.parked_bytes();
    assert!(lanes > 0 && lanes <= 128 << 10, "{lanes} bytes parked");
    assert!(held <= lanes * 40 && pool.held().get() >= held, "{held} bytes of pages");
    // To know what may be freed, all of it is given up.
    assert_eq!(pool.freeable(), Pages::ZERO);
    assert_eq!((pool.objects.lanes.parked_bytes(), pool.stats().used_pages), (0, 1));
}

#[test]
fn a_new_table_leaves_nothing_parked() {
    let Some((pool, beside)) = parking() else { return };
    let rules = Rules { chain: Pages::new(2), ..*pool.table().rules() };
    pool.set_table(&Table::by_rules(&rules).unwrap()).unwrap();
    assert!(!pool.objects.lanes.has_parked());
    pool.remove(beside).unwrap();
    pool.compact(Budget::All).unwrap();
    let stats = pool.stats();
    assert!(stats.used_pages == 0 && stats.classes.iter().all(|class| !class.is_retired));
    pool.check();
}

/// Magazines of all lanes, and what the pool holds beside pages.
fn magazines(pool: &Pool) -> (usize, u64) {
    let count = AtomicU64::new(0);
    let add = |lane: &Lane| {
        count.fetch_add(lane.magazines().count() as u64, Ordering::Relaxed);
    };
    assert!(pool.objects.lanes.each_locked(thread_number(), true, add));
    (count.into_inner() as usize, pool.stats().metadata_bytes)
}

#[test]
fn a_new_table_gives_back_what_lanes_have_for_classes() {
    let Some((pool, beside)) = parking() else { return };
    let (many, before) = magazines(&pool);
    assert!(many > 0);
    pool.set_table(&pool.table()).unwrap();
    let (none, after) = magazines(&pool);
    assert_eq!((none, before - after), (0, (many * size_of::<Magazine>()) as u64));
    // What was stored before does not count.
    pool.remove(beside).unwrap();
    assert_eq!(magazines(&pool).0, 0);
    warm(&pool);
    pool.remove(pool.insert(&bytes_of(1, 1000)).unwrap()).unwrap();
    assert!(pool.objects.lanes.has_parked());
    // What is owned stays where it is said to be.
    let owned = pool.insert(&bytes_of(2, 1000)).unwrap();
    assert!(is_owned(&pool, owned));
    pool.set_table(&pool.table()).unwrap();
    assert_eq!(*pool.get(owned).unwrap(), *bytes_of(2, 1000));
    pool.stats().check().unwrap();
    pool.check();
}

#[test]
fn a_thread_that_only_removes_parks_nothing() {
    let Some((pool, _)) = parking() else { return };
    let handles: Vec<Handle> =
        (0..1000).map(|n| pool.insert(&bytes_of(n, 1000)).unwrap()).collect();
    assert!(pool.objects.unpark(thread_number()) || !pool.objects.lanes.has_parked());
    let remove = || handles.iter().for_each(|handle| pool.remove(*handle).unwrap());
    thread::scope(|scope| scope.spawn(remove).join().unwrap());
    assert!(!pool.objects.lanes.has_parked());
    assert_eq!(pool.stats().used_pages, 1);
}

#[test]
fn a_thread_that_ends_leaves_its_lane_to_the_next() {
    let pool = plain().build().unwrap();
    for n in 0..100 {
        let handle = thread::scope(|scope| {
            let stored = || {
                warm(&pool);
                pool.insert(&bytes_of(n, 1000)).unwrap()
            };
            scope.spawn(stored).join().unwrap()
        });
        assert_eq!(*pool.get(handle).unwrap(), *bytes_of(n, 1000));
        pool.remove(handle).unwrap();
    }
    assert!(pool.objects.lanes.parked_bytes() <= 64 * (16 << 10));
    assert_eq!((pool.stats().objects, pool.stats().used_pages), (0, 0));
    pool.check();
}

/// Each handle is removed by several threads at once, while one of them uses the entry again and
/// again, so that its generations come round.
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
                // Nobody else knows this one.
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
fn generations_come_round_only_when_all_have_left_their_lanes() {
    const ROUNDS: u64 = 1 << (super::super::entry::GENERATION_BITS + 1);
    let Some((pool, _)) = parking() else { return };
    let (pairs, is_in) = (AtomicU64::new(0), Barrier::new(2));
    thread::scope(|scope| {
        let (pool, pairs, is_in) = (&pool, &pairs, &is_in);
        scope.spawn(move || {
            warm(pool);
            // It may have seen an entry that it is about to exchange.
            let inside = pool.objects.lanes.enter(thread_number());
            is_in.wait();
            while inside.is_some() && pairs.load(Ordering::Relaxed) < ROUNDS / 4 {
                thread::yield_now();
            }
            (0..2000).for_each(|_| thread::yield_now());
            assert!(inside.is_none() || pairs.load(Ordering::Relaxed) < ROUNDS);
            drop(inside);
        });
        is_in.wait();
        for n in 0..ROUNDS {
            pool.remove(pool.insert(&bytes_of(n, 1000)).unwrap()).unwrap();
            pairs.fetch_add(1, Ordering::Relaxed);
        }
    });
    pool.check();
}

#[test]
fn lanes_are_emptied_while_threads_use_them() {
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
    let stats = pool.stats();
    stats.check().unwrap();
    assert_eq!((stats.objects, stats.inserted, stats.used_pages), (0, 60_000, 0));
    pool.check();
}

#[test]
fn without_a_number_a_thread_takes_the_locks() {
    let pool = plain().build().unwrap();
    let objects = &pool.objects;
    for n in 0..10 {
        let bytes = bytes_of(n, 1000);
        let stored = super::super::objects::Stored::raw(&bytes);
        let (index, named) = objects.insert(NO_NUMBER, None, stored).unwrap();
        assert!(objects.remove(NO_NUMBER, index, named).is_some());
    }
    assert!(!objects.lanes.has_parked());
    assert_eq!(objects.memory.pages.used(), 0);
}
