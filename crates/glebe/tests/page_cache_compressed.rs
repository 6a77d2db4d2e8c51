//! Compares the compressed page cache with a map: a hit returns the last page put under its key,
//! never an invalidated one.

use std::collections::HashMap;

use glebe::internal::with_writers;
use glebe::page_size;
use glebe::reserve::{Namespace, Request, Reserve, Writers};
use glebe::units::{Bytes, Pages};
use glebe::zpool::{Codec, Zstd};
use glebe_testing::time::is_long;
use proptest::prelude::*;

fn page() -> usize {
    page_size().bytes().as_usize()
}

/// Returns a page that compresses to about a third, not at all, or to one repeated word.
fn page_of(seed: u64) -> Vec<u8> {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let mut next = || {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963);
        (state >> 32) as u32
    };
    let words = match seed % 8 {
        0 => vec![next(); page() / 4],
        1 => (0..page() / 4).map(|_| next()).collect(),
        _ => (0..page() / 4).map(|at| if at % 3 == 0 { next() } else { seed as u32 }).collect(),
    };
    words.into_iter().flat_map(u32::to_le_bytes).collect()
}

fn reserve(mib: u64, codec: Codec, writers: Writers) -> Reserve {
    let builder = with_writers(Reserve::options().page_cache(codec), writers);
    builder.build(Bytes::mib(mib)).unwrap()
}

#[test]
fn more_pages_are_held_than_the_reserve_has() {
    for codec in [Codec::Lz4, Codec::Zstd(Zstd::default())] {
        let reserve = reserve(8, codec, Writers::Restartable);
        let pool = reserve.page_cache().namespace("p").unwrap();
        let pages = reserve.len().get() * 3 / 2;
        let mut buf = vec![0; page()];
        for n in 0..pages {
            pool.put(7, n, &page_of(n | 2)).unwrap();
        }
        let mut hits = 0;
        for n in 0..pages {
            if pool.get(7, n, &mut buf).unwrap() {
                assert!(buf == page_of(n | 2), "page {n}");
                hits += 1;
            }
        }
        let stats = reserve.stats();
        stats.check().unwrap();
        assert!(hits > pages * 9 / 10, "{hits} of {pages}\n{stats}");
        assert!(stats.packed_stored > 0 && stats.packed_loaded > 0);
        drop(reserve.alloc(Request::new(reserve.len()).any()).unwrap());
        let left = (0..pages).filter(|n| pool.get(7, *n, &mut buf).unwrap()).count();
        assert!(left < 1000, "{left} pages are in ordinary memory");
        reserve.stats().check().unwrap();
    }
}

#[derive(Clone, Debug)]
enum Op {
    Put { many: u64, key: u64, seed: u64 },
    Get(u64),
    InvalidatePage(u64),
    InvalidateObject(u64),
    InvalidateAll,
    Alloc(u64),
    Free(usize),
}

const OBJECTS: u64 = 8;
const KEYS: u64 = 1500;

fn op() -> impl Strategy<Value = Op> {
    let put = |(many, key, seed)| Op::Put { many, key, seed };
    prop_oneof![
        8 => (1..200_u64, 0..KEYS, any::<u64>()).prop_map(put),
        4 => (0..KEYS).prop_map(Op::Get),
        1 => (0..KEYS).prop_map(Op::InvalidatePage),
        1 => (0..OBJECTS).prop_map(Op::InvalidateObject),
        1 => Just(Op::InvalidateAll),
        2 => prop_oneof![Just(1), 1..512_u64, 500..1024_u64].prop_map(Op::Alloc),
        2 => any::<usize>().prop_map(Op::Free),
    ]
}

fn is_right(pool: &Namespace, model: &HashMap<u64, u64>, key: u64) {
    let mut buf = vec![0; page()];
    if pool.get(key % OBJECTS, key, &mut buf).unwrap() {
        let seed = model.get(&key).unwrap_or_else(|| panic!("{key} was invalidated"));
        assert!(buf == page_of(*seed), "an old or another page under {key}");
    }
}

fn run(reserve: &Reserve, ops: Vec<Op>) {
    let pool = reserve.page_cache().namespace("p").unwrap();
    let (mut model, mut blocks) = (HashMap::new(), Vec::new());
    for op in ops {
        match op {
            Op::Put { many, key, seed } => {
                for n in 0..many {
                    let (key, seed) = ((key + n) % KEYS, seed.wrapping_add(n));
                    pool.put(key % OBJECTS, key, &page_of(seed)).unwrap();
                    model.insert(key, seed);
                }
            }
            Op::Get(key) => is_right(&pool, &model, key),
            Op::InvalidatePage(key) => {
                pool.invalidate_page(key % OBJECTS, key).unwrap();
                model.remove(&key);
            }
            Op::InvalidateObject(object) => {
                pool.invalidate_object(object).unwrap();
                model.retain(|key, _| key % OBJECTS != object);
            }
            Op::InvalidateAll => {
                pool.invalidate_all().unwrap();
                model.clear();
            }
            Op::Alloc(pages) => {
                if let Ok(mut block) = reserve.alloc(Request::new(Pages::new(pages)).any()) {
                    block.bytes_mut().unwrap().fill(0xaa);
                    blocks.push(block);
                }
            }
            Op::Free(nth) => {
                if !blocks.is_empty() {
                    blocks.swap_remove(nth % blocks.len());
                }
            }
        }
        reserve.stats().check().unwrap();
    }
    (0..KEYS).for_each(|key| is_right(&pool, &model, key));
    for block in &blocks {
        assert!(block.bytes().unwrap().iter().all(|byte| *byte == 0xaa), "a block was written");
    }
    reserve.stats().check().unwrap();
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(if is_long() { 32 } else { 16 }))]

    #[test]
    fn a_hit_is_the_last_page_put(
        ops in prop::collection::vec(op(), 1..80), counted in any::<bool>(),
    ) {
        let writers = if counted { Writers::Counted } else { Writers::Restartable };
        run(&reserve(4, Codec::Lz4, writers), ops);
    }
}

#[test]
fn threads_find_their_pages_or_none() {
    let reserve = reserve(8, Codec::Lz4, Writers::Restartable);
    let pool = reserve.page_cache().namespace("p").unwrap();
    let hits = std::sync::atomic::AtomicU64::new(0);
    let rounds: u64 = if is_long() { 6000 } else { 3000 };
    std::thread::scope(|scope| {
        for thread in 0..3_u64 {
            let (pool, hits) = (&pool, &hits);
            scope.spawn(move || {
                let mut buf = vec![0; page()];
                let mut seeds = HashMap::new();
                for round in 0..rounds {
                    let index = round.wrapping_mul(0x9e37_79b9) % 1500;
                    if pool.get(thread, index, &mut buf).unwrap() {
                        assert!(buf == page_of(seeds[&index]), "an old or another page");
                        hits.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
                    }
                    let seed = thread << 32 | round;
                    pool.put(thread, index, &page_of(seed)).unwrap();
                    seeds.insert(index, seed);
                }
            });
        }
        scope.spawn(|| {
            for nth in 0..rounds as usize / 10 {
                let pages = [1, 3, 100, 512, 700, 1900][nth % 6];
                if let Ok(mut block) = reserve.alloc(Request::new(Pages::new(pages)).any()) {
                    block.bytes_mut().unwrap().fill(nth as u8);
                    std::thread::yield_now();
                    assert!(block.bytes().unwrap().iter().all(|byte| *byte == nth as u8));
                }
                std::thread::yield_now();
            }
        });
    });
    assert!(hits.into_inner() > 0);
    reserve.stats().check().unwrap();
}
