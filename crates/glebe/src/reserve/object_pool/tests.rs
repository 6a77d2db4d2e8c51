//! Tests a pool against a plain map: a read returns the inserted bytes or finds them lost.

use std::collections::HashMap;

use glebe_testing::time::is_long;
use proptest::prelude::*;

use super::*;
use crate::reserve::options::with_writers;
use crate::reserve::{Block, Request, Writers};
use crate::zpool::Zstd;

fn page() -> usize {
    page_size().bytes().as_usize()
}

/// Returns `len`, which suits pages of 4 KiB, as the same part of a page here.
fn part(len: usize) -> usize {
    len * (page() >> 12)
}

fn bytes_of(seed: u64, len: usize) -> Vec<u8> {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let mut bytes = Vec::with_capacity(len);
    while bytes.len() < len {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963);
        bytes.extend_from_slice(&(state >> 32).to_le_bytes()[..4]);
        bytes.extend_from_slice(&[seed as u8; 8]);
    }
    bytes.truncate(len);
    bytes
}

/// Returns a reserve of `parts` times 512 pages.
fn reserve(parts: u64, writers: Writers) -> Reserve {
    let len = Pages::new(parts << 9).bytes(page_size());
    with_writers(Reserve::options(), writers).build(len).unwrap()
}

fn small(reserve: &Reserve) -> LentObjectPool {
    reserve.object_pool().staging(Bytes::new(1)).build().unwrap()
}

fn all_of(reserve: &Reserve) -> Block {
    reserve.alloc(Request::new(reserve.len()).any()).unwrap()
}

fn is_there(pool: &LentObjectPool, handle: Handle, bytes: &[u8]) -> bool {
    let mut buf = vec![0; page()];
    match pool.read(handle, &mut buf) {
        Ok(Some(len)) => {
            assert!(buf[..len] == *bytes, "other bytes");
            assert_eq!(pool.len_of(handle).unwrap(), Some(len));
            true
        }
        Ok(None) => {
            assert!(matches!(pool.read(handle, &mut buf), Err(Error::Stale)));
            false
        }
        Err(Error::Stale) => false,
        Err(other) => panic!("{other}"),
    }
}

fn check(reserve: &Reserve, pool: &LentObjectPool) {
    pool.stats().check().unwrap();
    reserve.stats().check().unwrap();
}

#[test]
fn objects_go_to_lent_pages_and_come_back() {
    for codec in [Codec::None, Codec::Lz4, Codec::Zstd(Zstd::default())] {
        let reserve = reserve(4, Writers::Restartable);
        let options = reserve.object_pool().staging(Bytes::new(1));
        let pool = options.codec(codec.clone()).build().unwrap();
        let len = |n: u64| 1 + part((n * 97) as usize) % page();
        let handles: Vec<Handle> =
            (0..1500).map(|n| pool.insert(&bytes_of(n, len(n))).unwrap()).collect();
        check(&reserve, &pool);
        let stats = pool.stats();
        assert!(stats.lent > Pages::new(100), "{codec:?}: {stats}");
        assert!(stats.staged <= stats.staging);
        // `stats.lent` counts whole zspages, but `live` only pages with a used slot.
        let live = reserve.stats().live;
        assert!(live <= stats.lent && live > Pages::new(100), "{live}");
        for (n, handle) in handles.iter().enumerate() {
            assert!(is_there(&pool, *handle, &bytes_of(n as u64, len(n as u64))));
        }
        assert_eq!(pool.stats().lost, 0);
        for handle in handles {
            pool.remove(handle).unwrap();
        }
        check(&reserve, &pool);
        assert_eq!(reserve.stats().live, Pages::ZERO);
        assert_eq!((pool.stats().lent, pool.stats().staged), (Pages::ZERO, Pages::ZERO));
    }
}

#[test]
fn what_first_class_takes_is_lost_and_nothing_else() {
    let reserve = reserve(4, Writers::Restartable);
    let pool = small(&reserve);
    let handles: Vec<Handle> =
        (0..1000).map(|n| pool.insert(&bytes_of(n, page())).unwrap()).collect();
    let staged = pool.stats().staged;
    drop(all_of(&reserve));
    let there = |n: &usize| is_there(&pool, handles[*n], &bytes_of(*n as u64, page()));
    let found = (0..handles.len()).filter(there).count();
    assert!(found > 0 && found < handles.len() / 2, "{found} are there");
    let stats = pool.stats();
    assert_eq!(stats.lost as usize, handles.len() - found);
    assert_eq!((stats.lent, stats.staged), (Pages::ZERO, staged));
    check(&reserve, &pool);
    let again: Vec<Handle> =
        (0..1000).map(|n| pool.insert(&bytes_of(n, page())).unwrap()).collect();
    assert!(!again.iter().any(|handle| handles.contains(handle)));
    let all = (0..again.len()).all(|n| is_there(&pool, again[n], &bytes_of(n as u64, page())));
    assert!(all);
}

#[test]
fn the_sweep_finds_what_nobody_reads() {
    let reserve = reserve(4, Writers::Restartable);
    let pool = small(&reserve);
    let handles: Vec<Handle> =
        (0..1000).map(|n| pool.insert(&bytes_of(n, page())).unwrap()).collect();
    drop(all_of(&reserve));
    let zspages = pool.stats().objects.zspages;
    assert!(pool.stats().lent > Pages::ZERO);
    pool.sweep(2 * zspages).unwrap();
    let stats = pool.stats();
    assert_eq!(stats.lent, Pages::ZERO);
    assert!(stats.lost > 0);
    assert_eq!(stats.lost + stats.objects.objects, handles.len() as u64);
    check(&reserve, &pool);
}

#[test]
fn without_pages_to_lend_the_staging_is_the_limit() {
    let reserve = reserve(2, Writers::Restartable);
    let pool = small(&reserve);
    let block = all_of(&reserve);
    let (mut handles, most) = (Vec::new(), part(3072));
    let error = loop {
        match pool.insert(&bytes_of(handles.len() as u64, most)) {
            Ok(handle) => handles.push(handle),
            Err(error) => break error,
        }
    };
    assert!(matches!(error, Error::Full { len, .. } if len == most), "{error}");
    let stats = pool.stats();
    assert!(stats.staged <= stats.staging + Pages::new(4) && stats.refused == 1, "{stats}");
    drop(block);
    handles.push(pool.insert(&bytes_of(handles.len() as u64, most)).unwrap());
    for (n, handle) in handles.iter().enumerate() {
        assert!(is_there(&pool, *handle, &bytes_of(n as u64, most)));
    }
    check(&reserve, &pool);
}

#[test]
fn what_is_to_be_moved_is_not_lost_while_there_is_room() {
    let reserve = reserve(8, Writers::Restartable);
    let options = reserve.object_pool().staging(Bytes::new(1));
    let pool = options.on_recall(OnRecall::Move).build().unwrap();
    let cache = reserve.page_cache().namespace("others").unwrap();
    for n in 0..reserve.len().get() {
        cache.put(1, n, &bytes_of(n, page())).unwrap();
    }
    let handles: Vec<Handle> =
        (0..2500).map(|n| pool.insert(&bytes_of(n, page())).unwrap()).collect();
    let lent = pool.stats().lent;
    assert!(lent > Pages::new(500), "{lent}");
    let half = Pages::new(reserve.len().get() / 2);
    let take = |pages| reserve.alloc(Request::new(pages).any()).unwrap();
    let check_while = |block: Block| {
        for (n, handle) in handles.iter().enumerate() {
            assert!(is_there(&pool, *handle, &bytes_of(n as u64, page())), "{n}");
        }
        check(&reserve, &pool);
        drop(block);
    };
    check_while(take(half));
    let two = Pages::new(2);
    let (below, end) = (take(half - two), take(two));
    drop(below);
    let upper = take(half);
    assert_eq!(upper.extent().start(), half.get());
    drop(end);
    check_while(upper);
    let one = Pages::new(1);
    let blocks: Vec<Block> = (0..600).map(|_| reserve.alloc(one).unwrap()).collect();
    for (n, handle) in handles.iter().enumerate() {
        assert!(is_there(&pool, *handle, &bytes_of(n as u64, page())), "{n}");
    }
    let stats = pool.stats();
    assert!(stats.moved > Pages::ZERO && stats.lost == 0, "{stats}");
    drop(blocks);
    drop(all_of(&reserve));
    let left =
        (0..handles.len()).filter(|n| is_there(&pool, handles[*n], &bytes_of(*n as u64, page())));
    assert!(left.count() < 600);
    check(&reserve, &pool);
}

#[test]
fn a_sealed_zspage_lies_in_one_granule() {
    for on_recall in [OnRecall::Discard, OnRecall::Move] {
        let reserve = reserve(8, Writers::Restartable);
        let options = reserve.object_pool().staging(Bytes::new(1)).codec(Codec::None);
        let pool = options.on_recall(on_recall).build().unwrap();
        let cache = reserve.page_cache().namespace("others").unwrap();
        let check_all = |least: usize| {
            let lender = reserve.inner.get().unwrap().lender();
            let granules = pool.owned.packed.granules(lender);
            let several = granules.iter().filter(|of| of.len() > 1).count();
            assert!(several >= least, "{several} zspages of several pages");
            assert!(granules.iter().all(|of| of.iter().all(|n| *n == of[0])), "{granules:?}");
        };
        for n in 0..5000 {
            pool.insert(&bytes_of(n, part(1300 + n as usize % 1000))).unwrap();
            if n % 7 == 0 {
                cache.put(1, n, &bytes_of(n, page())).unwrap();
            }
        }
        check_all(300);
        let half = Pages::new(reserve.len().get() / 2);
        drop(reserve.alloc(Request::new(half).any()).unwrap());
        check_all(if on_recall == OnRecall::Move { 300 } else { 50 });
        check(&reserve, &pool);
    }
}

#[test]
fn damaged_bytes_in_lent_pages_are_an_error_and_nothing_else() {
    use std::os::unix::fs::FileExt;
    for codec in [Codec::Lz4, Codec::Zstd(Zstd::default())] {
        let reserve = reserve(4, Writers::Restartable);
        let options = reserve.object_pool().staging(Bytes::new(1)).codec(codec);
        let pool = options.build().unwrap();
        let object = |n: usize| bytes_of(n as u64, part(1000 + n % 2000));
        let handles: Vec<Handle> = (0..1500).map(|n| pool.insert(&object(n)).unwrap()).collect();
        let mapping = reserve.contig().mapping();
        let memory = std::fs::File::options().read(true).write(true).open("/proc/self/mem");
        let (memory, at) = (memory.unwrap(), mapping.as_ptr() as u64);
        let mut bytes = vec![0; mapping.len().as_usize()];
        memory.read_exact_at(&mut bytes, at).unwrap();
        bytes.iter_mut().step_by(97).for_each(|byte| *byte ^= 0x55);
        memory.write_all_at(&bytes, at).unwrap();
        let (mut refused, mut buf) = (0, vec![0; page()]);
        for (n, handle) in handles.iter().enumerate() {
            match pool.read(*handle, &mut buf) {
                Ok(Some(len)) => assert_eq!(len, object(n).len(), "{n}"),
                Err(Error::Codec(_)) => refused += 1,
                other => panic!("{n}: {other:?}"),
            }
            pool.remove(*handle).unwrap();
        }
        assert!(refused > 300, "{refused} refused");
        check(&reserve, &pool);
        assert_eq!(reserve.stats().live, Pages::ZERO);
    }
}

#[test]
fn compaction_brings_together_what_is_left_in_lent_pages() {
    let reserve = reserve(4, Writers::Restartable);
    let pool = small(&reserve);
    let object = |n: usize| bytes_of(n as u64, part(2000 + n % 3));
    let handles: Vec<Handle> = (0..3000).map(|n| pool.insert(&object(n)).unwrap()).collect();
    for (n, handle) in handles.iter().enumerate().filter(|(n, _)| n % 4 != 0) {
        pool.remove(*handle).unwrap_or_else(|error| panic!("{n}: {error}"));
    }
    let before = reserve.stats().live;
    let done = pool.compact(Budget::All).unwrap();
    let after = reserve.stats().live;
    assert!(done.moved > 0 && after.get() * 2 < before.get(), "{before} to {after}, {done:?}");
    for (n, handle) in handles.iter().enumerate() {
        assert_eq!(is_there(&pool, *handle, &object(n)), n % 4 == 0, "{n}");
    }
    assert_eq!(pool.stats().lost, 0);
    check(&reserve, &pool);
}

#[test]
fn a_pool_that_ends_gives_its_pages_back() {
    let reserve = reserve(2, Writers::Restartable);
    let pool = small(&reserve);
    for n in 0..500 {
        pool.insert(&bytes_of(n, page())).unwrap();
    }
    let other = pool.clone();
    drop(pool);
    assert!(reserve.stats().live > Pages::ZERO && other.stats().lent > Pages::ZERO);
    drop(other);
    assert_eq!(reserve.stats().live, Pages::ZERO);
    reserve.stats().check().unwrap();
}

#[derive(Clone, Debug)]
enum Op {
    Insert { many: usize, len: usize },
    Remove(usize),
    RemoveEvery { of: usize, nth: usize },
    Replace(usize, usize),
    Read(usize),
    Compact,
    Alloc(u64),
    Free(usize),
    Put(usize),
    Sweep(u64),
}

fn len() -> impl Strategy<Value = usize> {
    prop_oneof![1..200_usize, 1..=page(), Just(page()), 900..1100_usize]
}

fn op() -> impl Strategy<Value = Op> {
    prop_oneof![
        6 => (1..60_usize, len()).prop_map(|(many, len)| Op::Insert { many, len }),
        2 => any::<usize>().prop_map(Op::Remove),
        1 => (2..9_usize, 0..9_usize).prop_map(|(of, nth)| Op::RemoveEvery { of, nth }),
        2 => (any::<usize>(), len()).prop_map(|(nth, len)| Op::Replace(nth, len)),
        4 => any::<usize>().prop_map(Op::Read),
        1 => Just(Op::Compact),
        2 => prop_oneof![Just(1), 1..512_u64, 500..1024_u64].prop_map(Op::Alloc),
        2 => any::<usize>().prop_map(Op::Free),
        1 => (1..400_usize).prop_map(Op::Put),
        1 => (1..50_u64).prop_map(Op::Sweep),
    ]
}

fn run(reserve: &Reserve, pool: &LentObjectPool, ops: Vec<Op>) {
    let mut model: Vec<(Handle, Vec<u8>)> = Vec::new();
    let (mut blocks, mut gone) = (Vec::new(), Vec::new());
    let cache = reserve.page_cache().namespace("others").unwrap();
    let mut buf = vec![0; page()];
    for (seed, op) in ops.into_iter().enumerate() {
        let nth = |n: usize, len: usize| (len > 0).then(|| n % len);
        let seed = seed as u64;
        match op {
            Op::Insert { many, len } => {
                for n in 0..many as u64 {
                    let bytes = bytes_of(seed << 8 | n, len);
                    match pool.insert(&bytes) {
                        Ok(handle) => model.push((handle, bytes)),
                        Err(Error::Full { .. }) => assert!(!blocks.is_empty()),
                        Err(other) => panic!("{other}"),
                    }
                }
            }
            Op::Remove(n) => {
                let Some(at) = nth(n, model.len()) else { continue };
                let (handle, _) = model.swap_remove(at);
                let removed = pool.remove(handle);
                assert!(matches!(removed, Ok(()) | Err(Error::Stale)), "{removed:?}");
                gone.push(handle);
            }
            Op::RemoveEvery { of, nth } => {
                let mut at = 0;
                model.retain(|(handle, _)| {
                    at += 1;
                    let goes = at % of == nth % of;
                    if goes {
                        let _ = pool.remove(*handle);
                        gone.push(*handle);
                    }
                    !goes
                });
            }
            Op::Replace(n, len) => {
                let Some(at) = nth(n, model.len()) else { continue };
                let (handle, bytes) = &mut model[at];
                let new = bytes_of(seed, len);
                match pool.replace(*handle, &new) {
                    Ok(()) => *bytes = new,
                    Err(Error::Full { .. }) => assert!(!blocks.is_empty()),
                    Err(Error::Stale) => {}
                    Err(other) => panic!("{other}"),
                }
            }
            Op::Read(n) => {
                let Some(at) = nth(n, model.len()) else { continue };
                is_there(pool, model[at].0, &model[at].1);
            }
            Op::Compact => drop(pool.compact(Budget::All).unwrap()),
            Op::Alloc(pages) => {
                if let Ok(mut block) = reserve.alloc(Request::new(Pages::new(pages)).any()) {
                    block.bytes_mut().unwrap().fill(0xaa);
                    blocks.push(block);
                }
            }
            Op::Free(n) => {
                if let Some(at) = nth(n, blocks.len()) {
                    drop(blocks.swap_remove(at));
                }
            }
            Op::Put(many) => {
                for n in 0..many as u64 {
                    let _ = cache.put(seed, n, &buf).unwrap();
                }
            }
            Op::Sweep(zspages) => pool.sweep(zspages).unwrap(),
        }
        check(reserve, pool);
    }
    for block in &blocks {
        assert!(block.bytes().unwrap().iter().all(|byte| *byte == 0xaa), "a block was written");
    }
    for (handle, bytes) in &model {
        is_there(pool, *handle, bytes);
    }
    for handle in gone {
        assert!(matches!(pool.read(handle, &mut buf), Err(Error::Stale)));
    }
    check(reserve, pool);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(if is_long() { 40 } else { 20 }))]

    #[test]
    fn what_is_read_was_put(
        ops in prop::collection::vec(op(), 1..120), counted in any::<bool>(), lz4 in any::<bool>(),
        moves in any::<bool>(),
    ) {
        let writers = if counted { Writers::Counted } else { Writers::Restartable };
        let reserve = reserve(2, writers);
        let codec = if lz4 { Codec::Lz4 } else { Codec::None };
        let on_recall = if moves { OnRecall::Move } else { OnRecall::Discard };
        let options = reserve.object_pool().staging(Bytes::new(1)).codec(codec);
        let pool = options.on_recall(on_recall).build().unwrap();
        run(&reserve, &pool, ops);
        drop(pool);
    }
}

#[test]
fn handles_of_others_are_errors() {
    let reserve = reserve(2, Writers::Restartable);
    let (one, other) = (small(&reserve), small(&reserve));
    let handle = one.insert(b"one").unwrap();
    let mut buf = [0; 8];
    assert!(matches!(other.read(handle, &mut buf), Err(Error::Foreign)));
    assert!(matches!(one.read(handle, &mut buf[..2]), Err(Error::BufferTooSmall { .. })));
    assert!(matches!(one.insert(b""), Err(Error::Empty)));
    assert!(matches!(one.insert(&vec![1; page() + 1]), Err(Error::TooLong { .. })));
    assert!(matches!(one.compact(Budget::Pages(Pages::ZERO)), Err(Error::NoBudget)));
    let handles: HashMap<Handle, usize> =
        (0..9).map(|n| (one.insert(&[1; 9]).unwrap(), n)).collect();
    assert_eq!(handles.len(), 9);
}
