//! Idle objects become smaller, others stay, and nobody has other bytes.

use super::samples::{noise, text};
use super::*;
use crate::zpool::objects::Stored;

fn filled_pool(options: Options) -> (Pool, Vec<(Handle, Vec<u8>)>) {
    // Classes stay, so that no object is moved to a zspage that nobody has looked at.
    let pool = options.table(TableChoice::BySize).build().unwrap();
    let object = |n: u64| match n % 8 {
        0 => noise(n, 1500),
        1 => text(n, 700),
        _ => text(n, page()),
    };
    let insert = |n| (pool.insert(&object(n)).unwrap(), object(n));
    let all = (0..1200).map(insert).collect();
    (pool, all)
}

fn all_there(pool: &Pool, all: &[(Handle, Vec<u8>)]) {
    let mut buf = vec![0; page()];
    for (handle, object) in all {
        let len = pool.read(*handle, &mut buf).unwrap();
        assert_eq!(buf[..len], **object);
    }
    pool.check();
    pool.stats().check().unwrap();
}

#[test]
fn idle_objects_become_smaller_and_others_stay() {
    let (pool, all) = filled_pool(Pool::options());
    let zstd = Zstd::new(3);
    let nothing = Recompressed::default();
    assert_eq!(pool.recompress(&zstd, Budget::All).unwrap(), nothing, "never looked at");
    all_there(&pool, &all);
    assert_eq!(pool.recompress(&zstd, Budget::All).unwrap(), nothing, "read since");
    let before = pool.stats();
    let done = pool.recompress(&zstd, Budget::All).unwrap();
    let after = pool.stats();
    assert!(done.objects > 800, "{done:?}");
    assert!(done.bytes_after.get() * 4 < done.bytes_before.get() * 3, "{done:?}");
    let saved = done.bytes_before - done.bytes_after;
    assert_eq!(before.stored_bytes - after.stored_bytes, saved.get());
    assert_eq!(before.original_bytes, after.original_bytes);
    assert!(after.held_bytes < before.held_bytes, "{before}{after}");
    all_there(&pool, &all);
    // What did not become smaller is not tried again, and what did neither.
    (0..3).for_each(|_| assert_eq!(pool.recompress(&zstd, Budget::All).unwrap(), nothing));
    let other = pool.recompress(&Zstd::new(4), Budget::All);
    assert!(matches!(other, Err(Error::OtherZstd)), "{other:?}");
    for (handle, _) in &all {
        pool.remove(*handle).unwrap();
    }
    assert_eq!(pool.stats().original_bytes, 0);
}

#[test]
fn a_budget_ends_it_and_the_next_call_goes_on() {
    let (pool, all) = filled_pool(Pool::options());
    let zstd = Zstd::default();
    assert!(matches!(pool.recompress(&zstd, Budget::Pages(Pages::ZERO)), Err(Error::NoBudget)));
    assert!(matches!(
        pool.recompress(&zstd, Budget::Time(Default::default())),
        Err(Error::NoBudget)
    ));
    pool.recompress(&zstd, Budget::All).unwrap();
    let (mut objects, mut calls) = (0, 0);
    loop {
        let done = pool.recompress(&zstd, Budget::Pages(Pages::new(8))).unwrap();
        let saved = done.bytes_before - done.bytes_after;
        assert!(saved.get() < 9 * page() as u64, "{done:?}");
        if done.objects == 0 {
            break;
        }
        (objects, calls) = (objects + done.objects, calls + 1);
    }
    assert!(objects > 800 && calls > 10, "{objects} objects in {calls} calls");
    all_there(&pool, &all);
}

#[test]
fn without_room_nothing_is_lost() {
    let (pool, all) = filled_pool(Pool::options());
    let limit = pool.held();
    pool.set_limit(limit).unwrap();
    let refused = pool.recompress(&Zstd::default(), Budget::All);
    let state = matches!(refused, Err(Error::Full { len, .. }) if len > 100 << 10);
    assert!(state && pool.held() <= limit, "{refused:?} of {limit}");
    pool.set_limit(Bytes::gib(1)).unwrap();
    pool.recompress(&Zstd::default(), Budget::All).unwrap();
    pool.set_limit(pool.held()).unwrap();
    let done = pool.recompress(&Zstd::default(), Budget::All).unwrap();
    assert!(done.bytes_after <= done.bytes_before);
    all_there(&pool, &all);
}

#[test]
fn one_dictionary_a_pool() {
    let samples: Vec<_> = (0..400).map(|seed| text(seed, 1000)).collect();
    let with = Zstd::new(1).dictionary(Dictionary::train(&samples, 4096).unwrap());
    let (pool, all) = filled_pool(Pool::options().codec(Codec::Zstd(with.clone())));
    assert!(matches!(pool.recompress(&Zstd::new(9), Budget::All), Err(Error::OtherZstd)));
    all_there(&pool, &all);
    let (pool, all) = filled_pool(Pool::options());
    pool.recompress(&with, Budget::All).unwrap();
    assert!(pool.recompress(&with, Budget::All).unwrap().objects > 800);
    all_there(&pool, &all);
}

#[test]
fn what_was_replaced_or_removed_meanwhile_is_not_undone() {
    let pool = Pool::options().build().unwrap();
    let handle = pool.insert(&text(1, 900)).unwrap();
    let (index, named) = (handle.index(), handle.generation());
    let pin = || pool.objects.pin(index, named).unwrap();
    let recode =
        |pinned| pool.objects.recode(index, named, &pinned, Stored::raw(b"what it was")).unwrap();
    let pinned = pin();
    pool.replace(handle, &text(2, 900)).unwrap();
    assert!(!recode(pinned));
    assert_eq!(*pool.get(handle).unwrap(), *text(2, 900));
    // There and back: the same length, but not in a slot that is pinned.
    let pinned = pin();
    (0..40).for_each(|n| pool.replace(handle, &text(n, 900)).unwrap());
    assert!(!recode(pinned));
    assert_eq!(*pool.get(handle).unwrap(), *text(39, 900));
    let pinned = pin();
    pool.remove(handle).unwrap();
    assert!(!recode(pinned));
    let handle = pool.insert(&text(3, 900)).unwrap();
    assert_eq!(*pool.get(handle).unwrap(), *text(3, 900));
    assert!(pool.objects.settle() || pool.objects.memory.waiting() == 0);
    pool.check();
    pool.stats().check().unwrap();
    assert_eq!(pool.stats().limbo_slots, 0, "a pin was left");
}

#[test]
fn others_replace_and_remove_meanwhile() {
    let (pool, all) = filled_pool(Pool::options());
    let zstd = Zstd::default();
    let (pool, all, zstd) = (&pool, &all, &zstd);
    std::thread::scope(|scope| {
        let idle = scope.spawn(|| {
            (0..6).map(|_| pool.recompress(zstd, Budget::All).unwrap().objects).sum::<u64>()
        });
        let mut now = all.clone();
        for round in 0..4_u64 {
            for (n, (handle, object)) in now.iter_mut().enumerate() {
                if (n as u64 + round) % 3 == 0 {
                    *object = text(n as u64 + 1000 * round, object.len());
                    pool.replace(*handle, object).unwrap();
                }
                assert_eq!(*pool.get(*handle).unwrap(), **object);
            }
        }
        assert!(idle.join().unwrap() < 6 * 1200);
        all_there(pool, &now);
    });
}

/// Bytes that LZ4 does not make shorter, and zstd does.
fn digits(seed: u64, len: usize) -> Vec<u8> {
    noise(seed, len).into_iter().map(|byte| b"0123456789abcdef"[usize::from(byte >> 4)]).collect()
}

#[test]
fn what_comes_to_a_slot_is_tried_though_all_else_was() {
    let pool = Pool::options().table(TableChoice::BySize).build().unwrap();
    let mut all: Vec<Handle> = (0..40).map(|n| pool.insert(&noise(n, 1500)).unwrap()).collect();
    let zstd = Zstd::new(3);
    (0..3).for_each(|_| assert_eq!(pool.recompress(&zstd, Budget::All).unwrap().objects, 0));
    pool.remove(all.swap_remove(5)).unwrap();
    let new = pool.insert(&digits(1, 1500)).unwrap();
    // A zspage to which something came is not idle at the first look.
    let tried = (0..2).map(|_| pool.recompress(&zstd, Budget::All).unwrap().objects);
    assert_eq!(tried.sum::<u64>(), 1);
    assert_eq!(*pool.get(new).unwrap(), *digits(1, 1500));
    pool.check();
}
