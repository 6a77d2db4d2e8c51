//! Tests threads that look up, build, remove, mark and drop entries at once. Entries in use never
//! change. Two threads build one key at once only after a removal.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::thread;
use std::time::Duration;

use glebe_os::units::Bytes;
use glebe_testing::time::Storm;
use glebe_volatile::CacheStats;

use super::{build, caches, is_of, Words};

const KEYS: u64 = 24;
/// First key that threads also remove.
const REMOVED: u64 = 16;
const USUAL: Duration = Duration::from_millis(200);

struct Random(u64);

impl Random {
    fn below(&mut self, end: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 % end
    }
}

fn is_met(stats: &CacheStats) -> bool {
    stats.hits > 0 && stats.purges > 0 && stats.rebuilds > 0
}

fn user(cache: &Words, seed: u64, under_way: &[AtomicU32], builds: &AtomicU64) {
    let mut random = Random(seed * 2 + 1);
    let mut held = VecDeque::new();
    let storm = Storm::begin(USUAL);
    while storm.goes_on(|| is_met(&cache.stats())) {
        let key = random.below(KEYS);
        match random.below(10) {
            0 if key >= REMOVED => drop(cache.remove(&key)),
            1 => cache.offer_all(),
            2..=3 => held.extend(cache.get(&key).map(|entry| (key, entry))),
            _ => {
                let len = (key as usize + 1) * 300;
                let counted = |words: &mut [u64]| {
                    let own = &under_way[key as usize];
                    let others = own.fetch_add(1, Ordering::SeqCst);
                    assert!(others == 0 || key >= REMOVED, "{key} is built twice at once");
                    builds.fetch_add(1, Ordering::Relaxed);
                    let done = build(key)(words);
                    own.fetch_sub(1, Ordering::SeqCst);
                    done
                };
                let entry = cache.get_or_build(key, len, counted).unwrap();
                assert!(entry.len() == len && is_of(&entry, key), "{key}");
                held.push_back((key, entry));
            }
        }
        while held.len() as u64 > random.below(6) {
            let (key, entry) = held.pop_front().unwrap();
            assert!(is_of(&entry, key), "{key} has changed while it was held");
        }
    }
}

#[test]
fn threads_share_a_cache_that_loses_and_evicts() {
    let cap = Bytes::new(512 << 10);
    let options = Words::options().hot(Bytes::new(64 << 10));
    for cache in [caches(Bytes::mib(4), &options), caches(cap, &options)].iter().flatten() {
        let under_way: Vec<_> = (0..KEYS).map(|_| AtomicU32::new(0)).collect();
        let builds = AtomicU64::new(0);
        thread::scope(|scope| {
            for seed in 1..=3 {
                let (under_way, builds) = (&under_way, &builds);
                scope.spawn(move || user(cache, seed, under_way, builds));
            }
            let storm = Storm::begin(USUAL);
            while storm.goes_on(|| is_met(&cache.stats())) {
                cache.drop_marked().unwrap();
                thread::sleep(Duration::from_millis(1));
            }
        });
        let stats = cache.stats();
        stats.check().unwrap();
        assert_eq!(stats.built, builds.into_inner());
        assert!(is_met(&stats), "{stats}");
        cache.clear();
        assert_eq!((cache.len(), cache.stats().kept.get()), (0, 0));
    }
}
