//! Tests of [`Store`]: lengths, recalls, limit, changes, threads.

use super::*;
use crate::protocol::Verb;

fn store(mib: u64) -> Store {
    let limits = Limits {
        bytes: mib << 20,
        reserve_bytes: (mib + 2) << 20,
        brick: None,
        nodes: Vec::new(),
        more: 0,
        item_bytes: 64 << 20,
        evict: true,
    };
    Store::new(limits).expect("a reserve")
}

fn get(store: &Store, key: &[u8], room: &mut Room) -> Option<Vec<u8>> {
    let mut out = Vec::new();
    store.get(key, Look::default(), room, &mut out, |_, _, _| true)?;
    Some(out)
}

fn set(store: &Store, key: &[u8], value: &[u8], room: &mut Room) {
    let stored = store.store(key, Verb::Set, &Meta::default(), value, room).expect("room");
    assert_eq!(stored.outcome, Outcome::Stored);
}

fn value(len: usize, seed: u64) -> Vec<u8> {
    (0..len as u64).map(|n| (n.wrapping_mul(0x9e37_79b9 + seed) >> 7) as u8).collect()
}

#[test]
fn values_of_every_length_come_back_whole() {
    let (store, mut room) = (store(32), Room::default());
    let page = store.memory.page();
    let around = |at: usize| at.saturating_sub(40)..at + 3;
    for len in
        [0..70, around(store.small_max), around(page), around(3 * page)].into_iter().flatten()
    {
        let (key, value) = (format!("key{len}"), value(len, 1));
        set(&store, key.as_bytes(), &value, &mut room);
        assert_eq!(get(&store, key.as_bytes(), &mut room), Some(value), "{len}");
    }
    let long = value(5 << 20, 2);
    set(&store, b"long", &long, &mut room);
    assert!(get(&store, b"long", &mut room) == Some(long));
    store.delete(b"long", None, &mut room);
    assert_eq!(get(&store, b"long", &mut room), None);
}

#[test]
fn a_refused_value_is_not_counted_as_stored() {
    let (store, mut room) = (store(16), Room::default());
    let lens = [100, 8 * store.memory.page()];
    for (nth, len) in (0_u64..).zip(lens) {
        let (key, value) = (format!("key{len}"), value(len, nth));
        set(&store, key.as_bytes(), &value, &mut room);
        let added = store.store(key.as_bytes(), Verb::Add, &Meta::default(), &value, &mut room);
        assert_eq!(added.expect("room").outcome, Outcome::NotStored);
        assert_eq!(store.events.stored.load(Ordering::Relaxed), nth + 1, "{len} bytes");
    }
}

#[test]
fn a_recall_leaves_values_whole_or_not_at_all() {
    let (store, mut room) = (store(16), Room::default());
    let len = |n: u64| if n % 8 == 0 { 30_000 } else { 100 + n as usize % 500 };
    (0..4000).for_each(|n: u64| set(&store, &n.to_le_bytes(), &value(len(n), n), &mut room));
    for round in 0..6_u64 {
        let (blocks, _) = store.recall(6 << 20).expect("first class");
        assert!(!blocks.is_empty());
        let (mut hits, mut misses) = (0, 0);
        for n in 0..4000_u64 {
            match get(&store, &n.to_le_bytes(), &mut room) {
                Some(found) => {
                    assert!(found == value(len(n), n), "round {round} key {n}");
                    hits += 1;
                }
                None => misses += 1,
            }
        }
        assert!(hits > 0 && misses > 0, "{hits} {misses}");
        drop(blocks);
        store.tick(&mut room);
        (0..4000).for_each(|n: u64| set(&store, &n.to_le_bytes(), &value(len(n), n), &mut room));
    }
    assert!(store.events.recalled.sum() > 0);
}

#[test]
fn the_little_that_a_recall_leaves_takes_every_value() {
    let (store, mut room) = (store(10), Room::default());
    let len = |n: u64| [100, 3000, 9000, 60_000][(n.wrapping_mul(0x9e37_79b9) >> 20) as usize % 4];
    let key = |n: u64| (n % 300).to_le_bytes();
    for round in 0..8_u64 {
        let (blocks, _) = store.recall(11 << 20).expect("first class");
        for n in round * 1000..(round + 1) * 1000 {
            set(&store, &key(n), &value(len(n), n), &mut room);
            assert!(get(&store, &key(n), &mut room) == Some(value(len(n), n)), "{n}");
            if n % 50 == 0 {
                store.tick(&mut room);
            }
        }
        drop(blocks);
        store.tick(&mut room);
        (0..300).for_each(|n| set(&store, &key(n), &value(len(n), n), &mut room));
    }
}

#[test]
fn each_thread_finds_the_only_shard_with_items() {
    let (store, mut room) = (store(32), Room::default());
    let mut keys = (1..1_000_000_u64).map(u64::to_le_bytes);
    let (shard, _) = store.hash(&0_u64.to_le_bytes());
    let mut in_shard = || keys.find(|key| store.hash(key).0 == shard).expect("another key");
    let large = vec![7; store.small_max + 1];
    let pages = 1 + large.len().div_ceil(store.memory.page());
    let count = (16 << 20) / (pages * store.memory.page());
    let keys: Vec<_> = (0..count).map(|_| in_shard()).collect();
    for _ in 0..20 {
        keys.iter().for_each(|key| set(&store, key, &large, &mut room));
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    let mut room = Room::default();
                    (0..count / 4 - 1).for_each(|_| assert!(store.evict(&mut room).is_some()));
                });
            }
        });
    }
}

#[test]
fn the_limit_holds_and_what_is_read_stays() {
    let (store, mut room) = (store(8), Room::default());
    set(&store, b"hot", b"value", &mut room);
    for n in 0..200_000_u64 {
        set(&store, &n.to_le_bytes(), &value(100, n), &mut room);
        if n % 64 == 0 {
            assert!(get(&store, b"hot", &mut room).is_some(), "{n}");
        }
        if n % 1000 == 0 {
            store.tick(&mut room);
            assert!(store.held().used <= 8 << 20, "{:?}", store.held());
        }
    }
    assert!(store.events.evicted.sum() > 100_000);
    assert!(store.held().items > 20_000, "{:?}", store.held());
    store.flush(None);
    assert_eq!(get(&store, b"hot", &mut room), None);
    for _ in 0..10_000 {
        store.tick(&mut room);
    }
    assert_eq!(store.held().items, 0);
}

#[test]
fn no_item_waits_until_all_that_is_beyond_a_new_limit_is_gone() {
    let (store, mut room) = (store(32), Room::default());
    for n in 0..100_000_u64 {
        set(&store, &n.to_le_bytes(), &value(1000, n), &mut room);
    }
    let evicted = || store.events.evicted.sum();
    store.set_most(16 << 20);
    let before = evicted();
    set(&store, b"one", b"value", &mut room);
    let for_one = evicted() - before;
    assert!((1..1000).contains(&for_one), "{for_one}");
    store.tick(&mut room);
    assert!(evicted() - before > 10_000 && store.held().used <= 16 << 20, "{:?}", store.held());
}

#[test]
fn changes_keep_what_they_should() {
    let (store, mut room) = (store(8), Room::default());
    for len in [1, 5000] {
        let old = value(len, 3);
        let meta = Meta { flags: 7, exptime: 90, ..Meta::default() };
        store.store(b"k", Verb::Set, &meta, &old, &mut room).expect("room");
        let none = Meta::default();
        store.store(b"k", Verb::Append, &none, b"end", &mut room).expect("room");
        store.store(b"k", Verb::Prepend, &none, b"start", &mut room).expect("room");
        let mut out = Vec::new();
        store.get(b"k", Look::default(), &mut room, &mut out, |found, _, _| {
            assert_eq!((found.head.flags, found.head.exptime), (7, 90));
            true
        });
        assert!(out == [b"start".as_slice(), &old, b"end"].concat());
        store.touch(b"k", 50, &mut room).expect("there");
        store.clock().debug(b"30");
        assert!(get(&store, b"k", &mut room) == Some(out));
        store.clock().debug(b"30");
        assert_eq!(get(&store, b"k", &mut room), None);
        store.clock().debug(b"-60");
    }
}

#[test]
fn numbers_count_up_and_down() {
    let (store, mut room) = (store(8), Room::default());
    let add = |delta, down| Count { delta, down, ..Count::default() };
    assert_eq!(store.count(b"n", &add(1, false), &mut room), Ok(Changed::NotFound));
    set(&store, b"n", b"10", &mut room);
    let mut done = |how| match store.count(b"n", &how, &mut room).expect("room") {
        Changed::Done(_, number) => number,
        other => panic!("{other:?}"),
    };
    assert_eq!(done(add(1, true)), 9);
    assert_eq!(done(add(u64::MAX - 8, false)), 0);
    assert_eq!(done(add(u64::MAX, false)), u64::MAX);
    assert_eq!(done(add(u64::MAX, true)), 0);
    set(&store, b"n", b"+1", &mut room);
    assert_eq!(store.count(b"n", &add(1, false), &mut room), Ok(Changed::NotNumeric));
}

#[test]
fn threads_find_whole_values_of_their_keys() {
    let store = store(8);
    std::thread::scope(|scope| {
        for thread in 0..3_u64 {
            let store = &store;
            scope.spawn(move || {
                let mut room = Room::default();
                for n in 0..6000_u64 {
                    let key = (n * 7 % 50).to_le_bytes();
                    if (n + thread) % 3 == 0 {
                        let len = if n % 2 == 0 { 60 } else { 9000 };
                        set(store, &key, &[(n % 251) as u8].repeat(len), &mut room);
                    } else if let Some(found) = get(store, &key, &mut room) {
                        assert!([60, 9000].contains(&found.len()));
                        assert!(found.iter().all(|byte| *byte == found[0]));
                    }
                }
            });
        }
    });
}

#[test]
fn a_longer_key_is_no_lost_item_to_who_looks_for_a_short_one() {
    let (store, mut room) = (store(4), Room::default());
    let key = [b'k'; 200];
    set(&store, &key, b"value", &mut room);
    let (nth, hash) = store.hash(&key);
    // Pretends that the short key has the same hash.
    let mut shard = store.shard(nth);
    assert!(store.locate(&mut shard, (hash, b"k"), false, &mut room).is_none());
    let found = store.locate(&mut shard, (hash, &key), false, &mut room);
    assert_eq!(found.map(|found| found.head.key_len), Some(200));
}

#[test]
fn a_set_goes_over_whatever_is_there_and_counts_what_was_over() {
    let (store, mut room) = (store(16), Room::default());
    let reclaimed = || store.events.reclaimed.sum();
    let ends = Meta { exptime: store.clock().now() + 20, ..Meta::default() };
    for (n, len) in [100, 100_000].into_iter().enumerate() {
        let key = len.to_string();
        set(&store, key.as_bytes(), &value(len, 1), &mut room);
        set(&store, key.as_bytes(), &value(len, 2), &mut room);
        assert_eq!(get(&store, key.as_bytes(), &mut room), Some(value(len, 2)));
        // In the first round a store sets the expiry time, in the second a touch.
        for touched in [false, true] {
            if touched {
                store.touch(key.as_bytes(), ends.exptime, &mut room).expect("there");
            } else {
                store.store(key.as_bytes(), Verb::Set, &ends, b"v", &mut room).expect("room");
            }
            store.clock().debug(b"30");
            set(&store, key.as_bytes(), &value(len, 3), &mut room);
            store.clock().debug(b"-30");
            assert_eq!(reclaimed(), 2 * n as u64 + u64::from(touched) + 1, "{len} {touched}");
            assert_eq!(get(&store, key.as_bytes(), &mut room), Some(value(len, 3)));
        }
    }
}

#[test]
fn a_large_item_that_others_keep_replacing_is_found() {
    let (store, mut room, mut other) = (store(32), Room::default(), Room::default());
    let (key, new) = (b"hot", value(1 << 20, 1));
    set(&store, key, &value(1 << 20, 2), &mut room);
    let shard = store.hash(key).0;
    let mut out = b"before".to_vec();
    let found = store.get(key, Look::default(), &mut room, &mut out, |_, _, _| {
        // Other clients can store whenever the reader does not hold the lock.
        let is_free = store.shards[shard].try_lock().is_ok();
        if is_free {
            set(&store, key, &new, &mut other);
        }
        true
    });
    assert!(found.is_some() && out == [b"before".as_slice(), &new].concat());
}

#[test]
fn a_new_head_costs_no_other_item() {
    let (store, mut room) = (store(8), Room::default());
    (0..20_000_u64).for_each(|n| set(&store, &n.to_le_bytes(), &value(1000, n), &mut room));
    let end = store.clock().now() + 90;
    let meta = Meta { exptime: end, ..Meta::default() };
    let there: Vec<u64> =
        (0..20_000).filter(|n: &u64| get(&store, &n.to_le_bytes(), &mut room).is_some()).collect();
    let gone = || store.events.evicted.sum() + store.events.recalled.sum();
    let before = gone();
    // Goes through all segments seven times.
    for n in (0..7).flat_map(|first| there.iter().skip(first).step_by(7)) {
        let key = n.to_le_bytes();
        match n % 2 {
            0 => _ = store.touch(&key, end, &mut room),
            _ => _ = store.make_stale(&key, &meta, true, &mut room),
        }
    }
    let is_as_it_should_be = |n: &&u64| {
        let (mut out, mut has_end) = (Vec::new(), false);
        store.get(&n.to_le_bytes(), Look::default(), &mut room, &mut out, |found, _, _| {
            has_end = found.head.exptime == end;
            true
        });
        out == value(1000, **n) && has_end
    };
    let good = there.iter().filter(is_as_it_should_be).count();
    // The reserve's index may drop a page.
    assert!(good * 100 > there.len() * 99, "{good} of {} are good", there.len());
    assert!((gone() - before) * 100 < there.len() as u64, "{} are gone", gone() - before);
}

#[test]
fn a_new_head_needs_no_free_page() {
    let (store, mut room) = (store(8), Room::default());
    let (page, end) = (vec![1; store.memory.page()], store.clock().now() + 90);
    let len = |n: u64| if n % 8 == 0 { 30_000 } else { 1000 };
    (0..1000_u64).for_each(|n| set(&store, &n.to_le_bytes(), &value(len(n), n), &mut room));
    let mut good = 0;
    for n in 0..1000_u64 {
        while store.memory.put(store.memory.number(), 0, &page).is_ok() {}
        store.touch(&n.to_le_bytes(), end, &mut room);
        good += usize::from(get(&store, &n.to_le_bytes(), &mut room) == Some(value(len(n), n)));
    }
    // The reserve's index may drop a page.
    assert!(good > 980, "{good} of 1000 are good");
}
