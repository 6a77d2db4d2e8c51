//! Models a page of a region: threads touch it, move it out, compress it and drop its copy.
//!
//! `home`, `shadow` (moved out) and `copy` stand for the page's bytes, a word each; 0 means absent.

use std::sync::Arc;

use loom::thread;

use super::explore;
use crate::swap::word::{change, look, Refusal, Word, WordState};
use glebe_os::internal::sync::{Backoff, MappedWord, Ordering};

const FIRST: u64 = 7;
const SECOND: u64 = 8;
/// Maximum tries of a touch. Without a limit, loom could run a model for ever.
const TRIES: u32 = 4;

struct Page {
    word: MappedWord,
    home: MappedWord,
    shadow: MappedWord,
    copy: MappedWord,
}

fn get(at: &MappedWord) -> u64 {
    at.load(Ordering::Relaxed)
}

fn set(at: &MappedWord, value: u64) {
    at.store(value, Ordering::Relaxed);
}

fn put(page: &Page, state: WordState, has_copy: bool) {
    change(&page.word, |word| word.put(state, has_copy)).expect("this call's own");
}

impl Page {
    fn resident() -> Arc<Self> {
        let new = || MappedWord::new(0);
        let page = Self { word: new(), home: new(), shadow: new(), copy: new() };
        page.bring();
        set(&page.home, FIRST);
        Arc::new(page)
    }

    fn in_window() -> Arc<Self> {
        let page = Self::resident();
        page.move_out();
        page
    }

    fn stored() -> Arc<Self> {
        let page = Self::in_window();
        page.drain();
        page
    }

    fn with_copy() -> Arc<Self> {
        let page = Self::stored();
        page.bring();
        page
    }

    /// Empties `from` in one step, as the kernel does.
    fn shift(from: &MappedWord, to: &MappedWord) {
        assert_eq!(get(to), 0, "something is there");
        let bytes = from.swap(0, Ordering::AcqRel);
        assert_ne!(bytes, 0, "nothing to move");
        set(to, bytes);
    }

    fn move_out(&self) {
        if change(&self.word, Word::moving).is_ok() {
            Self::shift(&self.home, &self.shadow);
            put(self, WordState::Window, look(&self.word).has_copy());
        }
    }

    fn drain(&self) {
        let Ok(was) = change(&self.word, Word::draining) else { return };
        let bytes = get(&self.shadow);
        if !was.has_copy() || get(&self.copy) != bytes {
            set(&self.copy, bytes);
        }
        set(&self.shadow, 0);
        put(self, WordState::Stored, true);
    }

    fn move_and_drain(&self) {
        self.move_out();
        self.drain();
    }

    fn uncopy(&self) {
        if change(&self.word, Word::uncopying).is_ok() {
            set(&self.copy, 0);
            change(&self.word, |word| word.idle(false)).expect("busy");
        }
    }

    fn discard(&self) {
        let Ok(was) = change(&self.word, Word::discarding) else { return };
        match was.state() {
            WordState::Resident => {
                assert_ne!(self.home.swap(0, Ordering::AcqRel), 0, "nothing there")
            }
            WordState::Window => set(&self.shadow, 0),
            _ => {}
        }
        if was.has_copy() {
            set(&self.copy, 0);
        }
        put(self, WordState::Hole, false);
    }

    fn bring(&self) {
        match change(&self.word, Word::fetching) {
            Ok(was) => {
                match was.state() {
                    WordState::Window => Self::shift(&self.shadow, &self.home),
                    WordState::Hole => set(&self.home, FIRST),
                    _ => {
                        assert_eq!(get(&self.home), 0, "loaded over something");
                        self.home.store(get(&self.copy), Ordering::Release);
                    }
                }
                put(self, WordState::Resident, was.has_copy());
            }
            Err(Refusal::Unfit) => {}
            Err(_) => Backoff::default().wait(),
        }
    }

    fn read(&self) -> Option<u64> {
        (0..TRIES).find_map(|_| match self.home.load(Ordering::Acquire) {
            0 => {
                self.bring();
                None
            }
            seen => Some(seen),
        })
    }

    fn write(&self) -> bool {
        (0..TRIES).any(|_| {
            let here = |bytes| (bytes != 0).then_some(SECOND);
            let is_made = self.home.fetch_update(Ordering::AcqRel, Ordering::Acquire, here).is_ok();
            if !is_made {
                self.bring();
            }
            is_made
        })
    }

    fn is(&self, bytes: u64) {
        let word = look(&self.word);
        let (home, shadow, copy) = (get(&self.home), get(&self.shadow), get(&self.copy));
        let of = |state| if word.state() == state { bytes } else { 0 };
        assert!(!word.is_in_transit() && word.guards() == 0, "{word:?}");
        assert_eq!((home, shadow), (of(WordState::Resident), of(WordState::Window)), "{word:?}");
        assert_eq!(copy != 0, word.has_copy(), "{word:?}");
        if word.state() == WordState::Stored {
            assert_eq!(copy, bytes, "a write was lost");
        }
    }
}

/// `one` returns true if it wrote.
fn beside(page: fn() -> Arc<Page>, one: fn(&Page) -> bool, other: fn(&Page)) {
    explore(4, move || {
        let page = page();
        let others = Arc::clone(&page);
        let others = thread::spawn(move || other(&others));
        let has_written = one(&page);
        others.join().unwrap();
        page.is(if has_written { SECOND } else { FIRST });
    });
}

fn reads(page: &Page) -> bool {
    assert!(page.read().is_none_or(|seen| seen == FIRST));
    false
}

#[test]
fn no_write_is_lost_beside_the_hands() {
    for start in [Page::resident, Page::in_window, Page::stored, Page::with_copy] {
        beside(start, Page::write, Page::move_and_drain);
        beside(start, reads, Page::move_and_drain);
    }
}

#[test]
fn two_touches_bring_it_once() {
    for start in [Page::in_window, Page::stored] {
        beside(start, Page::write, |page| {
            let _ = page.read();
        });
    }
}

#[test]
fn a_kept_copy_goes_beside_touches_and_hands() {
    beside(Page::with_copy, Page::write, Page::uncopy);
    let drains = |page: &Page| {
        page.move_and_drain();
        false
    };
    beside(Page::with_copy, drains, Page::uncopy);
}

#[test]
fn what_is_discarded_beside_touches_and_hands_is_nowhere() {
    let drains = |page: &Page| {
        page.move_and_drain();
        false
    };
    for start in [Page::resident, Page::in_window, Page::stored, Page::with_copy] {
        beside(start, reads, Page::discard);
        beside(start, drains, Page::discard);
    }
    let discards = |page: &Page| {
        page.discard();
        false
    };
    beside(Page::with_copy, discards, Page::uncopy);
}

#[test]
#[should_panic(expected = "a write was lost")]
fn to_copy_first_and_drop_then_loses_a_write() {
    fn copy_then_drop(page: &Page) {
        if change(&page.word, Word::moving).is_ok() {
            set(&page.copy, page.home.load(Ordering::Acquire));
            page.home.swap(0, Ordering::AcqRel);
            put(page, WordState::Stored, true);
        }
    }
    beside(Page::resident, Page::write, copy_then_drop);
}
