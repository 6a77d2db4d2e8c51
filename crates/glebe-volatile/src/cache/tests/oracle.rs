//! Compares a cache with an oracle, a map from keys to the last built values.

use std::collections::HashMap;

use proptest::prelude::*;

use super::{caches, page_len};
use crate::cache::{BuildError, Cache, CacheOptions, Entry};
use crate::Priority;
use glebe_os::internal::sys::page_size;
use glebe_os::units::{Bytes, Pages};

#[derive(Clone, Debug)]
enum Op {
    Had { key: u32, pages: usize, fails: bool },
    Get { key: u32 },
    Drop { nth: usize },
    Prefer { nth: usize, priority: u8 },
    Remove { key: u32 },
    Clear,
    OfferAll,
    DropMarked,
    Lose { key: u32, nth: u64 },
}

fn op() -> impl Strategy<Value = Op> {
    let key = 0..12_u32;
    prop_oneof![
        8 => (key.clone(), 0..5_usize, prop::bool::weighted(0.1))
            .prop_map(|(key, pages, fails)| Op::Had { key, pages, fails }),
        4 => key.clone().prop_map(|key| Op::Get { key }),
        8 => any::<usize>().prop_map(|nth| Op::Drop { nth }),
        1 => (any::<usize>(), 0..8_u8).prop_map(|(nth, priority)| Op::Prefer { nth, priority }),
        1 => key.clone().prop_map(|key| Op::Remove { key }),
        1 => Just(Op::Clear),
        2 => Just(Op::OfferAll),
        1 => Just(Op::DropMarked),
        3 => (key, any::<u64>()).prop_map(|(key, nth)| Op::Lose { key, nth }),
    ]
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum State {
    Hot,
    Marked,
    Lost,
}

struct Oracle<'a> {
    cache: &'a Cache<u32, u32>,
    is_tight: bool,
    map: HashMap<u32, (u32, usize, State)>,
    held: Vec<(u32, u32, Entry<'a, u32, u32>)>,
    last: u32,
}

impl<'a> Oracle<'a> {
    fn is_held(&self, key: u32) -> bool {
        let Some((value, ..)) = self.map.get(&key) else { return false };
        self.held.iter().any(|(k, v, entry)| *k == key && v == value && entry.is_kept())
    }

    fn judge(&mut self, key: u32, found: Option<Entry<'a, u32, u32>>) {
        let known = self.map.get(&key).copied();
        let must =
            self.is_held(key) || (!self.is_tight && known.is_some_and(|k| k.2 == State::Hot));
        assert!(found.is_some() || !must, "{key} {known:?}");
        let Some(entry) = found else {
            self.map.remove(&key);
            return;
        };
        let (value, len, state) = known.expect("what was never built is not found");
        assert!(state != State::Lost, "{key} was lost");
        assert_eq!(entry[..], vec![value; len], "{key}");
        self.map.insert(key, (value, len, State::Hot));
        self.held.push((key, value, entry));
    }

    fn had(&mut self, key: u32, pages: usize, fails: bool) {
        self.last += 1;
        let (cache, value, len) = (self.cache, self.last, pages * page_len());
        let mut was_built = false;
        let build = |values: &mut [u32]| {
            was_built = true;
            assert!(values.iter().all(|value| *value == 0));
            values.fill(value);
            if fails {
                Err("as told")
            } else {
                Ok(())
            }
        };
        match cache.get_or_build(key, len, build) {
            Ok(entry) if !was_built => self.judge(key, Some(entry)),
            Ok(entry) => {
                self.judge(key, None);
                assert_eq!(entry[..], vec![value; len]);
                if entry.is_kept() {
                    self.map.insert(key, (value, len, State::Hot));
                }
                self.held.push((key, value, entry));
            }
            Err(BuildError::Builder(why)) => {
                assert!(fails && why == "as told");
                self.judge(key, None);
            }
            Err(BuildError::TooLong { limit, .. }) => assert!(len * 4 > limit.as_usize()),
            Err(other) => panic!("{other}"),
        }
    }

    fn mark_all(&mut self) {
        let held: Vec<u32> = self.map.keys().copied().filter(|key| self.is_held(*key)).collect();
        let hot =
            self.map.iter_mut().filter(|(key, known)| known.2 == State::Hot && !held.contains(key));
        hot.for_each(|(_, known)| known.2 = State::Marked);
    }

    fn step(&mut self, op: &Op) {
        match *op {
            Op::Had { key, pages, fails } => self.had(key, pages, fails),
            Op::Get { key } => self.judge(key, self.cache.get(&key)),
            Op::Drop { nth } if !self.held.is_empty() => {
                drop(self.held.swap_remove(nth % self.held.len()));
            }
            Op::Prefer { nth, priority } if !self.held.is_empty() => {
                let entry = &self.held[nth % self.held.len()].2;
                entry.set_priority(Priority::new(priority).unwrap());
            }
            Op::Drop { .. } | Op::Prefer { .. } => {}
            Op::Remove { key } => {
                let was_there = self.cache.remove(&key);
                assert!(was_there || !self.is_held(key));
                self.map.remove(&key);
            }
            Op::Clear => {
                self.cache.clear();
                self.map.clear();
                assert_eq!(self.cache.len(), 0);
            }
            Op::OfferAll => {
                self.cache.offer_all();
                self.mark_all();
            }
            Op::DropMarked => {
                self.cache.drop_marked().unwrap();
                let marked = self.map.values_mut().filter(|known| known.2 == State::Marked);
                marked.filter(|known| known.1 > 0).for_each(|known| known.2 = State::Lost);
            }
            Op::Lose { key, nth } => {
                let is_lost = self.cache.lose(key, nth);
                let known = self.map.get_mut(&key).filter(|known| is_lost && known.1 > 0);
                known.into_iter().for_each(|known| known.2 = State::Lost);
            }
        }
        self.cache.check();
        for (key, value, entry) in &self.held {
            assert!(entry.iter().all(|v| v == value), "{key} has changed");
        }
    }
}

fn run(pages: u64, options: &CacheOptions<u32, u32>, is_tight: bool, program: &[Op]) {
    for cache in caches(pages, options) {
        let cache = &cache;
        let (map, held) = (HashMap::new(), Vec::new());
        let mut oracle = Oracle { cache, is_tight, map, held, last: 0 };
        program.iter().for_each(|op| oracle.step(op));
        oracle.held.clear();
        cache.clear();
        cache.check();
        assert_eq!(cache.stats().kept, Pages::ZERO);
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]

    #[test]
    fn with_room_for_all(program in prop::collection::vec(op(), 1..80)) {
        run(256, &Cache::<u32, u32>::options().hot(Bytes::mib(64)), false, &program);
    }

    #[test]
    fn with_room_for_a_few(program in prop::collection::vec(op(), 1..80)) {
        run(16, &Cache::<u32, u32>::options(), true, &program);
    }

    #[test]
    fn with_a_cap_and_nothing_hot(program in prop::collection::vec(op(), 1..80)) {
        let cap = Pages::new(12).bytes(page_size());
        run(64, &Cache::<u32, u32>::options().cap(cap).hot(Bytes::ZERO), true, &program);
    }
}
