//! The protocol between pins and purges.
//!
//! A *pinner* increments its count in its process's table, then loads the granule's word. A
//! *purger* claims the word, then looks at the tables. All four steps are sequentially consistent,
//! so at least one sees the other: the pinner removes its count and waits, or the purger ends its
//! claim. Without a pin the purger dooms the granule, whose bytes may then be freed. The next owner
//! of a dead process's table first clears the counts.
//!
//! Lock: [`claim`] and [`finish`] need the purge lock.

use super::ledger::Ledger;
use super::word::{change, Word};
use glebe_os::error::OsError;
use glebe_os::extent::Extent;
use glebe_os::internal::extents::push;
use glebe_os::internal::sync::{after_exchange, MappedWord, Ordering};

pub(crate) const PINS_MAX: u64 = u16::MAX as u64;
/// Counts in a word.
pub(crate) const COUNTS: u64 = 4;
const COUNT_BITS: u64 = u64::BITS as u64 / COUNTS;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Tried {
    /// `is_first`: the holder had no other pin on the granule.
    Pinned {
        word: Word,
        is_first: bool,
    },
    /// A purge of the granule is under way, or its purger was killed.
    Purging,
    Exhausted,
}

fn count_of(word: u64, index: u64) -> u64 {
    word >> shift(index) & PINS_MAX
}

fn shift(index: u64) -> u64 {
    index % COUNTS * COUNT_BITS
}

#[inline]
pub(crate) fn try_pin(ledger: &Ledger, holder: u32, index: u64) -> Tried {
    let counts = ledger.counts(holder, index);
    let more = |now| (count_of(now, index) < PINS_MAX).then(|| now + (1 << shift(index)));
    let Ok(before) = counts.fetch_update(Ordering::SeqCst, Ordering::Relaxed, more) else {
        return Tried::Exhausted;
    };
    after_exchange();
    let word = Word(ledger.word(index).load(Ordering::SeqCst));
    if word.is_purging() {
        unpin(ledger, holder, index);
        return Tried::Purging;
    }
    Tried::Pinned { word, is_first: count_of(before, index) == 0 }
}

/// Returns true if this was the holder's last pin.
#[inline]
pub(crate) fn unpin(ledger: &Ledger, holder: u32, index: u64) -> bool {
    let counts = ledger.counts(holder, index);
    let fewer = |now| (count_of(now, index) > 0).then(|| now - (1 << shift(index)));
    let done = counts.fetch_update(Ordering::Release, Ordering::Relaxed, fewer);
    done.is_ok_and(|before| count_of(before, index) == 1)
}

pub(crate) fn pins(counts: &MappedWord, index: u64) -> u64 {
    count_of(counts.load(Ordering::SeqCst), index)
}

pub(crate) fn pinned_in(counts: &MappedWord) -> u64 {
    let word = counts.load(Ordering::Relaxed);
    (0..COUNTS).filter(|at| count_of(word, *at) > 0).count() as u64
}

pub(crate) fn claim(ledger: &Ledger, index: u64, seen: Word) -> bool {
    let (order, word) = (Ordering::SeqCst, ledger.word(index));
    seen.is_candidate() && word.compare_exchange(seen.0, seen.claimed().0, order, order).is_ok()
}

pub(crate) fn is_pinned(ledger: &Ledger, index: u64) -> Result<bool, OsError> {
    after_exchange();
    for holder in 0..ledger.holders() {
        let counted = ledger.is_used(holder)
            && ledger.has_counts(holder, index)?
            && pins(ledger.counts(holder, index), index) > 0;
        if counted && ledger.is_alive(holder)? {
            return Ok(true);
        }
    }
    Ok(false)
}

/// Frees doomed granules and claimed granules without pins, also of a killed purger. Returns how
/// many.
pub(crate) fn finish(ledger: &Ledger, granules: Extent) -> Result<u64, OsError> {
    let mut doomed = Vec::new();
    for index in granules.start()..granules.end() {
        if is_doomed(ledger, index)? {
            Extent::new(index, 1).into_iter().for_each(|one| push(&mut doomed, one));
        }
    }
    let mut gone = 0;
    for run in doomed {
        ledger.step();
        ledger.punch(run)?;
        for index in run.start()..run.end() {
            ledger.step();
            let purged = |word: Word| word.is_doomed().then(|| word.purged());
            let _ = change(ledger.word(index), purged);
        }
        gone += run.len();
    }
    Ok(gone)
}

/// Dooms a claimed granule without pins; otherwise ends the claim. Returns true if its bytes may be
/// freed.
fn is_doomed(ledger: &Ledger, index: u64) -> Result<bool, OsError> {
    let at = ledger.word(index);
    let word = Word(at.load(Ordering::SeqCst));
    if !word.is_claimed() {
        return Ok(word.is_doomed());
    }
    ledger.step();
    let next = if is_pinned(ledger, index)? { word.unclaimed() } else { word.doomed() };
    let (order, seen) = (Ordering::SeqCst, Ordering::SeqCst);
    Ok(at.compare_exchange(word.0, next.0, order, seen).is_ok() && next.is_doomed())
}
