//! Compares a pool with a map, and tests refused calls.

use std::collections::HashMap;

use proptest::prelude::*;

use super::*;
use crate::entry::word::Kind;
use glebe_os::internal::sys::memory::pagemap::{Entry, Pagemap};
use glebe_os::internal::sys::page_size;
use glebe_os::units::{Bytes, Pages};

#[cfg(all(feature = "lz4", feature = "zstd"))]
mod coded;
mod room;
pub(super) mod samples;
mod seal;
mod stale;
mod threads;

fn page() -> usize {
    page_size().bytes().as_usize()
}

fn bytes_of(seed: u64, len: usize) -> Vec<u8> {
    (0..len as u64).map(|at| (seed.wrapping_mul(0x9e37_79b9) + at * 7 + (at >> 8)) as u8).collect()
}

fn plain() -> Options {
    ObjectPool::options().codec(Codec::None).table(TableChoice::BySize)
}

impl ObjectPool {
    fn check(&self) {
        let memory = &self.objects.memory;
        let told = self.objects.classes.all().map(|class| class.lock().check(memory));
        assert_eq!(told.sum::<u64>(), memory.freeable());
        assert!(self.held().get() <= memory.account.limit());
    }
}

#[derive(Clone, Debug)]
enum Op {
    Insert(usize),
    Remove(usize),
    Replace { nth: usize, len: usize },
    Read(usize),
    Compact(u64),
    Hold(usize),
    LetGo,
}

fn len() -> impl Strategy<Value = usize> {
    prop_oneof![1..200_usize, 1..=page(), Just(page()), 900..1100_usize]
}

fn op() -> impl Strategy<Value = Op> {
    prop_oneof![
        6 => len().prop_map(Op::Insert),
        4 => any::<usize>().prop_map(Op::Remove),
        2 => (any::<usize>(), len()).prop_map(|(nth, len)| Op::Replace { nth, len }),
        2 => any::<usize>().prop_map(Op::Read),
        1 => (1..40_u64).prop_map(Op::Compact),
        1 => any::<usize>().prop_map(Op::Hold),
        1 => Just(Op::LetGo),
    ]
}

fn run(pool: &ObjectPool, ops: Vec<Op>) {
    let mut model: HashMap<Handle, Vec<u8>> = HashMap::new();
    let (mut order, mut gone) = (Vec::new(), Vec::new());
    let mut held: Vec<(Guard, Vec<u8>)> = Vec::new();
    let mut buf = vec![0; page()];
    for (seed, op) in ops.into_iter().enumerate() {
        let nth = |order: &Vec<Handle>, n: usize| (!order.is_empty()).then(|| n % order.len());
        match op {
            Op::Insert(len) => {
                let bytes = bytes_of(seed as u64, len);
                let handle = pool.insert(&bytes).unwrap();
                assert!(model.insert(handle, bytes).is_none(), "a handle twice");
                order.push(handle);
            }
            Op::Remove(n) => {
                let Some(at) = nth(&order, n) else { continue };
                let handle = order.swap_remove(at);
                pool.remove(handle).unwrap();
                model.remove(&handle);
                gone.push(handle);
            }
            Op::Replace { nth: n, len } => {
                let Some(at) = nth(&order, n) else { continue };
                let bytes = bytes_of(seed as u64, len);
                pool.replace(order[at], &bytes).unwrap();
                model.insert(order[at], bytes);
            }
            Op::Read(n) => {
                let Some(at) = nth(&order, n) else { continue };
                let len = pool.read(order[at], &mut buf).unwrap();
                assert_eq!(buf[..len], model[&order[at]]);
            }
            Op::Compact(pages) => {
                pool.compact(Budget::Pages(Pages::new(pages))).unwrap();
            }
            Op::Hold(n) => {
                let Some(at) = nth(&order, n) else { continue };
                held.push((pool.get(order[at]).unwrap(), model[&order[at]].clone()));
            }
            Op::LetGo => held.clear(),
        }
        pool.check();
        assert!(held.iter().all(|(guard, bytes)| **guard == **bytes), "held bytes changed");
    }
    drop(held);
    for handle in &gone {
        assert!(matches!(pool.read(*handle, &mut buf), Err(Error::Stale)));
        assert!(matches!(pool.remove(*handle), Err(Error::Stale)));
        assert!(matches!(pool.replace(*handle, b"x"), Err(Error::Stale)));
    }
    pool.objects.classes.all().for_each(|class| {
        class.lock().settle(&pool.objects.memory);
    });
    let freeable = pool.freeable();
    let used = pool.objects.memory.pages.used();
    let done = pool.compact(Budget::All).unwrap();
    assert_eq!(done.freed, freeable, "the estimate");
    assert_eq!(pool.objects.memory.pages.used(), used - done.freed.get());
    pool.check();
    assert_eq!(pool.freeable(), Pages::ZERO);
    for (handle, bytes) in &model {
        assert_eq!(*pool.get(*handle).unwrap(), **bytes);
        assert_eq!(pool.len_of(*handle).unwrap(), bytes.len());
        pool.remove(*handle).unwrap();
    }
    pool.check();
    assert_eq!(pool.objects.memory.pages.used(), 0);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]
    #[test]
    fn as_a_map(ops in prop::collection::vec(op(), 1..400), automatic: bool) {
        let compaction = if automatic { Compaction::Automatic } else { Compaction::Manual };
        run(&plain().compaction(compaction).build().unwrap(), ops);
    }
}

#[test]
fn what_no_pool_takes() {
    let pool = plain().limit(Bytes::mib(8)).build().unwrap();
    let other = plain().limit(Bytes::mib(8)).build().unwrap();
    assert!(matches!(pool.insert(b""), Err(Error::Empty)));
    assert!(matches!(pool.insert(&vec![0; page() + 1]), Err(Error::TooLong { .. })));
    let handle = pool.insert(b"four").unwrap();
    let twin = other.insert(b"else").unwrap();
    assert!(matches!(pool.read(twin, &mut [0; 9]), Err(Error::Foreign)));
    assert!(matches!(pool.remove(twin), Err(Error::Foreign)));
    assert!(matches!(pool.replace(handle, b""), Err(Error::Empty)));
    assert!(matches!(
        pool.read(handle, &mut [0; 3]),
        Err(Error::BufferTooSmall { given: 3, len: 4 })
    ));
    for word in 0..64 {
        let Some(forged) = Handle::from_raw(handle.to_raw() ^ 1 << word) else { continue };
        assert!(matches!(pool.get(forged), Err(Error::Stale | Error::Foreign)), "bit {word}");
    }
    assert!(matches!(pool.compact(Budget::Pages(Pages::ZERO)), Err(Error::NoBudget)));
    assert!(matches!(pool.compact(Budget::Time(Default::default())), Err(Error::NoBudget)));
    pool.remove(handle).unwrap();
    assert!(matches!(pool.get(handle), Err(Error::Stale)));
    let tiny = plain().limit(Bytes::new(1)).build();
    assert!(matches!(tiny, Err(Error::LimitBelowHeld { .. })));
    assert!(matches!(pool.set_limit(Bytes::new(1)), Err(Error::LimitBelowHeld { .. })));
}

fn resident(pool: &ObjectPool) -> u64 {
    let range = pool.objects.memory.pages.frames().range_of_all();
    let len = Bytes::new(range.len() as u64);
    let entries = Pagemap::open().unwrap().entries(range.start, len, page_size()).unwrap();
    let present = entries.iter().filter(|entry| !matches!(entry, Entry::Absent)).count();
    Pages::new(present as u64).bytes(page_size()).get()
}

#[test]
fn what_compaction_frees_leaves_the_process() {
    // Each class keeps a zspage that is not full, which is longer with larger pages.
    let scale = page_size().bytes().get() / 4096;
    let options = plain().limit(Bytes::mib(64 * scale));
    let pool = options.compaction(Compaction::Manual).build().unwrap();
    let handles: Vec<Handle> = (0..12_000 * scale)
        .map(|n| pool.insert(&bytes_of(n, 700 + n as usize % 900)).unwrap())
        .collect();
    let full = resident(&pool);
    assert!(full > 12 << 20, "{full} bytes resident");
    for (n, handle) in handles.iter().enumerate() {
        if n % 8 != 0 {
            pool.remove(*handle).unwrap();
        }
    }
    let stats = pool.stats();
    stats.check().unwrap();
    assert!(stats.overhead_of_pages() > 3.0, "{stats}");
    let done = pool.compact(Budget::All).unwrap();
    assert!(done.moved > 500 && done.freed.bytes(page_size()) > Bytes::new(4_096_000), "{done:?}");
    let stats = pool.stats();
    stats.check().unwrap();
    assert!(stats.overhead_of_pages() < 0.3, "{stats}");
    let left = resident(&pool);
    let held = Pages::new(stats.used_pages + stats.kept_pages).bytes(page_size());
    assert_eq!(left, held.get(), "resident is what is counted");
    assert!(left < full / 5, "{left} of {full} bytes");
    for (n, handle) in handles.iter().enumerate().step_by(8) {
        assert_eq!(*pool.get(*handle).unwrap(), *bytes_of(n as u64, 700 + n % 900));
    }
}

#[test]
fn by_itself_a_pool_keeps_near_what_compaction_would_leave() {
    let pool = plain().build().unwrap();
    // The pool may keep a number of pages, so larger pages need more objects.
    let count = 12_000 * page_size().bytes().get() / Rules::PAGE_MIN.get();
    let handles: Vec<Handle> =
        (0..count).map(|n| pool.insert(&bytes_of(n, 500 + n as usize % 1500)).unwrap()).collect();
    for (n, handle) in handles.iter().enumerate().filter(|(n, _)| n % 16 != 0) {
        pool.remove(*handle).unwrap();
        let (freeable, used) = (pool.freeable().get(), pool.objects.memory.pages.used());
        assert!(freeable <= used / 50 + 64, "{freeable} of {used} pages after {n}");
    }
    let before = pool.stats();
    pool.compact(Budget::All).unwrap();
    assert!(before.overhead_of_pages() < pool.stats().overhead_of_pages() + 0.12, "{before}");
}

#[test]
fn a_budget_of_pages_is_not_passed_by_a_zspage() {
    let pool = plain().compaction(Compaction::Manual).build().unwrap();
    let handles: Vec<Handle> =
        (0..4000).map(|n| pool.insert(&bytes_of(n, 1400)).unwrap()).collect();
    handles.iter().step_by(2).for_each(|handle| pool.remove(*handle).unwrap());
    let chain = pool.table().rules().chain;
    while pool.freeable() > Pages::ZERO {
        let before = pool.freeable();
        let done = pool.compact(Budget::Pages(Pages::new(3))).unwrap();
        assert!(done.freed.get() < 3 + 16 * chain.get(), "{done:?}");
        assert_eq!(pool.freeable() + done.freed, before);
        assert!(done.freed > Pages::ZERO);
    }
    assert!(pool.compact(Budget::Time(std::time::Duration::from_micros(100))).is_ok());
}

#[test]
fn a_limit_is_never_passed_and_refuses() {
    let limit = Bytes::mib(4);
    let pool = plain().limit(limit).build().unwrap();
    let mut handles = Vec::new();
    let error = loop {
        match pool.insert(&bytes_of(handles.len() as u64, 1000)) {
            Ok(handle) => handles.push(handle),
            Err(error) => break error,
        }
        assert!(pool.held() <= limit);
    };
    assert!(matches!(error, Error::Full { len: 1000, .. }), "{error}");
    let stats = pool.stats();
    stats.check().unwrap();
    assert!(stats.stored_bytes > limit.get() / 10 * 9, "{stats}");
    assert!(stats.held_bytes <= limit.get() + (64 << 10), "{stats}");
    pool.remove(handles[0]).unwrap();
    handles[0] = pool.insert(&bytes_of(0, 1000)).unwrap();
    let below = pool.set_limit(Bytes::mib(3));
    assert!(matches!(below, Err(Error::LimitBelowHeld { .. })));
    for handle in handles.drain(..handles.len() / 2) {
        pool.remove(handle).unwrap();
    }
    pool.set_limit(Bytes::mib(3)).unwrap();
    assert!(pool.held() <= Bytes::mib(3));
    assert_eq!(handles.iter().filter(|handle| pool.get(**handle).is_err()).count(), 0);
}

#[test]
fn at_the_limit_the_oldest_go() {
    for limit in (0..12).map(|n| Bytes::new((1500 + 97 * n) << 10)) {
        let pool = plain().limit(limit).at_limit(AtLimit::EvictOldest).build().unwrap();
        let mut handles = Vec::new();
        for n in 0..20_000_u64 {
            let bytes = bytes_of(n, 300 + (n * 131 % 800) as usize);
            handles.push((pool.insert(&bytes).unwrap(), bytes));
            assert!(pool.get(handles[0].0).is_ok(), "{limit}: after {n}");
            assert!(pool.held() <= limit);
        }
        let there: Vec<usize> =
            (0..handles.len()).filter(|n| pool.get(handles[*n].0).is_ok()).collect();
        for n in &there {
            assert_eq!(*pool.get(handles[*n].0).unwrap(), *handles[*n].1);
        }
        let young = there.iter().filter(|n| **n > 15_000).count();
        let most = limit.as_usize() / 1398;
        assert!(there.len() > most && young * 10 > there.len() * 9, "{young} of {}", there.len());
        let stats = pool.stats();
        stats.check().unwrap();
        assert_eq!(stats.evicted, 20_000 - there.len() as u64);
        pool.set_limit(Bytes::mib(1)).unwrap();
        assert!(pool.held() <= Bytes::mib(1));
    }
}

#[test]
fn what_is_gone_but_still_read_does_not_stand_in_the_way_of_eviction() {
    let limit = Bytes::mib(1);
    let pool = plain().limit(limit).at_limit(AtLimit::EvictOldest).build().unwrap();
    let page = page_size().bytes().as_usize();
    let insert = |n: usize| pool.insert(&bytes_of(n as u64, page));
    let read = limit.as_usize() / page - 32;
    let handles: Vec<Handle> = (0..read).map(|n| insert(n).unwrap()).collect();
    let guards: Vec<_> = handles.iter().map(|handle| pool.get(*handle).unwrap()).collect();
    handles.iter().for_each(|handle| pool.remove(*handle).unwrap());
    for n in 0..4 * read {
        assert!(insert(n).is_ok(), "{n}: {}", pool.stats());
    }
    drop(guards);
}

#[test]
fn a_table_is_changed_and_nothing_lost() {
    let pool = plain().compaction(Compaction::Manual).build().unwrap();
    let insert = |n: u64| (pool.insert(&bytes_of(n, 40 + (n * 37 % 4000) as usize)).unwrap(), n);
    let mut all: Vec<(Handle, u64)> = (0..5000).map(insert).collect();
    let rules = *pool.table().rules();
    for (chain, merge, steps) in [(1, true, 4), (8, false, 1), (16, true, 1), (2, true, 1)] {
        let step = Bytes::new(steps * rules.step.get());
        let rules = Rules { chain: Pages::new(chain), merge, step, ..rules };
        let table = Table::by_rules(&rules).unwrap();
        pool.set_table(&table).unwrap();
        all.extend((all.len() as u64..).take(200).map(insert));
        pool.compact(Budget::All).unwrap();
        let stats = pool.stats();
        stats.check().unwrap();
        assert_eq!(stats.classes.len(), table.classes().len(), "chain {chain}");
        assert!(stats.classes.iter().all(|class| !class.is_retired));
        for (handle, n) in &all {
            let bytes = bytes_of(*n, 40 + (*n * 37 % 4000) as usize);
            assert_eq!(*pool.get(*handle).unwrap(), *bytes);
        }
        pool.check();
    }
    all.iter().for_each(|(handle, _)| pool.remove(*handle).unwrap());
    assert_eq!(pool.stats().used_pages, 0);
}

#[test]
fn a_fitted_table_follows_the_objects() {
    let len = |n: u64| 40 + (n * 37 % 4000) as usize;
    let fill = |choice| {
        let pool = plain().table(choice).build().unwrap();
        let insert = |n: u64| pool.insert(&bytes_of(n, len(n))).unwrap();
        let handles: Vec<Handle> = (0..1500).map(insert).collect();
        pool.compact(Budget::All).unwrap();
        let stats = pool.stats();
        stats.check().unwrap();
        (pool, handles, stats)
    };
    let (fixed, _, by_size) = fill(TableChoice::BySize);
    let (pool, handles, fitted) = fill(TableChoice::Fitted);
    assert_ne!(pool.table(), fixed.table());
    assert!(fitted.overhead() < by_size.overhead() - 0.05, "{by_size}{fitted}");
    for (n, handle) in handles.iter().enumerate() {
        assert_eq!(*pool.get(*handle).unwrap(), *bytes_of(n as u64, len(n as u64)));
        pool.remove(*handle).unwrap();
    }
    pool.check();
}

#[test]
fn statistics_say_what_there_is() {
    let pool = plain().build().unwrap();
    let handles: Vec<Handle> = (0..100).map(|n| pool.insert(&bytes_of(n, 1000)).unwrap()).collect();
    pool.replace(handles[0], &bytes_of(1, page())).unwrap();
    pool.remove(handles[1]).unwrap();
    let stats = pool.stats();
    stats.check().unwrap();
    assert_eq!((stats.inserted, stats.removed, stats.objects), (101, 2, 99));
    assert_eq!(stats.stored_bytes, 98_000 + page() as u64);
    assert_eq!(stats.inserted_bytes, 100_000 + page() as u64);
    assert_eq!(stats.inserted_stored_bytes, stats.inserted_bytes);
    let table = stats.class_table();
    assert_eq!(table.lines().count(), stats.classes.len() + 1);
    let columns = table.lines().next().unwrap().split_whitespace().count();
    assert!(table.lines().all(|line| line.split_whitespace().count() == columns), "{table}");
    let stored = format!("\"stored_bytes\": {}", stats.stored_bytes);
    assert!(stats.to_json().contains(&stored), "{}", stats.to_json());
    let metrics = stats.to_openmetrics();
    assert!(metrics.contains("# TYPE glebe_zpool_stored_bytes gauge\n"), "{metrics}");
    assert!(metrics.contains("glebe_zpool_inserted_total 101\n"), "{metrics}");
    let broken = Stats { objects: 1, ..stats };
    assert!(broken.check().is_err());
}

#[test]
fn generations_outlive_the_pages_of_their_entries() {
    let pool = plain().build().unwrap();
    let mut gone = Vec::new();
    for _ in 0..4 {
        let handles: Vec<Handle> = (0..4000).map(|_| pool.insert(b"x").unwrap()).collect();
        handles.iter().for_each(|handle| pool.remove(*handle).unwrap());
        gone.extend(handles);
    }
    let present = pool.objects.memory.entries.held().0;
    assert!(present.get() < 5 * page() as u64, "{present} of entries are left");
    let now: Vec<Handle> = (0..4000).map(|_| pool.insert(b"y").unwrap()).collect();
    assert!(gone.iter().all(|handle| matches!(pool.get(*handle), Err(Error::Stale))));
    assert!(now.iter().all(|handle| *pool.get(*handle).unwrap() == *b"y"));
}

#[test]
fn pages_that_compaction_freed_stay_counted_when_a_class_gets_another_shape() {
    let pool = plain().compaction(Compaction::Manual).build().unwrap();
    let rules = |chain: u64| Rules { chain: Pages::new(chain), ..*pool.table().rules() };
    pool.set_table(&Table::by_rules(&rules(8)).unwrap()).unwrap();
    let all: Vec<_> = (0..4000).map(|n| pool.insert(&bytes_of(n, 1300)).unwrap()).collect();
    all.iter().step_by(2).for_each(|handle| pool.remove(*handle).unwrap());
    let freed = pool.compact(Budget::All).unwrap().freed;
    assert!(freed.bytes(page_size()) > Bytes::new(1_228_800), "{freed}");
    let freed = freed.get();
    all.iter().skip(1).step_by(2).for_each(|handle| pool.remove(*handle).unwrap());
    assert_eq!(pool.stats().compacted_pages, freed);
    for chain in [3, 5, 1] {
        pool.set_table(&Table::by_rules(&rules(chain)).unwrap()).unwrap();
        assert_eq!(pool.stats().compacted_pages, freed, "chains of {chain}");
    }
}

#[test]
fn tables_that_come_again_hold_no_more_than_before() {
    let pool = plain().compaction(Compaction::Manual).build().unwrap();
    let rules = *pool.table().rules();
    let chains = [1, 3, 5, 8].map(|chain| Rules { chain: Pages::new(chain), ..rules });
    let tables = chains.map(|rules| Table::by_rules(&rules).unwrap());
    let cycle = || {
        for table in &tables {
            pool.set_table(table).unwrap();
            for len in (8..=page()).step_by(8) {
                pool.remove(pool.insert(&bytes_of(1, len)).unwrap()).unwrap();
            }
            pool.compact(Budget::All).unwrap();
        }
        pool.held()
    };
    // The first cycles add class numbers, until no table needs a new one.
    let held = (0..8).map(|_| cycle()).max();
    assert!((0..192).map(|_| cycle()).max() <= held, "more than {held:?}");
}
