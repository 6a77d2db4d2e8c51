//! A pool against a plain map, and what it refuses.

use std::collections::HashMap;

use proptest::prelude::*;

use super::*;
use crate::sys::page_size;
use crate::units::{Bytes, Pages};

fn page() -> usize {
    page_size().bytes().as_usize()
}

fn bytes_of(seed: u64, len: usize) -> Vec<u8> {
    (0..len as u64).map(|at| (seed.wrapping_mul(0x9e37_79b9) + at * 7 + (at >> 8)) as u8).collect()
}

impl Pool {
    fn check(&self) {
        let memory = &self.objects.memory;
        self.objects.classes.all().for_each(|class| class.lock().check(memory));
        let freeable = |class: &super::class::Class| {
            let state = class.lock();
            u64::from(state.freeable() * state.shape().pages)
        };
        let sum: u64 = self.objects.classes.all().map(freeable).sum();
        assert_eq!(sum, memory.freeable());
        assert!(self.held().get() <= memory.account.limit());
    }
}

#[derive(Clone, Debug)]
enum Op {
    Insert { group: Option<u32>, len: usize },
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
        6 => (prop::option::weighted(0.3, 0..6_u32), len())
            .prop_map(|(group, len)| Op::Insert { group, len }),
        4 => any::<usize>().prop_map(Op::Remove),
        2 => (any::<usize>(), len()).prop_map(|(nth, len)| Op::Replace { nth, len }),
        2 => any::<usize>().prop_map(Op::Read),
        1 => (1..40_u64).prop_map(Op::Compact),
        1 => any::<usize>().prop_map(Op::Hold),
        1 => Just(Op::LetGo),
    ]
}

fn run(pool: &Pool, ops: Vec<Op>) {
    let mut model: HashMap<Handle, Vec<u8>> = HashMap::new();
    let (mut order, mut gone) = (Vec::new(), Vec::new());
    let mut held: Vec<(Guard, Vec<u8>)> = Vec::new();
    let mut buf = vec![0; page()];
    for (seed, op) in ops.into_iter().enumerate() {
        let nth = |order: &Vec<Handle>, n: usize| (!order.is_empty()).then(|| n % order.len());
        match op {
            Op::Insert { group, len } => {
                let bytes = bytes_of(seed as u64, len);
                let handle = match group {
                    Some(group) => pool.insert_in(group, &bytes).unwrap(),
                    None => pool.insert(&bytes).unwrap(),
                };
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
        run(&Pool::options().compaction(compaction).build().unwrap(), ops);
    }
}

#[test]
fn what_no_pool_takes() {
    let pool = Pool::options().limit(Bytes::mib(8)).build().unwrap();
    let other = Pool::options().limit(Bytes::mib(8)).build().unwrap();
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
        // A forged handle is refused, or names what is there.
        let forged = Handle::from_raw(handle.to_raw() ^ 1 << word).unwrap();
        assert!(matches!(pool.get(forged), Err(Error::Stale | Error::Foreign)), "bit {word}");
    }
    assert!(matches!(pool.compact(Budget::Pages(Pages::ZERO)), Err(Error::NoBudget)));
    assert!(matches!(pool.compact(Budget::Time(Default::default())), Err(Error::NoBudget)));
    pool.remove(handle).unwrap();
    assert!(matches!(pool.get(handle), Err(Error::Stale)));
    let tiny = Pool::options().limit(Bytes::new(1)).build();
    assert!(matches!(tiny, Err(Error::LimitBelowHeld { .. })));
    assert!(matches!(pool.set_limit(Bytes::new(1)), Err(Error::LimitBelowHeld { .. })));
}
