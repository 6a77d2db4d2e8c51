//! Models of processes that pin, purge and unmark a granule of a shared file, and may be killed.
//! After a pin or unmark, a process reads zeros if a loss was reported, else the contents.

use std::sync::Arc;

use loom::thread;

use crate::models::ledger::{be_killed, Killed, Ledger, CONTENTS};
use crate::shared::protocol::{claim, finish, is_pinned, try_pin, unpin, Tried};
use crate::shared::word::{change, Key, Word};
use crate::shared::Order;
use crate::Priority;
use glebe_os::extent::Extent;
use glebe_os::internal::sync::{after_exchange, Backoff, Ordering};
use glebe_testing::model::explore;

fn marked() -> Word {
    Word::default().marked(Priority::NORMAL, Key::new(Order::Fifo, 1), true)
}

fn all() -> Extent {
    Extent::new(0, 1).expect("one granule")
}

fn ledger() -> Arc<Ledger> {
    Arc::new(Ledger::new(marked().0))
}

/// Unlocks after a kill too, as the kernel does.
fn purge(ledger: &Ledger, killed: Killed) {
    if !ledger.try_lock() {
        return;
    }
    be_killed(killed);
    if claim(ledger, 0, marked()) {
        let _ = finish(ledger, all());
    }
    ledger.unlock();
}

fn wait(ledger: &Ledger, backoff: &mut Backoff) {
    if ledger.try_lock() {
        finish(ledger, all()).expect("nothing fails here");
        ledger.unlock();
    } else {
        backoff.wait();
    }
}

fn is_as_told(ledger: &Ledger, is_lost: bool) {
    let data = ledger.data.load(Ordering::SeqCst);
    assert_eq!(data, if is_lost { 0 } else { CONTENTS }, "lost: {is_lost}");
}

/// Without a bound, two pinners could wait for each other forever.
const TRIES: u32 = 3;

fn pin(ledger: &Ledger, holder: u32) {
    let mut backoff = Backoff::default();
    for _ in 0..TRIES {
        match try_pin(ledger, holder, 0) {
            Tried::Pinned { word, .. } => {
                is_as_told(ledger, word.is_lost());
                is_as_told(ledger, word.is_lost());
                unpin(ledger, holder, 0);
                return;
            }
            Tried::Purging => wait(ledger, &mut backoff),
            Tried::Exhausted => panic!("two pins at most"),
        }
    }
}

fn unmark(ledger: &Ledger) {
    let mut backoff = Backoff::default();
    let idle = |word: Word| (!word.is_purging()).then(|| word.ended());
    while change(ledger.word(0), idle).is_err() {
        wait(ledger, &mut backoff);
    }
    let told = change(ledger.word(0), |word| word.is_lost().then(|| word.unmarked()));
    is_as_told(ledger, told.is_ok());
    is_as_told(ledger, told.is_ok());
}

fn is_settled(ledger: &Ledger) {
    let word = Word(ledger.word(0).load(Ordering::SeqCst));
    assert!(!word.is_purging() && word.is_present() != (ledger.data.load(Ordering::SeqCst) == 0));
    for holder in 0..ledger.holders() {
        assert_eq!(ledger.counts(holder, 0).load(Ordering::SeqCst), 0, "a count is left");
    }
}

fn with_a_purger(killed: Killed, preemptions: usize, other: fn(&Ledger)) {
    explore(preemptions, move || {
        let ledger = ledger();
        let purger = Arc::clone(&ledger);
        let purger = thread::spawn(move || purge(&purger, killed));
        other(&ledger);
        purger.join().unwrap();
        finish(&ledger, all()).unwrap();
        is_settled(&ledger);
    });
}

#[test]
fn what_is_pinned_stays() {
    with_a_purger(Killed::Never, 4, |ledger| pin(ledger, 0));
}

#[test]
fn what_is_unmarked_is_lost_or_there() {
    with_a_purger(Killed::Never, 4, unmark);
}

#[test]
fn a_purge_is_finished_where_its_purger_was_killed() {
    for killed in [Killed::BeforePunch, Killed::AfterPunch] {
        with_a_purger(killed, 4, |ledger| pin(ledger, 1));
        with_a_purger(killed, 4, unmark);
    }
}

#[test]
fn pinners_that_meet_a_killed_purger_agree() {
    for killed in [Killed::BeforePunch, Killed::AfterPunch] {
        explore(2, move || {
            let ledger = ledger();
            let threads: Vec<_> = (0..2)
                .map(|holder| {
                    let ledger = Arc::clone(&ledger);
                    thread::spawn(move || pin(&ledger, holder))
                })
                .collect();
            purge(&ledger, killed);
            be_killed(Killed::Never);
            threads.into_iter().for_each(|thread| thread.join().unwrap());
            finish(&ledger, all()).unwrap();
            is_settled(&ledger);
        });
    }
}

#[test]
fn a_pin_ends_with_its_process() {
    explore(4, || {
        let ledger = ledger();
        let pinner = Arc::clone(&ledger);
        let pinner = thread::spawn(move || {
            let tried = try_pin(&pinner, 0, 0);
            if let Tried::Pinned { word, .. } = tried {
                is_as_told(&pinner, word.is_lost());
            }
            pinner.kill(0);
        });
        purge(&ledger, Killed::Never);
        pinner.join().unwrap();
        purge(&ledger, Killed::Never);
        assert_eq!(ledger.data.load(Ordering::SeqCst), 0, "a dead one's pin");
    });
}

#[test]
#[should_panic(expected = "lost: false")]
fn a_pin_that_is_counted_late_keeps_nothing() {
    with_a_purger(Killed::Never, 4, |ledger| {
        let word = Word(ledger.word(0).load(Ordering::SeqCst));
        if !word.is_purging() {
            ledger.counts(0, 0).fetch_add(1, Ordering::SeqCst);
            after_exchange();
            is_as_told(ledger, word.is_lost());
            unpin(ledger, 0, 0);
        }
    });
}

/// `finish_at_once` finishes a killed purger's work in one step, so it wrongly keeps a granule
/// pinned after the punch.
#[test]
#[should_panic(expected = "lost: false")]
fn a_purge_in_one_step_cannot_be_finished() {
    fn finish_at_once(ledger: &Ledger) {
        let word = Word(ledger.word(0).load(Ordering::SeqCst));
        let next = match word.is_claimed() {
            false => return,
            true if is_pinned(ledger, 0).unwrap() => word.unclaimed(),
            true => {
                ledger.punch(all()).unwrap();
                word.doomed().purged()
            }
        };
        ledger.word(0).store(next.0, Ordering::SeqCst);
    }
    fn pin_at_once(ledger: &Ledger, holder: u32) {
        let mut backoff = Backoff::default();
        for _ in 0..TRIES {
            if let Tried::Pinned { word, .. } = try_pin(ledger, holder, 0) {
                is_as_told(ledger, word.is_lost());
                unpin(ledger, holder, 0);
                return;
            }
            if ledger.try_lock() {
                finish_at_once(ledger);
                ledger.unlock();
            }
            backoff.wait();
        }
    }
    explore(3, || {
        let ledger = ledger();
        assert!(claim(&ledger, 0, marked()));
        ledger.punch(all()).unwrap();
        let other = Arc::clone(&ledger);
        let other = thread::spawn(move || pin_at_once(&other, 1));
        pin_at_once(&ledger, 0);
        other.join().unwrap();
    });
}
