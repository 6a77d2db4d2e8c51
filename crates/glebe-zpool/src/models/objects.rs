//! Models of a pool: a reader gets the bytes of its object while other threads change the pool.

use std::sync::Arc;

use loom::thread;

use crate::class::classes::Classes;
use crate::class::{Fullness, Shape, Stop, Work};
use crate::entry::table::{Entries, Tables};
use crate::entry::word::GENERATION_BITS;
use crate::memory::account::Account;
use crate::memory::frames::Frames;
use crate::memory::pages::Pages;
use crate::memory::words::Words;
use crate::memory::zspages::Zspages;
use crate::objects::{Filled, Objects, Stored};
use crate::shared::Memory;
use glebe_os::internal::sync::{MappedWord, Ordering};
use glebe_os::units::PageSize;
use glebe_testing::model::explore;

const PAGE_SHIFT: u32 = 9;
const PAGES: usize = 4;
const ENTRIES: usize = 2 * SEGMENT;
const SEGMENT: usize = 64;
const PREEMPTIONS: usize = 2;

type Name = (u32, u32);

fn pool() -> Objects {
    let page = PageSize::new(1 << PAGE_SHIFT).expect("a power of two");
    let tables = Tables::new(ENTRIES, page, |len| Ok::<_, ()>(Words::new(len)));
    let entries = Entries::new(tables.expect("model memory"), page);
    let zspages = Zspages::new(Words::new(Zspages::table_len(PAGES)), page);
    let supply = Pages::new(Frames::new(2 * PAGES), 1 << PAGE_SHIFT, PAGES as u32);
    let memory = Memory::new(entries, zspages, supply, Account::new(u64::MAX), false);
    let classes = Classes::new(PAGE_SHIFT);
    let small = Shape { size: 256, pages: 1, objects: 2 };
    let large = Shape { size: 512, pages: 1, objects: 1 };
    assert!(classes.change(&memory.account, &[(256, small), (512, large)]));
    Objects { memory, classes, filled: Filled::default() }
}

fn bytes_of(key: u64) -> Vec<u8> {
    [key, key + 100].into_iter().flat_map(u64::to_ne_bytes).collect()
}

fn insert(pool: &Objects, key: u64) -> Name {
    pool.insert(Stored::raw(&bytes_of(key))).expect("room")
}

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

type Elsewhere = Arc<[MappedWord; 4]>;

fn elsewhere() -> Elsewhere {
    Arc::new(std::array::from_fn(|_| MappedWord::new(0)))
}

/// Returns whether the object is sealed; `None` if it is gone.
fn read_sealed(
    pool: &Objects,
    elsewhere: &Elsewhere,
    (index, generation): Name,
    key: u64,
) -> Option<bool> {
    let pinned = pool.pin(index, generation)?;
    let place = pinned.entry.place();
    let found: Vec<u64> = if pinned.is_sealed {
        let words = &elsewhere[2 * place.slot as usize..][..2];
        words.iter().map(|word| word.load(Ordering::Relaxed)).collect()
    } else {
        let words = pool.memory.pages.frames().words(pinned.start());
        words.iter().map(|word| word.load(Ordering::Relaxed)).collect()
    };
    pool.unpin(&pinned);
    assert_eq!(found, [key, key + 100], "sealed: {}", pinned.is_sealed);
    Some(pinned.is_sealed)
}

fn seal(pool: &Objects, elsewhere: &Elsewhere) -> bool {
    let class = pool.classes.get(0).expect("a class");
    let Some(begun) = class.lock().begin_seal(&pool.memory, Fullness::Full) else { return false };
    for slot in 0..2 {
        let from = pool.memory.pages.start_of(begun.page) + slot * 256;
        let words = pool.memory.pages.frames().words(from);
        for (to, word) in elsewhere[2 * slot..].iter().zip(words) {
            to.store(word.load(Ordering::Relaxed), Ordering::Relaxed);
        }
    }
    class.lock().finish_seal(&pool.memory, begun);
    true
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
        assert!(pool.remove(one.0, one.1));
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
        assert!(pool.remove(one.0, one.1));
        let three = insert(&pool, 3);
        reader.join().expect("no panic");
        assert_eq!(read(&pool, three, &[3]), Some(3));
        check(&pool);
    });
}

#[test]
fn a_reader_follows_an_object_that_is_moved() {
    explore(PREEMPTIONS, || {
        let pool = Arc::new(pool());
        let names: Vec<Name> = (1..=4).map(|key| insert(&pool, key)).collect();
        for name in [names[1], names[3]] {
            assert!(pool.remove(name.0, name.1));
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
            assert!(pool.remove(name.0, name.1));
        }
        let (one, other) = (names[0], Arc::clone(&pool));
        let remover = thread::spawn(move || other.remove(one.0, one.1));
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
        let remover = thread::spawn(move || other.remove(one.0, one.1));
        let here = pool.remove(one.0, one.1);
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
        assert!(pool.remove(names[0].0, names[0].1));
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

#[test]
fn a_filled_object_is_removed_once() {
    explore(PREEMPTIONS, || {
        let pool = Arc::new(pool());
        let fill = |pool: &Objects| pool.insert(Stored::Filled { fill: 7, len: 9 });
        let (one, two) = (fill(&pool).expect("room"), fill(&pool).expect("room"));
        let other = Arc::clone(&pool);
        let remover = thread::spawn(move || other.remove(one.0, one.1));
        let here = pool.remove(one.0, one.1);
        assert_ne!(remover.join().expect("no panic"), here);
        assert!(pool.entry(two.0, two.1).is_some());
    });
}

/// The entry's word is equal in both uses; only the epoch differs.
#[test]
fn a_later_use_of_an_entry_is_not_removed_in_the_place_of_an_earlier_one() {
    let insert_filled =
        |pool: &Objects| pool.insert(Stored::Filled { fill: 7, len: 9 }).expect("room");
    let kinds: [fn(&Objects) -> Name; 2] = [|pool| insert(pool, 1), insert_filled];
    for insert_one in kinds {
        explore(PREEMPTIONS, move || {
            let pool = Arc::new(pool());
            let one = insert_one(&pool);
            let other = Arc::clone(&pool);
            let remover = thread::spawn(move || other.remove(one.0, one.1));
            let here = pool.remove(one.0, one.1);
            let again = here.then(|| {
                pool.memory.entries.next_epoch_with(one.0, one.1);
                insert_one(&pool)
            });
            assert_ne!(remover.join().expect("no panic"), here);
            if let Some(again) = again {
                assert_eq!(again, (one.0, 1 << GENERATION_BITS | one.1));
                assert!(pool.entry(again.0, again.1).is_some(), "it was removed for another use");
            }
        });
    }
}

#[test]
fn a_slot_is_given_up_once() {
    explore(PREEMPTIONS, || {
        let pool = Arc::new(pool());
        let (one, two) = (insert(&pool, 1), insert(&pool, 2));
        let other = Arc::clone(&pool);
        let remover = thread::spawn(move || {
            let gone = other.remove(one.0, one.1);
            (gone, insert(&other, 3))
        });
        let here = pool.remove(one.0, one.1);
        let four = insert(&pool, 4);
        let (there, three) = remover.join().expect("no panic");
        assert_ne!(there, here);
        let found = [(two, 2), (three, 3), (four, 4)].map(|(name, key)| read(&pool, name, &[key]));
        assert_eq!((found, read(&pool, one, &[])), ([Some(2), Some(3), Some(4)], None));
        check(&pool);
    });
}

#[test]
fn an_object_is_moved_or_removed() {
    explore(PREEMPTIONS, || {
        let pool = Arc::new(pool());
        let names: Vec<Name> = (1..=4).map(|key| insert(&pool, key)).collect();
        for name in [names[1], names[3]] {
            assert!(pool.remove(name.0, name.1));
        }
        let (one, other) = ([names[0], names[2]], Arc::clone(&pool));
        let remover = thread::spawn(move || {
            let gone = one.map(|name| other.remove(name.0, name.1));
            (gone, insert(&other, 5))
        });
        let mut work = Work { bytes_left: 1 << 10, ..Work::default() };
        pool.compact(0, &mut work, true);
        let (gone, five) = remover.join().expect("no panic");
        assert_eq!(gone, [true, true]);
        let found = [names[0], names[2]].map(|name| read(&pool, name, &[]));
        assert_eq!((found, read(&pool, five, &[5])), ([None, None], Some(5)));
        check(&pool);
    });
}

#[test]
fn a_reader_of_an_object_that_is_sealed_has_its_bytes() {
    explore(PREEMPTIONS, || {
        let (pool, elsewhere) = (Arc::new(pool()), elsewhere());
        let (one, _) = (insert(&pool, 1), insert(&pool, 2));
        let (other, words) = (Arc::clone(&pool), Arc::clone(&elsewhere));
        let reader = thread::spawn(move || read_sealed(&other, &words, one, 1));
        assert!(seal(&pool, &elsewhere));
        let three = insert(&pool, 3);
        assert!(reader.join().expect("no panic").is_some());
        assert_eq!(read_sealed(&pool, &elsewhere, one, 1), Some(true));
        assert_eq!(read_sealed(&pool, &elsewhere, three, 3), Some(false));
        check(&pool);
    });
}

#[test]
fn an_object_is_removed_while_it_is_sealed() {
    explore(PREEMPTIONS, || {
        let (pool, elsewhere) = (Arc::new(pool()), elsewhere());
        let (one, two) = (insert(&pool, 1), insert(&pool, 2));
        let other = Arc::clone(&pool);
        let remover = thread::spawn(move || other.remove(one.0, one.1));
        let sealed = seal(&pool, &elsewhere);
        assert!(remover.join().expect("no panic"));
        assert_eq!(read_sealed(&pool, &elsewhere, one, 1), None);
        assert_eq!(read_sealed(&pool, &elsewhere, two, 2), Some(sealed));
        assert!(pool.remove(two.0, two.1));
        check(&pool);
        assert_eq!(pool.memory.take_ended().len(), usize::from(sealed));
    });
}

#[test]
fn a_zspage_with_a_writer_is_not_sealed() {
    explore(PREEMPTIONS, || {
        let (pool, elsewhere) = (Arc::new(pool()), elsewhere());
        let one = insert(&pool, 1);
        let other = Arc::clone(&pool);
        let writer = thread::spawn(move || insert(&other, 2));
        let sealed = seal(&pool, &elsewhere);
        let two = writer.join().expect("no panic");
        assert_eq!(read_sealed(&pool, &elsewhere, one, 1), Some(sealed));
        assert_eq!(read_sealed(&pool, &elsewhere, two, 2), Some(sealed));
        check(&pool);
    });
}
