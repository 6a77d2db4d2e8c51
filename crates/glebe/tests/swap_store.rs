//! Tests a store as a program uses it: objects return unchanged, limits hold, bad calls change
//! nothing.

mod cost;
mod idle;
#[cfg(feature = "encrypt")]
mod key;
#[cfg(feature = "encrypt")]
mod sealed;
mod stress;

use std::collections::HashMap;

use glebe::page_size;
use glebe::swap::{Key, Store, SwapError, SwapOptions};
use glebe::units::{Bytes, Pages};
use glebe_testing::time::is_long;
use proptest::prelude::*;

use glebe_testing::stressed::mix;

fn page() -> usize {
    page_size().bytes().as_usize()
}

fn pages(count: u64) -> Bytes {
    Pages::new(count).bytes(page_size())
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Matter {
    Zeros,
    Filled,
    Text,
    Noise,
}

const MATTERS: [Matter; 4] = [Matter::Zeros, Matter::Filled, Matter::Text, Matter::Noise];

/// Returns the bytes of object `n`, which differ for each `n`, except zeros and short objects.
fn bytes_of(n: u64, len: usize, matter: Matter) -> Vec<u8> {
    let word = |at: u64| match matter {
        Matter::Zeros => 0,
        Matter::Filled => n ^ 0x5eed_0000_0000,
        Matter::Text => (n << 16) | (at / 8 % 100),
        Matter::Noise => mix(n << 32 | at),
    };
    let words = (0..len.div_ceil(8) as u64).flat_map(|at| word(at).to_le_bytes());
    words.take(len).collect()
}

fn small(budget: u64) -> Store {
    Store::options().pool_limit(Bytes::mib(64)).build(pages(budget)).unwrap()
}

fn insert_all(store: &Store, count: u64, matter: Matter) -> Vec<Key> {
    (0..count).map(|n| store.insert(&bytes_of(n, page(), matter)).unwrap()).collect()
}

fn check_all(store: &Store, keys: &[Key], matter: Matter) {
    for (n, key) in keys.iter().enumerate() {
        assert_eq!(*store.pin(*key).unwrap(), *bytes_of(n as u64, page(), matter), "object {n}");
    }
    store.stats().check().unwrap();
}

#[test]
fn objects_of_every_length_and_matter_come_back() {
    let store = Store::options()
        .pool_limit(Bytes::mib(64))
        .capacity(Bytes::mib(64))
        .build(Bytes::mib(2))
        .unwrap();
    let lens = [1, 7, 8, page() - 1, page(), page() + 1, 65_536, 100_001, 2 << 20];
    let mut all = Vec::new();
    for (n, len) in lens.into_iter().enumerate() {
        for matter in MATTERS {
            let bytes = bytes_of(n as u64 + 1, len, matter);
            all.push((store.insert(&bytes).unwrap(), bytes, matter));
        }
    }
    for round in 0..2 {
        for (key, bytes, matter) in &all {
            let pin = store.pin(*key).unwrap();
            assert_eq!(pin.len(), bytes.len());
            assert!(*pin == **bytes, "{} bytes of {matter:?}, round {round}", bytes.len());
        }
    }
    let stats = store.stats();
    stats.check().unwrap();
    assert!(stats.evicted > 0 && stats.raw > 0 && stats.filled > 0, "{stats}");
    for (key, bytes, matter) in all {
        assert!(store.take(key).unwrap() == bytes, "{} bytes of {matter:?}, taken", bytes.len());
    }
    let stats = store.stats();
    stats.check().unwrap();
    assert_eq!((stats.resident, stats.stored), (Pages::ZERO, Pages::ZERO));
}

#[test]
fn new_objects_are_zeros_at_an_address_for_life() {
    let store = small(4);
    let mut object = store.create(page() * 2).unwrap();
    assert!(object.iter().all(|byte| *byte == 0));
    object[page()] = 7;
    let (at, key) = (object.as_ptr(), object.key());
    drop(object);
    insert_all(&store, 16, Matter::Noise);
    let pin = store.pin(key).unwrap();
    assert_eq!((pin.as_ptr(), pin[page()], at.addr() % page()), (at, 7, 0));
    drop(pin);
    store.free(key).unwrap();
    let again = store.create(page() * 2).unwrap();
    assert_eq!(again.as_ptr(), at);
    assert!(again.iter().all(|byte| *byte == 0), "another object's bytes");
}

#[test]
fn lengths_that_no_store_takes_are_refused() {
    let store = small(4);
    for len in [0, (2 << 20) + 1, usize::MAX] {
        let refused = store.create(len).unwrap_err();
        assert!(
            matches!(refused, SwapError::Len { len: given, max } if given == len && max == 2 << 20)
        );
    }
    assert!(matches!(store.insert(&[]), Err(SwapError::Len { len: 0, .. })));
    assert_eq!(store.stats().created_pages, 0);
}

#[test]
fn a_key_of_the_past_is_an_error() {
    let (store, other) = (small(4), small(4));
    let key = store.insert(b"first").unwrap();
    store.free(key).unwrap();
    let second = store.insert(b"second").unwrap();
    assert_ne!(key, second);
    assert!(matches!(store.pin(key), Err(SwapError::Stale)));
    assert!(matches!(store.pin_mut(key), Err(SwapError::Stale)));
    assert!(matches!(store.take(key), Err(SwapError::Stale)));
    assert!(matches!(store.free(key), Err(SwapError::Stale)));
    assert!(matches!(store.cold(key), Err(SwapError::Stale)));
    assert!(matches!(store.will_need(key), Err(SwapError::Stale)));
    assert!(matches!(store.dead(key), Err(SwapError::Stale)));
    assert!(matches!(other.pin(second), Err(SwapError::Foreign)));
    assert!(matches!(other.free(second), Err(SwapError::Foreign)));
    assert_eq!(*store.pin(second).unwrap(), *b"second");
}

#[test]
fn what_is_pinned_bounds_what_comes_in_and_nothing_is_lost() {
    let store = small(4);
    let keys = insert_all(&store, 8, Matter::Text);
    let guards: Vec<_> = keys[..4].iter().map(|key| store.pin(*key).unwrap()).collect();
    let (all, one) = (pages(4), pages(1));
    for refused in [store.pin(keys[5]).map(drop), store.create(1).map(drop)] {
        let refused = refused.unwrap_err();
        let SwapError::Budget { len, pinned, budget } = refused else { panic!("{refused}") };
        assert_eq!((len, pinned, budget), (one, all, all));
    }
    assert!(matches!(store.pin_mut(keys[6]), Err(SwapError::Budget { .. })));
    assert!(matches!(store.will_need(keys[6]), Err(SwapError::Budget { .. })));
    // `take` may exceed the budget.
    assert_eq!(store.take(keys[7]).unwrap(), bytes_of(7, page(), Matter::Text));
    for (n, guard) in guards.iter().enumerate() {
        assert_eq!(**guard, *bytes_of(n as u64, page(), Matter::Text));
    }
    drop(guards);
    check_all(&store, &keys[..7], Matter::Text);
}

#[test]
fn an_object_beyond_the_budget_is_refused() {
    let store = small(4);
    let key = store.insert(b"there").unwrap();
    let refused = store.create(5 * page()).unwrap_err();
    assert!(matches!(refused, SwapError::Budget { pinned: Bytes::ZERO, .. }), "{refused}");
    assert_eq!(store.stats().evicted, 0, "others left for nothing");
    assert_eq!(*store.pin(key).unwrap(), *b"there");
}

#[test]
fn a_budget_is_lowered_to_what_is_pinned_and_raised() {
    let store = small(16);
    let keys = insert_all(&store, 16, Matter::Text);
    let guards: Vec<_> = keys[..3].iter().map(|key| store.pin(*key).unwrap()).collect();
    assert!(matches!(store.set_budget(Bytes::ZERO), Err(SwapError::NoBudget { .. })));
    let refused = store.set_budget(pages(2)).unwrap_err();
    let SwapError::BudgetBelowPinned { given, pinned } = refused else { panic!("{refused}") };
    assert_eq!((given, pinned, store.budget()), (pages(2), pages(3), pages(16)));
    store.set_budget(pages(3)).unwrap();
    let stats = store.stats();
    stats.check().unwrap();
    assert_eq!((stats.resident, stats.pinned), (Pages::new(3), Pages::new(3)));
    drop(guards);
    check_all(&store, &keys, Matter::Text);
    store.set_budget(pages(1 << 20)).unwrap();
    check_all(&store, &keys, Matter::Text);
    assert_eq!(store.stats().resident, Pages::new(16));
    assert!(matches!(Store::with_budget(Bytes::ZERO), Err(SwapError::NoBudget { .. })));
}

#[test]
fn capacities_are_checked_and_bound_what_there_is() {
    let build = |capacity| Store::options().capacity(capacity).build(pages(16));
    for given in [Bytes::ZERO, pages(1 << 40)] {
        assert!(matches!(build(given), Err(SwapError::Capacity { given: at, .. }) if at == given));
    }
    let store = build(pages(3)).unwrap();
    let keys = insert_all(&store, 3, Matter::Text);
    store.free(keys[1]).unwrap();
    let refused = store.create(2 * page()).unwrap_err();
    let SwapError::Addresses { len, largest, capacity } = refused else { panic!("{refused}") };
    assert_eq!((len, largest, capacity), (pages(2), pages(1), pages(3)));
    assert!(store.create(1).is_ok());
}

#[test]
fn a_full_pool_refuses_and_loses_nothing() {
    let most = pages(256);
    let store = Store::options().pool_limit(most).build(pages(64)).unwrap();
    let mut keys = Vec::new();
    let refused = loop {
        let n = keys.len() as u64;
        assert!(n < 1000, "nothing is refused");
        match store.insert(&bytes_of(n, page(), Matter::Noise)) {
            Ok(key) => keys.push(key),
            Err(refused) => break refused,
        }
    };
    let SwapError::Full { held, limit } = refused else { panic!("{refused}") };
    assert!(held <= limit && limit == most, "{held} of {limit}");
    assert!(keys.len() > 250, "{} objects", keys.len());
    for _ in 0..3 {
        check_all(&store, &keys, Matter::Noise);
    }
    assert!(store.stats().kept_dropped > 0, "{}", store.stats());
    store.set_pool_limit(pages(512)).unwrap();
    store.insert(&bytes_of(keys.len() as u64, page(), Matter::Noise)).unwrap();
    assert!(matches!(store.set_pool_limit(Bytes::new(1)), Err(SwapError::Pool(_))));
    check_all(&store, &keys, Matter::Noise);
}

fn with_file(limit: Bytes) -> Store {
    let options = Store::options().pool_limit(pages(64)).capacity(pages(16 << 10));
    options.file_in(std::env::temp_dir(), limit).build(pages(1024)).unwrap()
}

#[test]
fn what_the_pool_has_no_room_for_goes_to_the_file() {
    let store = with_file(pages(16 << 10));
    println!("past the page cache: {:?}", store.is_file_direct());
    let lens = [1, 600, page(), page(), page() + 1, 40_000, 300_001, 2 << 20];
    let mut objects: Vec<_> = (0..200)
        .map(|n| {
            let matter = MATTERS[n as usize % 4];
            let bytes = bytes_of(n + 1, lens[n as usize % 97 % lens.len()], matter);
            (store.insert(&bytes).unwrap(), bytes)
        })
        .collect();
    for round in 0..3 {
        for (nth, (key, bytes)) in objects.iter_mut().enumerate() {
            assert!(*store.pin(*key).unwrap() == **bytes, "object {nth}, round {round}");
            if nth % 5 == round {
                let last = bytes.len() - 1;
                bytes[last] ^= 1;
                store.pin_mut(*key).unwrap()[last] ^= 1;
            }
        }
    }
    let stats = store.stats();
    stats.check().unwrap();
    assert!(stats.spilled > 0 && stats.read_back > 0 && stats.reused > 0, "{stats}");
    assert!(stats.file > Pages::ZERO && stats.pool <= Pages::new(64), "{stats}");
    for (nth, (key, bytes)) in objects.into_iter().enumerate() {
        match nth % 3 {
            0 => assert!(store.take(key).unwrap() == bytes, "object {nth}"),
            1 => store.free(key).unwrap(),
            _ => store.dead(key).unwrap(),
        }
    }
    assert_eq!(store.stats().file, Pages::ZERO, "records of what ended");
}

#[test]
fn a_full_file_refuses_and_loses_nothing() {
    let limit = pages(256);
    let store = with_file(limit);
    let mut keys = Vec::new();
    let refused = loop {
        let n = keys.len() as u64;
        assert!(n < 4000, "nothing is refused");
        match store.insert(&bytes_of(n, page(), Matter::Noise)) {
            Ok(key) => keys.push(key),
            Err(refused) => break refused,
        }
    };
    assert!(matches!(refused, SwapError::FileFull { limit: at, .. } if at == limit), "{refused}");
    assert!(keys.len() > 1024 + 240, "{} objects", keys.len());
    (0..2).for_each(|_| check_all(&store, &keys, Matter::Noise));
    let spare = keys.split_off(keys.len() - 100);
    spare.into_iter().for_each(|key| store.free(key).unwrap());
    insert_all(&store, 90, Matter::Noise);
    check_all(&store, &keys, Matter::Noise);
    let none = Store::options().file_in("/nowhere", limit).build(limit);
    assert!(matches!(none, Err(SwapError::Os(_))));
}

#[test]
fn pins_to_write_are_alone() {
    let store = small(4);
    let key = store.insert(b"object").unwrap();
    let (first, second) = (store.pin(key).unwrap(), store.pin(key).unwrap());
    let is_pinned = |result: Result<(), SwapError>| matches!(result, Err(SwapError::Pinned));
    assert!(is_pinned(store.pin_mut(key).map(drop)));
    drop(first);
    assert!(is_pinned(store.pin_mut(key).map(drop)));
    assert!(is_pinned(store.free(key)) && is_pinned(store.take(key).map(drop)));
    assert_eq!(*second, *b"object");
    drop(second);
    let mut alone = store.pin_mut(key).unwrap();
    assert!(is_pinned(store.pin(key).map(drop)) && is_pinned(store.pin_mut(key).map(drop)));
    assert!(is_pinned(store.free(key)) && store.will_need(key).is_ok());
    alone[0] = b'O';
    assert_eq!((alone.key(), store.stats().pinned), (key, Pages::new(1)));
    drop(alone);
    assert_eq!(store.take(key).unwrap(), b"Object");
}

#[test]
fn a_guard_that_is_held_for_ever_keeps_its_object_alone() {
    let store = small(4);
    let keys = insert_all(&store, 4, Matter::Text);
    std::mem::forget(store.pin(keys[0]).unwrap());
    let more = insert_all(&store, 8, Matter::Text);
    check_all(&store, &more, Matter::Text);
    assert!(matches!(store.free(keys[0]), Err(SwapError::Pinned)));
    assert_eq!(store.stats().pinned, Pages::new(1));
}

#[test]
fn what_is_dead_is_never_compressed() {
    let store = small(4);
    let keys = insert_all(&store, 3, Matter::Text);
    let guard = store.pin(keys[0]).unwrap();
    (0..2).for_each(|_| store.dead(keys[0]).unwrap());
    assert_eq!(*guard, *bytes_of(0, page(), Matter::Text), "a guard's bytes went");
    assert!(matches!(store.pin(keys[0]), Err(SwapError::Dead)));
    assert_eq!((store.stats().resident, store.stats().buried), (Pages::new(3), Pages::ZERO));
    drop(guard);
    assert_eq!((store.stats().resident, store.stats().buried), (Pages::new(2), Pages::new(1)));
    store.dead(keys[1]).unwrap();
    let mut alone = store.pin_mut(keys[2]).unwrap();
    store.dead(keys[2]).unwrap();
    alone[0] = 1;
    drop(alone);
    let stats = store.stats();
    stats.check().unwrap();
    assert_eq!((stats.resident, stats.buried), (Pages::ZERO, Pages::new(3)));
    for key in &keys {
        assert!(matches!(store.pin(*key), Err(SwapError::Dead)));
        assert!(matches!(store.pin_mut(*key), Err(SwapError::Dead)));
        assert!(matches!(store.take(*key), Err(SwapError::Dead)));
    }
    insert_all(&store, 4, Matter::Text);
    assert_eq!((store.stats().coded + store.stats().raw, store.stats().evicted), (0, 0));
    // `dead` frees a stored object's copy.
    let others = insert_all(&store, 4, Matter::Noise);
    let stored = store.stats().stored;
    assert!(stored >= Pages::new(4));
    others.iter().for_each(|key| store.dead(*key).unwrap());
    keys.iter().chain(&others).for_each(|key| store.free(*key).unwrap());
    store.stats().check().unwrap();
    assert_eq!(store.stats().buried, Pages::ZERO);
}

#[test]
fn a_copy_is_kept_until_the_object_is_written() {
    let store = small(4);
    let keys = insert_all(&store, 8, Matter::Noise);
    let copied = |store: &Store| store.stats().raw + store.stats().coded;
    check_all(&store, &keys, Matter::Noise);
    let once = copied(&store);
    assert_eq!(once, 8);
    check_all(&store, &keys, Matter::Noise);
    assert_eq!(copied(&store), once, "an object that was only read");
    assert!(store.stats().reused > 0);
    store.pin_mut(keys[0]).unwrap()[0] ^= 1;
    store.pin_mut(keys[0]).unwrap()[0] ^= 1;
    check_all(&store, &keys, Matter::Noise);
    assert_eq!(copied(&store), once + 1, "an object that was written");

    let store = SwapOptions::default().keep_copies(false).build(pages(4)).unwrap();
    let keys = insert_all(&store, 8, Matter::Noise);
    (0..2).for_each(|_| check_all(&store, &keys, Matter::Noise));
    assert_eq!((store.stats().kept, store.stats().reused), (Pages::ZERO, 0));
}

#[test]
fn what_is_cold_goes_and_what_is_used_stays() {
    let store = small(8);
    let keys = insert_all(&store, 8, Matter::Text);
    store.cold(keys[5]).unwrap();
    store.insert(b"one more").unwrap();
    let before = store.stats().loaded;
    for key in keys.iter().filter(|key| **key != keys[5]) {
        drop(store.pin(*key).unwrap());
    }
    assert_eq!(store.stats().loaded, before, "another one left");
    store.will_need(keys[5]).unwrap();
    assert_eq!(store.stats().loaded, before + 1);
}

#[test]
fn statistics_have_all_their_forms() {
    let store = small(4);
    let keys = insert_all(&store, 12, Matter::Text);
    check_all(&store, &keys, Matter::Text);
    let stats = store.stats();
    assert!(stats.load.count() >= 8 && stats.block_bytes < stats.coded_bytes || stats.coded == 0);
    assert!(stats.to_json().contains("\"budget_pages\": 4"), "{}", stats.to_json());
    let text = stats.to_openmetrics();
    assert!(text.contains("glebe_store_loaded_total") && text.ends_with("# EOF\n"), "{text}");
    let two = glebe::swap::Stats::openmetrics_of(&[("a", &stats), ("b", &stats)]);
    assert!(two.contains("store=\"a\"") && two.contains("store=\"b\""), "{two}");
    assert!(stats.to_string().contains("evicted"));
    assert_eq!(stats.lines().len(), glebe::swap::Stats::describe().lines().count());
}

#[derive(Clone, Debug)]
enum Call {
    Insert(usize, usize),
    Pin(usize),
    Write(usize, usize, u8),
    Take(usize),
    Free(usize),
    Cold(usize),
    WillNeed(usize),
    Dead(usize),
    Budget(u64),
}

fn call() -> impl Strategy<Value = Call> {
    let n = 0..64_usize;
    prop_oneof![
        4 => (1..40_000_usize, 0..4_usize).prop_map(|(len, matter)| Call::Insert(len, matter)),
        6 => n.clone().prop_map(Call::Pin),
        4 => (n.clone(), any::<usize>(), any::<u8>()).prop_map(|(n, at, b)| Call::Write(n, at, b)),
        1 => n.clone().prop_map(Call::Take),
        1 => n.clone().prop_map(Call::Free),
        1 => n.clone().prop_map(Call::Cold),
        1 => n.clone().prop_map(Call::WillNeed),
        1 => n.prop_map(Call::Dead),
        1 => (10..40_u64).prop_map(Call::Budget),
    ]
}

/// In the map, `None` is a dead object.
fn run(store: &Store, program: &[Call]) {
    let (mut map, mut keys) = (HashMap::new(), Vec::new());
    for (at, call) in program.iter().enumerate() {
        let key = |n: &usize| keys.get(n % keys.len().max(1)).copied();
        match call {
            Call::Insert(len, matter) => {
                let bytes = bytes_of(at as u64 + 1, *len, MATTERS[*matter]);
                let key = store.insert(&bytes).unwrap();
                assert!(map.insert(key, Some(bytes)).is_none(), "a key that is in use");
                keys.push(key);
            }
            Call::Budget(budget) => store.set_budget(pages(*budget)).unwrap(),
            Call::Pin(n)
            | Call::WillNeed(n)
            | Call::Cold(n)
            | Call::Dead(n)
            | Call::Take(n)
            | Call::Free(n)
            | Call::Write(n, ..) => {
                let Some(key) = key(n) else { continue };
                one_call(store, &mut map, key, call);
            }
        }
        let stats = store.stats();
        stats.check().unwrap();
        assert!(stats.resident <= stats.budget);
    }
    for (key, bytes) in map {
        assert_eq!(bytes, store.take(key).ok());
    }
}

fn one_call(store: &Store, map: &mut HashMap<Key, Option<Vec<u8>>>, key: Key, call: &Call) {
    let expected = map.get(&key).cloned();
    let agrees = |found: Result<Vec<u8>, SwapError>| match (&expected, found) {
        (None, Err(SwapError::Stale)) | (Some(None), Err(SwapError::Dead)) => {}
        (Some(Some(bytes)), Ok(found)) => assert!(*bytes == found, "other bytes"),
        (expected, found) => panic!("{found:?} instead of {expected:?}"),
    };
    match call {
        Call::Pin(_) => agrees(store.pin(key).map(|pin| pin.to_vec())),
        Call::WillNeed(_) => {
            let done = store.will_need(key);
            assert_eq!(done.is_ok(), matches!(expected, Some(Some(_))), "{done:?}");
        }
        Call::Cold(_) => assert_eq!(store.cold(key).is_ok(), expected.is_some()),
        Call::Dead(_) => {
            assert_eq!(store.dead(key).is_ok(), expected.is_some());
            map.entry(key).and_modify(|bytes| *bytes = None);
        }
        Call::Take(_) => {
            agrees(store.take(key));
            if expected.is_some_and(|bytes| bytes.is_some()) {
                map.remove(&key);
            }
        }
        Call::Free(_) => {
            assert_eq!(store.free(key).is_ok(), expected.is_some());
            map.remove(&key);
        }
        Call::Write(_, at, byte) => {
            let mut guard = store.pin_mut(key);
            if let (Ok(guard), Some(Some(bytes))) = (&mut guard, map.get_mut(&key)) {
                let at = at % bytes.len();
                (guard[at], bytes[at]) = (*byte, *byte);
            }
            let found = guard.map(|guard| guard.to_vec());
            if expected.as_ref().is_some_and(Option::is_some) {
                assert!(map[&key] == found.ok(), "other bytes");
            } else {
                agrees(found);
            }
        }
        Call::Insert(..) | Call::Budget(_) => unreachable!("no call on one object"),
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(if is_long() { 96 } else { 48 }))]
    #[test]
    fn a_store_is_as_a_map(program in prop::collection::vec(call(), 0..200)) {
        run(&small(20), &program);
        let options = Store::options().pool_limit(Bytes::new(128 << 10));
        let options = options.file_in(std::env::temp_dir(), Bytes::mib(64));
        run(&options.build(pages(20)).unwrap(), &program);
    }
}

/// Prints the cost of a pin, beside a page fault and LZ4: `GLEBE_COST=1 cargo test --release -p
/// glebe --test it -- --nocapture swap_store::cost`.
#[test]
fn cost() {
    if std::env::var_os("GLEBE_COST").is_none() {
        println!("skipped: a measurement, run by hand with GLEBE_COST=1, in release and alone");
        return;
    }
    cost::measure();
}
