//! Tests that reach internals.
#![allow(unsafe_code)] // Safety: the forked child allocates nothing.

use std::sync::Arc;

use super::cache::SwapCache;
use super::copies::Copy;
use super::kept::Kept;
use super::word::{look, WordState};
use super::*;
use crate::zpool::{Handle, ObjectPool};
use glebe_os::internal::sys::memory::mincore::there;
use glebe_os::internal::sys::page_size;
use glebe_os::units::{Bytes, Pages};
use glebe_testing::child::in_child;

fn page() -> usize {
    page_size().bytes().as_usize()
}

fn len_of(pages: u64) -> Bytes {
    Pages::new(pages).bytes(page_size())
}

fn store(budget: u64) -> Store {
    let options = Store::options().capacity(len_of(4096)).pool_limit(len_of(256));
    options.build(len_of(budget)).unwrap()
}

fn noise(at: u64) -> u64 {
    let word = |at: u64| at.wrapping_mul(0x9e37_79b9_7f4a_7c15).rotate_left(23);
    word(word(at))
}

fn bytes_of(n: u64, len: usize) -> Vec<u8> {
    (0..len as u64).map(|at| if at % 16 < 8 { n as u8 } else { noise(at << 8 | n) as u8 }).collect()
}

fn fill(store: &Store, count: u64) -> Vec<Key> {
    (0..count).map(|n| store.insert(&bytes_of(n, page())).unwrap()).collect()
}

fn copy_of(store: &Store, key: Key) -> Option<Copy> {
    let slot = store.places.slot(key.index).unwrap();
    look(slot.word()).has_copy().then(|| slot.copy())
}

fn handle_of(store: &Store, key: Key) -> Handle {
    let [handle, _] = copy_of(store, key).expect("a copy").to_raw();
    Handle::from_raw(handle).expect("a block")
}

fn pages_there(store: &Store, pages: u64) -> u64 {
    let all = super::slots::Place { first: 0, len: page() * pages as usize };
    let start = store.memory.bytes(all).addr().get();
    let there = there(start, Pages::new(pages).bytes(page_size())).unwrap();
    there.iter().map(|run| run.len()).sum()
}

#[test]
fn what_left_has_no_page_and_what_ended_neither() {
    let store = store(8);
    let keys = fill(&store, 32);
    assert_eq!((pages_there(&store, 64), store.stats().charged), (8, Pages::new(8)));
    let guards: Vec<_> = keys[..5].iter().map(|key| store.pin(*key).unwrap()).collect();
    store.set_budget(len_of(5)).unwrap();
    assert_eq!(pages_there(&store, 64), 5);
    drop(guards);
    keys[..3].iter().for_each(|key| store.dead(*key).unwrap());
    assert_eq!(pages_there(&store, 64), 2);
    keys.iter().for_each(|key| store.free(*key).unwrap());
    assert_eq!((pages_there(&store, 64), store.stats().charged), (0, Pages::ZERO));
    assert_eq!(store.copies.pool.stats().objects, 0, "copies of what ended");
}

#[test]
fn no_piece_of_a_long_object_is_left_behind() {
    let store = store(60);
    let long = bytes_of(3, 30 * page() + 17);
    let keys: Vec<_> = (0..4).map(|_| store.insert(&long).unwrap()).collect();
    for key in &keys {
        assert!(*store.pin(*key).unwrap() == *long);
    }
    store.pin_mut(keys[0]).unwrap()[0] ^= 1;
    keys.into_iter().for_each(|key| drop(store.take(key).unwrap()));
    let stats = store.copies.pool.stats();
    assert!(stats.inserted > 0 && stats.objects == 0, "{stats}");
    store.set_pool_limit(store.copies.pool.held() + len_of(16)).unwrap();
    let noise = |n: u64| {
        let words = (0..31 * page() as u64 / 8).map(|at| noise(at << 8 | n));
        words.flat_map(u64::to_le_bytes).collect::<Vec<u8>>()
    };
    let key = store.insert(&noise(1)).unwrap();
    assert!(matches!(store.insert(&noise(2)), Err(SwapError::Full { .. })));
    assert_eq!(store.copies.pool.stats().objects, 0);
    assert!(*store.pin(key).unwrap() == *noise(1));
}

fn spoil(len: usize, spoil: impl Fn(&Store, Key, Key)) {
    let store = store(64);
    let keys: Vec<_> = (0..3).map(|n| store.insert(&bytes_of(n, len)).unwrap()).collect();
    let guards: Vec<_> = (0..64).map_while(|_| store.create(page()).ok()).collect();
    drop(guards);
    let stored: Vec<_> = keys.iter().filter(|key| copy_of(&store, **key).is_some()).collect();
    let [one, other, ..] = stored[..] else { panic!("nothing is stored") };
    spoil(&store, *one, *other);
    for _ in 0..2 {
        let refused = store.pin(*one).map(drop).unwrap_err();
        assert!(matches!(refused, SwapError::Damaged { key, .. } if key == *one), "{refused}");
        assert!(matches!(store.pin_mut(*one).map(drop), Err(SwapError::Damaged { .. })));
        assert!(matches!(store.take(*one), Err(SwapError::Damaged { .. })));
    }
    store.stats().check().unwrap();
    assert_eq!(store.stats().damaged, 1);
    assert!(*store.pin(keys[2]).unwrap() == *bytes_of(2, len));
    store.free(*one).unwrap();
    assert!(matches!(store.pin(*one), Err(SwapError::Stale)));
    store.stats().check().unwrap();
}

/// Returns the length of an object of several pieces.
fn long() -> usize {
    24 * page() + 1696
}

fn in_file(len: usize) -> (Store, Vec<Key>) {
    let options = Store::options().pool_limit(len_of(64)).capacity(len_of(16384));
    let options = options.file_in(std::env::temp_dir(), len_of(8192));
    let store = options.build(len_of(256)).unwrap();
    let count = (len_of(1024).as_usize() / len) as u64;
    let keys = (0..count).map(|n| store.insert(&bytes_of(n, len)).unwrap()).collect();
    (store, keys)
}

fn is_in_file(store: &Store, key: Key) -> bool {
    copy_of(store, key).is_some_and(Copy::is_in_file)
}

#[test]
fn a_file_that_was_cut_or_overwritten_is_an_error_of_its_objects() {
    for (len, zeros) in [(page(), false), (page(), true), (long(), false), (long(), true)] {
        let (store, keys) = in_file(len);
        let file = store.copies.file.as_ref().unwrap();
        let lost: Vec<_> = keys.iter().filter(|key| is_in_file(&store, **key)).copied().collect();
        assert!(lost.len() > keys.len() / 4, "{} of {}", lost.len(), keys.len());
        if zeros {
            file.overwrite();
        } else {
            file.cut(Bytes::ZERO);
        }
        for (n, key) in keys.iter().enumerate().rev() {
            match store.take(*key) {
                Ok(bytes) => assert!(bytes == bytes_of(n as u64, len) && !lost.contains(key)),
                Err(SwapError::Damaged { key: which, .. }) => assert!(which == *key),
                Err(error) => panic!("object {n}: {error}"),
            }
        }
        assert_eq!(store.stats().damaged, lost.len() as u64);
        lost.iter().for_each(|key| store.free(*key).unwrap());
        assert_eq!(store.stats().file, Pages::ZERO);
    }
}

fn cached() -> (Store, Key, Vec<Handle>, Arc<ObjectPool>) {
    let cache = SwapCache::with_limit(len_of(8192)).unwrap();
    let Kept::Own(pool) = &cache.kept else { panic!("not on a reserve") };
    let options = Store::options().pool_limit(len_of(64)).cached_in(&cache);
    let options = options.file_in(std::env::temp_dir(), len_of(8192));
    let store = options.build(len_of(256)).unwrap();
    let key = store.insert(&bytes_of(7, long())).unwrap();
    for n in 0..40 {
        store.insert(&bytes_of(n, long())).unwrap();
    }
    let copy = copy_of(&store, key).expect("it left");
    let (Copy::Block(block), [start, _]) = (copy, copy.to_raw()) else { panic!("{copy:?}") };
    let file = store.copies.file.as_ref().unwrap();
    let handles = file.idle.as_ref().unwrap().handles_of(start, block.len);
    assert!(is_in_file(&store, key) && handles.len() > 5, "{handles:?}");
    (store, key, handles, pool.clone())
}

#[test]
fn a_copy_in_idle_memory_that_lost_a_piece_or_is_not_what_was_stored_is_read_from_the_file() {
    for is_lost in [true, false] {
        let (store, key, handles, pool) = cached();
        let objects = pool.stats().objects;
        if is_lost {
            pool.remove(handles[2]).unwrap();
        } else {
            let mut bytes = pool.get(handles[2]).unwrap().to_vec();
            bytes[100] ^= 1;
            pool.replace(handles[2], &bytes).unwrap();
        }
        assert!(*store.pin(key).unwrap() == *bytes_of(7, long()));
        let stats = store.stats();
        assert_eq!((stats.read_back, stats.loaded_idle, stats.damaged), (1, 0, 0));
        assert!(handles.iter().all(|handle| pool.get(*handle).is_err()), "a piece was left");
        assert!(pool.stats().objects >= objects);
        while copy_of(&store, key).is_none()
            || look(store.places.slot(key.index).unwrap().word()).state() != WordState::Stored
        {
            store.insert(&bytes_of(9, page())).unwrap();
        }
        assert!(*store.pin(key).unwrap() == *bytes_of(7, long()));
        assert_eq!((store.stats().read_back, store.stats().loaded_idle), (1, 1));
        drop(store);
        assert_eq!(pool.stats().objects, 0, "of a store that ended");
    }
}

fn change_piece(store: &Store, handle: Handle, change: impl FnOnce(&mut Vec<u8>)) {
    let mut bytes = store.copies.pool.get(handle).unwrap().to_vec();
    change(&mut bytes);
    store.copies.pool.replace(handle, &bytes).unwrap();
}

#[test]
fn a_flipped_bit_is_an_error_and_never_data() {
    for bit in [0, 7, 1000, 9999] {
        spoil(page(), |store, key, _| {
            change_piece(store, handle_of(store, key), |bytes| {
                let at = bit / 8 % bytes.len();
                bytes[at] ^= 1 << (bit % 8);
            });
        });
    }
}

#[test]
fn a_copy_of_another_object_is_an_error() {
    spoil(page(), |store, one, other| {
        let slot = |key: Key| store.places.slot(key.index).unwrap();
        slot(one).set_copy(slot(other).copy());
    });
    spoil(20 * page(), |store, one, other| {
        let other = store.copies.pool.get(handle_of(store, other)).unwrap().to_vec();
        change_piece(store, handle_of(store, one), |list| *list = other);
    });
}

#[test]
fn a_piece_that_is_gone_or_cut_is_an_error() {
    spoil(page(), |store, key, _| store.copies.pool.remove(handle_of(store, key)).unwrap());
    spoil(page(), |store, key, _| {
        change_piece(store, handle_of(store, key), |one| one.truncate(9))
    });
    let first_piece = |store: &Store, key: Key| {
        let list = store.copies.pool.get(handle_of(store, key)).unwrap();
        Handle::from_raw(u64::from_le_bytes(*list.first_chunk().unwrap())).unwrap()
    };
    let long = 20 * page();
    spoil(long, |store, key, _| store.copies.pool.remove(first_piece(store, key)).unwrap());
    spoil(long, |store, key, _| {
        change_piece(store, first_piece(store, key), |piece| piece.truncate(9));
    });
    spoil(long, |store, key, _| {
        change_piece(store, handle_of(store, key), |list| list.truncate(list.len() - 8));
    });
}

#[test]
fn a_damaged_copy_is_not_taken() {
    let store = store(4);
    let keys = fill(&store, 12);
    change_piece(&store, handle_of(&store, keys[0]), |bytes| bytes[5] ^= 1);
    assert!(matches!(store.take(keys[0]), Err(SwapError::Damaged { key, .. }) if key == keys[0]));
    assert!(matches!(store.pin(keys[0]), Err(SwapError::Damaged { .. })));
    assert!(store.take(keys[1]).unwrap() == bytes_of(1, page()));
}

#[test]
fn a_slot_whose_keys_are_used_up_is_used_no_more() {
    let store = store(8);
    let keys = fill(&store, 2);
    store.free(keys[0]).unwrap();
    let slot = store.places.slot(keys[0].index).unwrap();
    super::word::change(slot.word(), |_| Ok(super::word::Word::hole(u32::MAX))).unwrap();
    let last = store.insert(b"last").unwrap();
    assert_eq!((last.index, last.generation), (keys[0].index, u32::MAX));
    store.free(last).unwrap();
    let next = store.insert(b"next").unwrap();
    assert_ne!(next.index, last.index);
    assert!(matches!(store.pin(last), Err(SwapError::Stale)));
    assert!(matches!(store.pin(Key { generation: 0, ..last }), Err(SwapError::Stale)));
    let beyond = Key { index: u32::MAX, ..next };
    assert!(matches!(store.pin(beyond), Err(SwapError::Foreign)));
    assert_eq!(*store.pin(next).unwrap(), *b"next");
}

#[test]
fn more_pins_than_a_word_counts_are_refused() {
    let store = store(4);
    let key = store.insert(b"object").unwrap();
    for _ in 0..super::word::PINS_MAX {
        std::mem::forget(store.pin(key).unwrap());
    }
    assert!(matches!(store.pin(key), Err(SwapError::TooManyPins { max: super::word::PINS_MAX })));
    assert!(matches!(store.pin_mut(key), Err(SwapError::Pinned)));
    assert!(matches!(store.free(key), Err(SwapError::Pinned)));
}

#[test]
fn a_child_has_its_guards_and_no_store() {
    let store = store(8);
    let keys = fill(&store, 16);
    let guard = store.pin(keys[0]).unwrap();
    let mut alone = store.pin_mut(keys[1]).unwrap();
    let expected = bytes_of(0, page());
    let is_refused = |result: Result<(), SwapError>| matches!(result, Err(SwapError::Forked));
    // SAFETY: refused calls and guards allocate nothing and take no lock.
    let fine = unsafe {
        in_child(|| {
            alone[0] = 99;
            is_refused(store.pin(keys[2]).map(drop))
                && is_refused(store.pin_mut(keys[2]).map(drop))
                && is_refused(store.create(1).map(drop))
                && is_refused(store.take(keys[2]).map(drop))
                && is_refused(store.free(keys[2]))
                && is_refused(store.cold(keys[2]))
                && is_refused(store.will_need(keys[2]))
                && is_refused(store.dead(keys[2]))
                && is_refused(store.set_budget(Bytes::mib(1)))
                && is_refused(store.set_pool_limit(Bytes::mib(1)))
                && *guard == *expected
                && alone[0] == 99
        })
    };
    assert!(fine);
    assert_eq!(alone[0], bytes_of(1, page())[0], "the child wrote to its parent's object");
    drop((guard, alone));
    for (n, key) in keys.iter().enumerate() {
        assert!(*store.pin(*key).unwrap() == *bytes_of(n as u64, page()));
    }
}

#[test]
fn a_child_ends_inherited_guards_of_dead_objects_and_waits_for_no_lock() {
    glebe_testing::alone!();
    let options = Store::options().pool_limit(len_of(256)).capacity(len_of(4096));
    let options = options.file_in(std::env::temp_dir(), len_of(4096));
    let store = options.build(len_of(64)).unwrap();
    let keys = fill(&store, 1500);
    let is_in_file = |key: &Key| copy_of(&store, *key).is_some_and(Copy::is_in_file);
    let saved: Vec<Key> = keys.iter().copied().filter(is_in_file).take(2).collect();
    let mut read = Some(store.pin(saved[0]).unwrap());
    let mut written = Some(store.pin_mut(saved[1]).unwrap());
    assert!(is_in_file(&saved[0]), "a copy is kept");
    saved.iter().for_each(|key| store.dead(*key).unwrap());
    let file = store.copies.file.as_ref().unwrap();
    // SAFETY: the child only drops guards, which takes no lock.
    let ended = file.while_locked(|| unsafe {
        in_child(|| {
            drop((read.take(), written.take()));
            true
        })
    });
    assert!(ended, "the child waits for ever");
    drop((read, written));
    saved.iter().for_each(|key| store.free(*key).unwrap());
    store.stats().check().unwrap();
}
