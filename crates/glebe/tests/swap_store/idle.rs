//! Tests a store whose file is cached in idle memory of a reserve: once blocks take this memory,
//! loads read the file.

use std::collections::HashMap;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use glebe::reserve::{Block, Reserve};
use glebe::swap::cache::SwapCache;
use glebe::swap::{Key, Stats, Store, SwapError, SwapOptions};
use glebe::units::{Bytes, Pages};
use glebe_testing::time::{is_long, Storm};

use super::{bytes_of, page, pages, Matter, MATTERS};
use glebe_testing::stressed::{mix, Stop};

const THREADS: u64 = 2;

fn dir() -> PathBuf {
    std::env::temp_dir()
}

/// Returns options that keep nearly all copies in the file.
fn in_file() -> SwapOptions {
    let options = Store::options().pool_limit(pages(64)).capacity(pages(16 << 10));
    options.file_in(dir(), pages(16 << 10))
}

fn take_all(reserve: &Reserve) -> Vec<Block> {
    let mut blocks = Vec::new();
    loop {
        match reserve.largest_run().unwrap() {
            Pages::ZERO => return blocks,
            run => blocks.push(reserve.alloc(run).unwrap()),
        }
        blocks.last_mut().unwrap().bytes_mut().unwrap().fill(0xee);
    }
}

fn check_all(store: &Store, keys: &[Key], all: &[Vec<u8>]) {
    for (key, bytes) in keys.iter().zip(all) {
        assert!(*store.pin(*key).unwrap() == **bytes, "{key:?}");
    }
    store.stats().check().unwrap();
}

#[test]
fn loads_read_idle_memory_until_first_class_wants_it_and_again_when_it_has_it_no_more() {
    let reserve = Reserve::new(pages(8192)).unwrap();
    let cache = SwapCache::on(&reserve).unwrap();
    let store = in_file().cached_in(&cache).build(pages(256)).unwrap();
    let lens = [page(), 5 * page() + 3, 100, (73 * page() + 992).min(2 << 20)];
    let object = |n: u64| bytes_of(n, lens[n as usize % lens.len()], Matter::Noise);
    let all: Vec<_> = (0..80).map(object).collect();
    let keys: Vec<_> = all.iter().map(|bytes| store.insert(bytes).unwrap()).collect();
    check_all(&store, &keys, &all);
    let before = store.stats();
    assert!(before.loaded_idle > 40 && before.read_back == 0, "{before}");
    let written: usize = all.iter().map(|bytes| bytes.len().div_ceil(page())).sum();
    assert!(reserve.stats().live > Pages::new(written as u64 * 5 / 8), "{}", reserve.stats());
    // All memory is taken, so loads must read the file.
    let blocks = take_all(&reserve);
    let held: u64 = blocks.iter().map(|block| block.pages().get()).sum();
    assert_eq!((Pages::new(held), reserve.stats().live), (reserve.len(), Pages::ZERO));
    check_all(&store, &keys, &all);
    let during = store.stats();
    assert!(during.read_back > 40, "{during}");
    drop(blocks);
    // Loads from the file refill idle memory.
    check_all(&store, &keys, &all);
    let middle = store.stats();
    check_all(&store, &keys, &all);
    let after = store.stats();
    assert!(after.loaded_idle > middle.loaded_idle + 40, "{after}");
    assert_eq!(after.read_back, middle.read_back, "{after}");
    let (freed, left) = keys.split_at(keys.len() / 2);
    let lent = reserve.stats().live;
    freed.iter().for_each(|key| store.free(*key).unwrap());
    assert!(reserve.stats().live < Pages::new(lent.get() * 2 / 3), "{lent}, of objects that ended");
    check_all(&store, left, &all[freed.len()..]);
    drop(store);
    assert_eq!(reserve.stats().live, Pages::ZERO, "of a store that ended");
}

fn change(store: &Store, whose: u64, stop: &AtomicBool) {
    let (mut known, mut order) = (HashMap::new(), Vec::new());
    let mut random = whose;
    let mut below = move |end: usize| {
        random = mix(random);
        (random >> 20) as usize % end
    };
    let mut version = whose;
    while !stop.load(Ordering::Relaxed) {
        version += THREADS;
        let matter = MATTERS[below(4)];
        let len = [page(), page() + 1, 100, 20 * page()][below(4)];
        if order.len() < 100 {
            let bytes = bytes_of(version, len, matter);
            let key = store.insert(&bytes).unwrap();
            order.push(key);
            known.insert(key, bytes);
            continue;
        }
        let at = below(order.len());
        let key = order[at];
        match below(8) {
            0 => {
                assert!(store.take(key).unwrap() == known.remove(&key).unwrap());
                order.swap_remove(at);
            }
            1 => {
                let mut object = store.pin_mut(key).unwrap();
                assert!(*object == *known[&key]);
                let bytes = bytes_of(version, object.len(), matter);
                object.copy_from_slice(&bytes);
                known.insert(key, bytes);
            }
            2 => {
                store.free(key).unwrap();
                known.remove(&key);
                order.swap_remove(at);
            }
            _ => assert!(*store.pin(key).unwrap() == *known[&key]),
        }
    }
    for (key, bytes) in known {
        assert!(store.take(key).unwrap() == bytes);
    }
}

fn is_met(stats: &Stats) -> bool {
    stats.loaded_idle > 100 && stats.read_back > 100
}

#[test]
fn two_threads_beside_a_map_while_blocks_are_taken_and_freed() {
    let reserve = Reserve::new(pages(2048)).unwrap();
    let cache = SwapCache::on(&reserve).unwrap();
    let store = in_file().cached_in(&cache).build(pages(128)).unwrap();
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        for whose in 0..THREADS {
            let (store, stop) = (&store, &stop);
            scope.spawn(move || {
                let _stop = Stop(stop);
                change(store, whose, stop);
            });
        }
        let _stop = Stop(&stop);
        let mut random = 7;
        let mut rounds = 0..if is_long() { 300 } else { 150 };
        let storm = Storm::lasting(Duration::ZERO);
        while rounds.next().is_some() || storm.goes_on(|| is_met(&store.stats())) {
            random = mix(random);
            let longest = reserve.largest_run().unwrap();
            let mut block = reserve.alloc(Pages::new(1 + random % longest.get())).unwrap();
            block.bytes_mut().unwrap().fill(0xee);
            std::thread::sleep(Duration::from_millis(3));
            assert!(block.bytes().unwrap().iter().all(|byte| *byte == 0xee), "a stray write");
            drop(block);
            std::thread::sleep(Duration::from_millis(random >> 40 & 7));
        }
    });
    let stats = store.stats();
    println!("{stats}");
    stats.check().unwrap();
    assert!(is_met(&stats), "{stats}");
    assert_eq!((stats.resident, stats.stored, stats.file), Default::default());
}

#[test]
fn a_swap_cache_takes_what_a_file_has_and_nothing_else() {
    let cache = SwapCache::with_limit(Bytes::mib(1)).unwrap();
    let options = Store::options().cached_in(&cache);
    let refused = options.build(Bytes::mib(1)).unwrap_err();
    assert!(matches!(refused, SwapError::NotCached { .. }), "{refused}");
    assert!(refused.to_string().contains("file"), "{refused}");
    let region = in_file().cached_in(&cache).build_region(Bytes::mib(4), Bytes::mib(1));
    assert!(matches!(region.map(drop), Err(SwapError::NotCached { .. })));
}
