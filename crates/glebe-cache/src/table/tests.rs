//! Tests a place against a model, other threads, and any bytes.

use super::*;
use std::collections::HashMap;

use glebe_os::internal::mapping::{Mapping, Visibility};
use glebe_os::page_size;
use glebe_os::units::Bytes;
use proptest::prelude::*;

const LEN: usize = 64 << 10;

fn memory(len: usize) -> Mapping {
    Mapping::aligned(Bytes::new(len as u64), page_size(), Visibility::ORDINARY).unwrap()
}

fn table(memory: &Mapping) -> Table<'_> {
    Table::new(memory.part(Bytes::ZERO, memory.len()))
}

fn get(table: &Table<'_>, key: &[u8]) -> Option<Vec<u8>> {
    let entry = table.find(hash(7, key), key)?;
    let mut value = vec![0; entry.value_len()];
    table.copy(&entry, &mut value).then_some(value)
}

fn put(table: &Table<'_>, key: &[u8], value: &[u8]) -> bool {
    table.put(hash(7, key), key, value, false)
}

#[derive(Clone, Debug)]
enum Step {
    Put(u8, usize),
    Get(u8),
    Remove(u8),
    Zero(usize, usize),
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        4 => (any::<u8>(), 0..LEN / 2).prop_map(|(key, len)| Step::Put(key, len)),
        4 => (any::<u8>(), 0..200_usize).prop_map(|(key, len)| Step::Put(key, len)),
        4 => any::<u8>().prop_map(Step::Get),
        1 => any::<u8>().prop_map(Step::Remove),
        1 => (0..LEN, 0..LEN).prop_map(|(at, len)| Step::Zero(at, len)),
    ]
}

proptest! {
    #[test]
    fn a_value_found_is_the_last_one_stored(steps in prop::collection::vec(step(), 1..200)) {
        let memory = memory(LEN);
        let (table, mut model) = (table(&memory), HashMap::new());
        for (nth, step) in steps.into_iter().enumerate() {
            match step {
                Step::Put(key, len) => {
                    let value: Vec<u8> = (0..len).map(|at| (at * 7 + nth) as u8).collect();
                    let key_of = [key; 20];
                    if put(&table, &key_of, &value) {
                        prop_assert_eq!(get(&table, &key_of), Some(value.clone()));
                        model.insert(key, value);
                    }
                }
                Step::Get(key) => {
                    if let Some(value) = get(&table, &[key; 20]) {
                        prop_assert_eq!(Some(&value), model.get(&key));
                    }
                }
                Step::Remove(key) => {
                    table.remove(hash(7, &[key; 20]));
                    prop_assert_eq!(get(&table, &[key; 20]), None);
                    model.remove(&key);
                }
                Step::Zero(at, len) => {
                    let zeros = vec![0; len.min(LEN - at)];
                    memory.part(Bytes::ZERO, memory.len()).write(at, &zeros);
                }
            }
        }
    }
}

#[test]
fn new_values_overwrite_the_oldest_and_those_read_stay() {
    let memory = memory(1 << 20);
    let table = table(&memory);
    let value = [7; 4000];
    for nth in 0..5000_u32 {
        assert!(put(&table, &nth.to_le_bytes(), &value));
        if nth % 10 == 0 {
            let key = 0_u32.to_le_bytes();
            let entry = table.find(hash(7, &key), &key).expect("the key that is read often");
            if table.is_old(&entry) {
                table.renew(&entry, &key, &value);
            }
        }
    }
    let found = (0..5000_u32).filter(|nth| get(&table, &nth.to_le_bytes()).is_some()).count();
    assert!((200..=250).contains(&found), "{found} of 5000 values of 4000 bytes in 1 MiB");
    assert!(get(&table, &4999_u32.to_le_bytes()).is_some());
}

#[test]
fn the_longest_value_fits_and_wraps() {
    let memory = memory(LEN);
    let table = table(&memory);
    assert!(put(&table, b"short", b"before"));
    let value: Vec<u8> = (0..LEN - ring_at(LEN) - HEADER - 4).map(|at| at as u8).collect();
    for _ in 0..3 {
        assert!(put(&table, b"long", &value));
        assert_eq!(get(&table, b"long"), Some(value.clone()));
    }
    assert_eq!(get(&table, b"short"), None);
}

#[test]
fn a_renewal_brings_no_older_value_back() {
    let memory = memory(LEN);
    let table = table(&memory);
    let of = hash(7, b"key");
    assert!(put(&table, b"key", b"old"));
    let entry = table.find(of, b"key").unwrap();
    assert!(put(&table, b"key", b"new"));
    table.renew(&entry, b"key", b"old");
    assert_eq!(get(&table, b"key").as_deref(), Some(&b"new"[..]));
    let entry = table.find(of, b"key").unwrap();
    table.remove(of);
    table.renew(&entry, b"key", b"new");
    assert_eq!(get(&table, b"key"), None);
}

#[test]
fn any_bytes_do_no_harm() {
    let memory = memory(LEN);
    let table = table(&memory);
    let part = memory.part(Bytes::ZERO, memory.len());
    for round in 0..200_u64 {
        for at in (0..LEN).step_by(WORD) {
            part.write(at, &hash(round, &at.to_le_bytes()).to_le_bytes());
        }
        // A position may tell of an entry that is not there, and a value may be found by accident
        // once in 2^64 times.
        (0..32_u32).for_each(|key| assert_eq!(get(&table, &key.to_le_bytes()), None));
        let _ = put(&table, b"key", b"value");
        table.remove(hash(7, b"key"));
    }
}

#[test]
fn threads_find_whole_values_while_others_write_and_zero() {
    let memory = memory(LEN);
    let filled = |key: u32, nth: u32| -> Vec<u8> {
        let len = 100 + (nth % 50) as usize * 40;
        [key, nth].iter().flat_map(|word| word.to_le_bytes()).cycle().take(len).collect()
    };
    std::thread::scope(|scope| {
        for writer in 0..2_u32 {
            let (memory, filled) = (&memory, &filled);
            scope.spawn(move || {
                for nth in 0..20_000 {
                    let key = hash(1, &[writer as u8, nth as u8]) as u32 % 40;
                    put(&table(memory), &key.to_le_bytes(), &filled(key, nth));
                    if nth % 1000 == 0 {
                        memory.part(Bytes::ZERO, memory.len()).write(8, &[0; LEN - 8]);
                    }
                }
            });
        }
        let (memory, filled) = (&memory, &filled);
        let hits: u32 = (0..100_000_u32)
            .map(|round| {
                let key = round % 40;
                let Some(value) = get(&table(memory), &key.to_le_bytes()) else { return 0 };
                let nth = u32::from_le_bytes(*value[4..].first_chunk().unwrap());
                assert_eq!(value, filled(key, nth), "key {key}");
                1
            })
            .sum();
        assert!(hits > 0);
    });
}

#[test]
fn a_hostile_head_or_slot_panics_nowhere() {
    let memory = memory(LEN);
    let table = table(&memory);
    let part = memory.part(Bytes::ZERO, memory.len());
    let of = hash(7, b"key");
    for head in [u64::MAX, u64::MAX - 63, 1 << 54, (1 << 54) - 1, 3] {
        part.word(HEAD).store(head, Ordering::SeqCst);
        assert!(put(&table, b"key", &[7; 1000]));
        let _ = get(&table, b"key");
        // The slot of line 0, and a header that has its position.
        for slot in table.slots(of) {
            part.word(slot).store(tag(of) << LINE_BITS, Ordering::SeqCst);
        }
        let position = position_of(tag(of) << LINE_BITS);
        let mut header = [0; HEADER];
        for (to, field) in header.chunks_exact_mut(WORD).zip([of, position, 3 | 9 << 32, 0]) {
            to.copy_from_slice(&field.to_le_bytes());
        }
        part.word(HEAD).store(position, Ordering::SeqCst);
        table.copy_in(position, &header);
        table.copy_in(position + HEADER as u64, b"key");
        assert_eq!(table.find(of, b"key").unwrap().value_len(), 9);
        assert_eq!(get(&table, b"key"), None);
    }
    assert!(!put(&table, b"key", &[0; LEN]), "longer than the ring");
    assert!(table.slots(of).all(|slot| part.word(slot).load(Ordering::SeqCst) == 0));
}

#[test]
fn a_renewal_elsewhere_does_not_survive_a_put() {
    let memory = memory(LEN);
    let table = table(&memory);
    let of = hash(7, b"key");
    let newer = table.write(of, b"key", b"newer", false);
    let renewed = table.write(of, b"key", b"older", false);
    let slots: Vec<usize> = table.slots(of).collect();
    assert!(table.exchange(slots[0], 0, newer) && table.exchange(slots[1], 0, renewed));
    table.clear(of, Some(slots[0]));
    assert_eq!(get(&table, b"key").as_deref(), Some(&b"newer"[..]));
}

#[test]
fn no_value_is_left_after_a_removal_while_others_renew() {
    let memory = memory(LEN);
    let of = hash(7, b"key");
    let is_done = MappedWord::new(0);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while is_done.load(Ordering::Relaxed) == 0 {
                let table = table(&memory);
                if let Some(entry) = table.find(of, b"key") {
                    table.renew(&entry, b"key", b"value");
                }
            }
        });
        let table = table(&memory);
        let left = (0..200_000).filter(|_| {
            put(&table, b"key", b"value");
            table.remove(of);
            get(&table, b"key").is_some()
        });
        let left = left.count();
        is_done.store(1, Ordering::Relaxed);
        assert_eq!(left, 0);
    });
}

#[test]
fn rings_begin_anywhere() {
    let starts = [(); 2].map(|()| {
        let memory = memory(LEN);
        assert!(put(&table(&memory), b"key", b"value"));
        let head = memory.part(Bytes::ZERO, memory.len()).word(HEAD).load(Ordering::SeqCst);
        head
    });
    assert_ne!(starts[0], starts[1]);
}
