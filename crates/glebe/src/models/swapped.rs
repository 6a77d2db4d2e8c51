//! Models an object of a store: threads pin, evict, load and free it, or drop its copy.
//!
//! Memory and copy are one word each, with relaxed accesses; 0 means absent.

use std::sync::Arc;

use loom::thread;

use super::explore;
use crate::swap::word::{change, look, unpin, Refusal, Word, WordState};
use glebe_os::internal::sync::{Backoff, MappedWord, Ordering};

const FIRST: u64 = 7;
const SECOND: u64 = 8;
/// Maximum tries of a call, because loom would explore endless waits.
const TRIES: u32 = 3;

struct Object {
    word: MappedWord,
    memory: MappedWord,
    copy: MappedWord,
    written: MappedWord,
}

fn get(at: &MappedWord) -> u64 {
    at.load(Ordering::Relaxed)
}

fn set(at: &MappedWord, value: u64) {
    at.store(value, Ordering::Relaxed);
}

impl Object {
    fn resident() -> Arc<Self> {
        let new = || MappedWord::new(0);
        let object = Self { word: new(), memory: new(), copy: new(), written: new() };
        object.make(FIRST);
        change(&object.word, Word::passed).expect("just made");
        Arc::new(object)
    }

    fn stored() -> Arc<Self> {
        let object = Self::resident();
        object.evict();
        assert_eq!((get(&object.memory), get(&object.copy)), (0, FIRST));
        object
    }

    fn make(&self, contents: u64) {
        change(&self.word, Word::created).expect("a hole");
        assert_eq!((get(&self.memory), get(&self.copy)), (0, 0), "a new object has another's");
        set(&self.memory, contents);
        change(&self.word, Word::released).expect("alone");
    }

    fn evict(&self) {
        let Ok(was) = change(&self.word, Word::chosen) else { return };
        if !was.has_copy() {
            set(&self.copy, get(&self.memory));
        }
        if change(&self.word, Word::leaving).is_err() {
            change(&self.word, |word| word.idle(true)).expect("busy");
            return self.settle();
        }
        set(&self.memory, 0);
        change(&self.word, Word::left).expect("leaving");
        self.settle();
    }

    fn uncopy(&self) {
        if change(&self.word, Word::uncopying).is_ok() {
            set(&self.copy, 0);
            change(&self.word, |word| word.idle(false)).expect("busy");
            self.settle();
        }
    }

    fn load(&self, alone: bool) -> bool {
        if change(&self.word, |word| word.loading(0)).is_err() {
            return false;
        }
        assert_eq!(get(&self.memory), 0, "loaded twice");
        set(&self.memory, get(&self.copy));
        if alone {
            set(&self.copy, 0);
        }
        let loaded = |word: Word| if alone { word.loaded_alone() } else { word.loaded(true) };
        change(&self.word, loaded).expect("loading");
        true
    }

    fn read(&self) -> Option<u64> {
        let mut backoff = Backoff::default();
        for _ in 0..TRIES {
            match change(&self.word, |word| word.pinned(0)) {
                Err(Refusal::Wait) => backoff.wait(),
                Err(Refusal::Stored) if !self.load(false) => {}
                Err(Refusal::Stored) | Ok(_) => {
                    let seen = get(&self.memory);
                    assert_eq!(seen, get(&self.memory), "it changed under a pin");
                    if unpin(&self.word).is_dead() {
                        self.settle();
                    }
                    return Some(seen);
                }
                Err(_) => return None,
            }
        }
        None
    }

    fn write(&self, contents: u64) -> bool {
        let mut backoff = Backoff::default();
        for _ in 0..TRIES {
            match change(&self.word, |word| word.pinned_alone(0)) {
                Err(Refusal::Wait) => backoff.wait(),
                Err(Refusal::Stored) if !self.load(true) => {}
                Err(Refusal::Stored) => return self.write_alone(contents),
                Ok(was) => {
                    if was.has_copy() {
                        set(&self.copy, 0);
                        change(&self.word, Word::uncopied).expect("alone");
                    }
                    return self.write_alone(contents);
                }
                Err(_) => return false,
            }
        }
        false
    }

    fn write_alone(&self, contents: u64) -> bool {
        assert_eq!(get(&self.copy), 0, "a copy of what is out of date");
        set(&self.memory, contents);
        set(&self.written, contents);
        if change(&self.word, Word::released).expect("alone").is_dead() {
            self.settle();
        }
        true
    }

    fn free(&self) -> bool {
        let mut backoff = Backoff::default();
        for _ in 0..TRIES {
            match change(&self.word, |word| word.taken(0)) {
                Err(Refusal::Wait) => backoff.wait(),
                Err(_) => return false,
                Ok(was) => {
                    self.drop_all(was);
                    change(&self.word, Word::ended).expect("taken");
                    self.make(SECOND);
                    return true;
                }
            }
        }
        false
    }

    fn drop_all(&self, was: Word) {
        assert_eq!(was.has_copy(), get(&self.copy) != 0, "a copy is lost, or there is none");
        assert_eq!(was.state() == WordState::Resident, get(&self.memory) != 0);
        set(&self.copy, 0);
        set(&self.memory, 0);
    }

    fn doom(&self) {
        change(&self.word, |word| word.doomed(0)).expect("it is there");
        self.settle();
    }

    fn settle(&self) {
        if let Ok(was) = change(&self.word, Word::reaped) {
            self.drop_all(was);
            change(&self.word, Word::buried).expect("taken");
        }
    }

    fn is_as_written(&self) {
        self.is_settled(get(&self.written).max(FIRST));
    }

    fn is_settled(&self, contents: u64) {
        let word = look(&self.word);
        let (memory, copy) = (get(&self.memory), get(&self.copy));
        assert!(!word.is_in_transit() && word.guards() == 0, "{word:?}");
        assert_eq!(
            memory,
            if word.state() == WordState::Resident { contents } else { 0 },
            "{word:?}"
        );
        assert_eq!(copy, if word.has_copy() { contents } else { 0 }, "{word:?}");
    }
}

fn beside(
    object: fn() -> Arc<Object>,
    preemptions: usize,
    one: fn(&Object),
    other: fn(&Object),
    end: fn(&Object),
) {
    explore(preemptions, move || {
        let object = object();
        let others = Arc::clone(&object);
        let others = thread::spawn(move || other(&others));
        one(&object);
        others.join().unwrap();
        end(&object);
    });
}

fn reads_first(object: &Object) {
    assert!(object.read().is_none_or(|seen| seen == FIRST));
}

fn reads(object: &Object) {
    let _ = object.read();
}

fn writes(object: &Object) {
    let _ = object.write(SECOND);
}

fn frees(object: &Object) {
    let _ = object.free();
}

#[test]
fn what_is_pinned_stays_beside_an_eviction() {
    let end = |object: &Object| object.is_settled(FIRST);
    beside(Object::resident, 4, reads_first, Object::evict, end);
    beside(Object::stored, 4, reads_first, Object::evict, end);
}

#[test]
fn of_two_loads_one_is_made() {
    beside(Object::stored, 4, reads_first, reads_first, |object| object.is_settled(FIRST));
}

#[test]
fn no_write_is_lost_beside_an_eviction() {
    let write = |object: &Object| {
        if object.write(SECOND) {
            assert!(object.read().is_none_or(|seen| seen == SECOND), "a write was lost");
        }
    };
    for start in [Object::resident, Object::stored] {
        beside(start, 4, write, Object::evict, Object::is_as_written);
    }
}

#[test]
fn a_reader_and_a_writer_are_never_at_it_together() {
    beside(Object::resident, 4, writes, reads, Object::is_as_written);
    beside(Object::stored, 4, writes, reads, Object::is_as_written);
    beside(Object::resident, 4, writes, writes, Object::is_as_written);
}

#[test]
fn a_free_leaves_nothing_to_a_pin_of_the_past() {
    let end = |object: &Object| {
        object.is_settled(if look(&object.word).generation() == 0 { FIRST } else { SECOND });
    };
    for start in [Object::resident, Object::stored] {
        beside(start, 4, reads_first, frees, end);
        beside(start, 3, Object::evict, frees, end);
        beside(start, 4, frees, frees, end);
    }
}

#[test]
fn a_copy_goes_beside_readers_writers_and_evictions() {
    fn with_copy() -> Arc<Object> {
        let object = Object::stored();
        assert_eq!(object.read(), Some(FIRST));
        change(&object.word, Word::passed).expect("just pinned");
        object
    }
    let first = |object: &Object| object.is_settled(FIRST);
    beside(with_copy, 4, reads_first, Object::uncopy, first);
    beside(with_copy, 4, Object::evict, Object::uncopy, first);
    beside(with_copy, 4, writes, Object::uncopy, Object::is_as_written);
}

#[test]
fn nothing_is_left_of_a_dead_object() {
    let end = |object: &Object| {
        assert_eq!((get(&object.memory), get(&object.copy)), (0, 0), "{:?}", look(&object.word));
        object.is_settled(0);
        assert_eq!(object.read(), None, "a pin of a dead object");
    };
    for start in [Object::resident, Object::stored] {
        beside(start, 4, reads_first, Object::doom, end);
        beside(start, 4, Object::evict, Object::doom, end);
        beside(start, 3, writes, Object::doom, end);
    }
}

/// Shows the bug of freeing memory without `Word::chosen`: a pin may follow the check.
#[test]
#[should_panic(expected = "it changed under a pin")]
fn an_eviction_in_one_step_takes_what_is_pinned() {
    fn evict_at_once(object: &Object) {
        let word = look(&object.word);
        if word.guards() == 0 {
            set(&object.copy, get(&object.memory));
            set(&object.memory, 0);
        }
    }
    beside(Object::resident, 4, reads, evict_at_once, |_| ());
}

/// Shows the bug of copying an object before `Word::chosen` pins it: a writer does not wait.
#[test]
#[should_panic(expected = "a write was lost")]
fn a_copy_without_a_pin_loses_a_write() {
    fn evict_unpinned(object: &Object) {
        let seen = get(&object.memory);
        let Ok(_) = change(&object.word, Word::chosen) else { return };
        set(&object.copy, seen);
        if change(&object.word, Word::leaving).is_ok() {
            set(&object.memory, 0);
            change(&object.word, Word::left).expect("leaving");
        } else {
            change(&object.word, |word| word.idle(true)).expect("busy");
        }
    }
    fn write_cold(object: &Object) {
        if object.write(SECOND) {
            let _ = change(&object.word, |word| word.cooled(0));
        }
    }
    beside(Object::resident, 4, write_cold, evict_unpinned, |object| {
        if object.word.load(Ordering::SeqCst) != 0 {
            let seen = object.read().expect("nobody else is there");
            assert!(seen == SECOND, "a write was lost");
        }
    });
}
