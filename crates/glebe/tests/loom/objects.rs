//! The pool: a reader has the bytes of the object it asked for, whatever others do meanwhile.

use super::*;
use crate::zpool::account::Account;
use crate::zpool::class::{Shape, Stop, Work};
use crate::zpool::classes::Classes;
use crate::zpool::entries::Entries;
use crate::zpool::frames::Frames;
use crate::zpool::memory::Memory;
use crate::zpool::objects::{Filled, Objects, Stored};
use crate::zpool::pages::Pages;
use crate::zpool::words::Words;
use crate::zpool::zspage::Zspages;
use glebe::units::PageSize;

/// The page of the models: a segment of entries fills it.
const PAGE_SHIFT: u32 = 9;
const PAGES: usize = 4;
const ENTRIES: usize = 64;
const PREEMPTIONS: usize = 2;

type Name = (u32, u32);

fn pool() -> Objects {
    let page = PageSize::new(1 << PAGE_SHIFT).expect("a power of two");
    let (words, segments, epochs) = Entries::lens(ENTRIES);
    let (words, segments) = (Words::new(words), Words::new(segments));
    let entries = Entries::new(words, segments, Words::new(epochs), 1, page);
    let zspages = Zspages::new(Words::new(Zspages::table_len(PAGES)), page);
    let supply = Pages::new(Frames::new(2 * PAGES), 1 << PAGE_SHIFT, PAGES as u32);
    let memory = Memory::new(entries, zspages, supply, Account::new(u64::MAX));
    let classes = Classes::new(PAGE_SHIFT);
    let small = Shape { size: 256, pages: 1, objects: 2 };
    let large = Shape { size: 512, pages: 1, objects: 1 };
    assert!(classes.change(&[(256, small), (512, large)]));
    Objects { memory, classes, filled: Filled::new() }
}

fn bytes_of(key: u64) -> Vec<u8> {
    [key, key + 100].into_iter().flat_map(u64::to_ne_bytes).collect()
}

fn insert(pool: &Objects, key: u64) -> Name {
    pool.insert(0, None, Stored::raw(&bytes_of(key))).expect("room")
}

/// Reads an object, which is one of `keys` and whole; which, if it is there.
fn read(pool: &Objects, (index, generation): Name, keys: &[u64]) -> Option<u64> {
    let pinned = pool.pin(index, generation)?;
    let place = pinned.entry.place();
    let about = pool.memory.zspages.about(place.zspage);
    let at = pool.memory.pages.start_of(about.page) + place.slot as usize * 256;
    let words = pool.memory.pages.frames().words(at);
    let found: Vec<u64> = words.iter().map(|word| word.load(Ordering::Relaxed)).collect();
    pool.unpin(&pinned);
    let key = keys.iter().find(|key| found == [**key, **key + 100]);
    Some(*key.unwrap_or_else(|| panic!("{found:?} is none of {keys:?}")))
}

fn check(pool: &Objects) {
    for class in pool.classes.all() {
        let mut state = class.lock();
        state.settle(&pool.memory);
        assert_eq!(state.limbo(), 0);
        state.check(&pool.memory);
    }
}

#[test]
fn a_slot_is_not_used_anew_while_somebody_reads_it() {
    explore(PREEMPTIONS, || {
        let pool = Arc::new(pool());
        let (one, _) = (insert(&pool, 1), insert(&pool, 2));
        let other = Arc::clone(&pool);
        let reader = thread::spawn(move || read(&other, one, &[1]));
        assert!(pool.remove(0, one.0, one.1).is_some());
        let three = insert(&pool, 3);
        reader.join().expect("no panic");
        assert_eq!(read(&pool, one, &[1]), None);
        assert_eq!(read(&pool, three, &[3]), Some(3));
        check(&pool);
    });
}

#[test]
fn a_page_is_not_used_anew_while_somebody_reads_it() {
    explore(PREEMPTIONS, || {
        let pool = Arc::new(pool());
        let one = insert(&pool, 1);
        let other = Arc::clone(&pool);
        let reader = thread::spawn(move || read(&other, one, &[1]));
        assert!(pool.remove(0, one.0, one.1).is_some());
        let three = insert(&pool, 3);
        reader.join().expect("no panic");
        assert_eq!(read(&pool, three, &[3]), Some(3));
        check(&pool);
    });
}

/// Two zspages of one object each, which compaction makes one; the place of the first is used
/// again.
#[test]
fn a_reader_follows_an_object_that_is_moved() {
    explore(PREEMPTIONS, || {
        let pool = Arc::new(pool());
        let names: Vec<Name> = (1..=4).map(|key| insert(&pool, key)).collect();
        for name in [names[1], names[3]] {
            assert!(pool.remove(0, name.0, name.1).is_some());
        }
        let (one, other) = ([names[0], names[2]], Arc::clone(&pool));
        let reader =
            thread::spawn(move || (read(&other, one[0], &[1]), read(&other, one[1], &[3])));
        let mut work = Work { bytes_left: 1 << 10, ..Work::default() };
        let stop = pool.compact(0, &mut work, true);
        let five = insert(&pool, 5);
        assert_eq!(reader.join().expect("no panic"), (Some(1), Some(3)));
        assert!(work.moved == 1 || stop == Some(Stop::Stuck));
        assert_eq!(read(&pool, names[0], &[1]), Some(1));
        assert_eq!(read(&pool, names[2], &[3]), Some(3));
        assert_eq!(read(&pool, five, &[5]), Some(5));
        check(&pool);
    });
}

#[test]
fn a_remove_finds_an_object_that_is_moved() {
    explore(PREEMPTIONS, || {
        let pool = Arc::new(pool());
        let names: Vec<Name> = (1..=4).map(|key| insert(&pool, key)).collect();
        for name in [names[1], names[3]] {
            assert!(pool.remove(0, name.0, name.1).is_some());
        }
        let (one, other) = (names[0], Arc::clone(&pool));
        let remover = thread::spawn(move || other.remove(0, one.0, one.1).is_some());
        let mut work = Work { bytes_left: 1 << 10, ..Work::default() };
        pool.compact(0, &mut work, true);
        assert!(remover.join().expect("no panic"));
        assert_eq!(read(&pool, names[0], &[1]), None);
        assert_eq!(read(&pool, names[2], &[3]), Some(3));
        check(&pool);
    });
}

#[test]
fn a_replaced_object_is_the_old_one_or_the_new_one() {
    explore(PREEMPTIONS, || {
        let pool = Arc::new(pool());
        let one = insert(&pool, 1);
        let other = Arc::clone(&pool);
        let reader = thread::spawn(move || read(&other, one, &[1, 2]));
        let replaced = pool.replace(one.0, one.1, Stored::raw(&bytes_of(2)));
        assert!(replaced.expect("room"));
        let three = insert(&pool, 3);
        assert!(reader.join().expect("no panic").is_some());
        assert_eq!(read(&pool, one, &[2]), Some(2));
        assert_eq!(read(&pool, three, &[3]), Some(3));
        check(&pool);
    });
}

#[test]
fn an_object_is_removed_once() {
    explore(PREEMPTIONS, || {
        let pool = Arc::new(pool());
        let (one, two) = (insert(&pool, 1), insert(&pool, 2));
        let other = Arc::clone(&pool);
        let remover = thread::spawn(move || other.remove(0, one.0, one.1).is_some());
        let here = pool.remove(0, one.0, one.1).is_some();
        assert_ne!(remover.join().expect("no panic"), here);
        assert_eq!(read(&pool, two, &[2]), Some(2));
        check(&pool);
    });
}

#[test]
fn compaction_passes_over_what_is_being_written() {
    explore(PREEMPTIONS, || {
        let pool = Arc::new(pool());
        let names: Vec<Name> = (1..=3).map(|key| insert(&pool, key)).collect();
        assert!(pool.remove(0, names[0].0, names[0].1).is_some());
        let other = Arc::clone(&pool);
        let writer = thread::spawn(move || {
            let four = insert(&other, 4);
            (four, read(&other, four, &[4]))
        });
        let mut work = Work { bytes_left: 1 << 10, ..Work::default() };
        pool.compact(0, &mut work, true);
        let (four, seen) = writer.join().expect("no panic");
        assert_eq!((seen, read(&pool, four, &[4])), (Some(4), Some(4)));
        assert_eq!(read(&pool, names[1], &[2]), Some(2));
        assert_eq!(read(&pool, names[2], &[3]), Some(3));
        check(&pool);
    });
}
