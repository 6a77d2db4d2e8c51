//! What a test outside cannot see: which pages are there, copies that are damaged, forks, keys that
//! wear out.
#![allow(unsafe_code)] // Safety: a forked child that allocates nothing.

use super::copies::Copy;
use super::word::look;
use super::*;
use crate::sys::child::in_child;
use crate::sys::mincore::resident;
use crate::sys::page_size;
use crate::units::{Bytes, Pages};
use crate::zpool::Handle;

fn page() -> usize {
    page_size().bytes().as_usize()
}

fn store(budget: u64) -> Store {
    let budget = Pages::new(budget).bytes(page_size());
    Store::options().capacity(Bytes::mib(16)).build(budget).unwrap()
}

/// Bytes that compress to about a half.
fn bytes_of(n: u64, len: usize) -> Vec<u8> {
    (0..len as u64).map(|at| if at % 16 < 8 { n as u8 } else { (at * at + n >> 4) as u8 }).collect()
}

fn fill(store: &Store, count: u64) -> Vec<Key> {
    (0..count).map(|n| store.insert(&bytes_of(n, page())).unwrap()).collect()
}

fn copy_of(store: &Store, key: Key) -> Option<Copy> {
    let slot = store.places.slot(key.index).unwrap();
    look(slot.word()).has_copy().then(|| slot.copy())
}

/// The pool's handle of an object's copy.
fn handle_of(store: &Store, key: Key) -> Handle {
    let [handle, _] = copy_of(store, key).expect("a copy").to_raw();
    Handle::from_raw(handle).expect("a block")
}

/// Pages that the kernel says are there, of those that objects may lie in.
fn pages_there(store: &Store, pages: u64) -> u64 {
    let all = super::slots::Place { first: 0, len: page() * pages as usize };
    let start = store.memory.bytes(all).addr().get();
    resident(start, Pages::new(pages).bytes(page_size())).unwrap()
}
