//! [`Oracle`] records the state of each owned page in a word that other threads can read.
//!
//! ```text
//!  63            4     3        2       1       0
//! | version       | busy | dropped | empty | marked |
//! ```
//! Only a page's owner stores its word. *Busy* is set during a change. A reader that finds the same
//! word, not busy, before and after its read has seen one state. *Empty*: the page holds zeros,
//! because it was never written or its loss was reported.

use std::sync::atomic::{AtomicU64, Ordering};

use glebe_testing::stressed::{self, fill};

const MARKED: u64 = 1;
const EMPTY: u64 = 1 << 1;
const DROPPED: u64 = 1 << 2;
const BUSY: u64 = 1 << 3;
const VERSION_SHIFT: u32 = 4;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct State {
    /// Version of the last write; 0 before the first.
    pub(super) version: u64,
    pub(super) marked: bool,
    pub(super) empty: bool,
    /// True if dropped on purpose since the mark.
    pub(super) dropped: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Contents {
    Right,
    Zeros,
    /// The callback's bytes, from some byte on.
    Refilled,
    Stale,
    Wrong,
}

/// Every byte of a refill. No written page consists of this byte.
pub(super) const REFILL: u8 = 0x77;

pub(super) struct Oracle {
    words: Vec<AtomicU64>,
    refilled: bool,
}

impl Oracle {
    pub(super) fn new(pages: u64, refilled: bool) -> Self {
        Self { words: (0..pages).map(|_| AtomicU64::new(EMPTY)).collect(), refilled }
    }

    /// Compares `bytes` with the state of `page`. If a refill came during the read, `bytes` begins
    /// with the old contents.
    pub(super) fn judge(&self, state: State, bytes: &[u8], page: u64) -> Contents {
        match state.judge(bytes, page) {
            is @ (Contents::Stale | Contents::Wrong) if self.refilled && state.marked => {
                let mut was = vec![0; bytes.len()];
                if !state.empty {
                    fill(&mut was, page, state.version);
                }
                let same = bytes.iter().zip(&was).take_while(|(is, was)| is == was).count();
                let rest = &bytes[same..];
                match !rest.is_empty() && rest.iter().all(|&byte| byte == REFILL) {
                    true => Contents::Refilled,
                    false => is,
                }
            }
            is => is,
        }
    }

    pub(super) fn state(&self, page: u64) -> State {
        State::of(self.words[page as usize].load(Ordering::Relaxed))
    }

    pub(super) fn stable(&self, page: u64) -> Option<(State, u64)> {
        let word = self.words[page as usize].load(Ordering::SeqCst);
        (word & BUSY == 0).then(|| (State::of(word), word))
    }

    pub(super) fn is_still(&self, page: u64, word: u64) -> bool {
        std::sync::atomic::fence(Ordering::SeqCst);
        self.words[page as usize].load(Ordering::SeqCst) == word
    }

    pub(super) fn begin(&self, first: u64, pages: u64) {
        for page in first..first + pages {
            self.words[page as usize].fetch_or(BUSY, Ordering::SeqCst);
        }
    }

    pub(super) fn end(&self, page: u64, state: State) {
        self.words[page as usize].store(state.word(), Ordering::SeqCst);
    }
}

impl State {
    fn of(word: u64) -> Self {
        Self {
            version: word >> VERSION_SHIFT,
            marked: word & MARKED != 0,
            empty: word & EMPTY != 0,
            dropped: word & DROPPED != 0,
        }
    }

    fn word(self) -> u64 {
        let bit = |set: bool, bit: u64| if set { bit } else { 0 };
        self.version << VERSION_SHIFT
            | bit(self.marked, MARKED)
            | bit(self.empty, EMPTY)
            | bit(self.dropped, DROPPED)
    }

    pub(super) fn judge(self, bytes: &[u8], page: u64) -> Contents {
        let zeros = bytes.iter().all(|&byte| byte == 0);
        match stressed::version(bytes, page) {
            _ if self.empty && zeros => Contents::Right,
            _ if self.empty => Contents::Wrong,
            _ if zeros => Contents::Zeros,
            Some(version) if version == self.version => Contents::Right,
            Some(version) if version < self.version => Contents::Stale,
            _ => Contents::Wrong,
        }
    }
}

#[test]
fn a_state_is_its_word_and_back() {
    let mut all = Vec::new();
    for bits in 0..8_u64 {
        let (marked, empty, dropped) = (bits & 1 != 0, bits & 2 != 0, bits & 4 != 0);
        all.push(State { version: bits << 40 | 1, marked, empty, dropped });
    }
    for state in all {
        assert_eq!(State::of(state.word()), state);
    }
}

#[test]
fn contents_are_told_apart() {
    let state = State { version: 5, marked: false, empty: false, dropped: false };
    let mut bytes = vec![0; 1 << 12];
    assert_eq!(state.judge(&bytes, 7), Contents::Zeros);
    assert_eq!(State { empty: true, ..state }.judge(&bytes, 7), Contents::Right);
    for (version, page, is) in [
        (5, 7, Contents::Right),
        (4, 7, Contents::Stale),
        (6, 7, Contents::Wrong),
        (5, 8, Contents::Wrong),
    ] {
        fill(&mut bytes, page, version);
        assert!(bytes.chunks(8).all(|word| word.iter().any(|&b| b != 0)));
        assert_eq!(state.judge(&bytes, 7), is, "{version} {page}");
        assert_eq!(State { empty: true, ..state }.judge(&bytes, 7), Contents::Wrong);
    }
    fill(&mut bytes, 7, 5);
    bytes[100] = 0;
    assert_eq!(state.judge(&bytes, 7), Contents::Wrong);
}

#[test]
fn a_refill_is_only_one_of_a_marked_page_and_to_the_end() {
    let marked = State { version: 5, marked: true, empty: false, dropped: false };
    let len = 1 << 12;
    let refilled = Oracle::new(8, true);
    for same in [0, 8, 1 << 11] {
        let mut bytes = vec![0; len];
        fill(&mut bytes, 7, 5);
        bytes[same..].fill(REFILL);
        assert_eq!(refilled.judge(marked, &bytes, 7), Contents::Refilled, "{same}");
        assert_ne!(Oracle::new(8, false).judge(marked, &bytes, 7), Contents::Refilled);
        let unmarked = State { marked: false, ..marked };
        assert_ne!(refilled.judge(unmarked, &bytes, 7), Contents::Refilled);
        if same > 0 {
            bytes[0] ^= 1;
            assert_eq!(refilled.judge(marked, &bytes, 7), Contents::Wrong);
            bytes[0] ^= 1;
        }
        bytes[len - 1] = 0;
        assert_eq!(refilled.judge(marked, &bytes, 7), Contents::Wrong);
    }
    let empty = State { empty: true, ..marked };
    assert_eq!(refilled.judge(empty, &vec![REFILL; len], 7), Contents::Refilled);
    assert_eq!(refilled.judge(empty, &vec![0; len], 7), Contents::Right);
}

#[test]
fn what_changes_is_not_stable() {
    let oracle = Oracle::new(2, false);
    let (state, word) = oracle.stable(1).unwrap();
    assert!(state.empty && oracle.is_still(1, word));
    oracle.begin(1, 1);
    assert!(oracle.stable(1).is_none() && !oracle.is_still(1, word));
    oracle.end(1, State { marked: true, ..state });
    assert!(!oracle.is_still(1, word) && oracle.state(1).marked);
    assert_eq!(oracle.stable(0).unwrap().1, word);
}
