//! Pages that test bodies write and compare. The pages are kept for later runs, because making them
//! takes longer than the library's work.

use std::cell::RefCell;
use std::collections::HashMap;
use std::panic::Location;
use std::rc::Rc;
use std::sync::OnceLock;

use glebe::page_size;

const PAGES: usize = 251;

/// No byte is zero.
pub fn page_of(index: u64) -> &'static [u8] {
    static ALL: OnceLock<Vec<Vec<u8>>> = OnceLock::new();
    let page = page_size().bytes().as_usize();
    let all = ALL.get_or_init(|| (1..=PAGES).map(|byte| vec![byte as u8; page]).collect());
    &all[(index % PAGES as u64) as usize]
}

#[track_caller]
pub fn remembered(thing: u64, version: u8, make: impl FnOnce() -> Vec<u8>) -> Rc<[u8]> {
    type Key = (&'static Location<'static>, u64, u8);
    thread_local!(static MADE: RefCell<HashMap<Key, Rc<[u8]>>> = RefCell::default());
    let key = (Location::caller(), thing, version);
    MADE.with_borrow_mut(|made| made.entry(key).or_insert_with(|| make().into()).clone())
}
