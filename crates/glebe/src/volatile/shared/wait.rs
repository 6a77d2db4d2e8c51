//! Waiting for a purger, who lives and will be done, or was killed and is done for.
//!
//! Nobody is told when a purge ends; the words are looked at again and again. After a while whoever
//! waits asks for the purge lock: it is free if the purger is dead, and then the waiter finishes
//! what that one began. Bounds: a purge takes milliseconds; [`PATIENCE`] ends the wait for a
//! purger that lives and does nothing, as one that was stopped.

use std::time::{Duration, Instant};

use super::holder::PATIENCE;
use super::ledger::Ledger;
use super::purge;
use super::word::{change, Word};
use crate::extent::Extent;
use crate::sync::{Backoff, Ordering};
use crate::units::Bytes;
use crate::volatile::Error;

/// How long a purger is left alone.
const LEFT_ALONE: Duration = Duration::from_millis(1);

/// Waits until granule `index` is not purging; of `granules`, which hold it, those that a killed
/// purger left are finished as well.
#[cold]
pub(super) fn for_purge(ledger: &Ledger, index: u64, granules: Extent) -> Result<(), Error> {
    let (begin, mut backoff) = (Instant::now(), Backoff::default());
    while Word(ledger.word(index).load(Ordering::SeqCst)).is_purging() {
        let waited = begin.elapsed();
        if waited > LEFT_ALONE {
            match purge::try_lock(ledger)? {
                Some(lock) => drop(lock.finish(ledger, granules)?),
                None if waited > PATIENCE => {
                    let offset = Bytes::new(index * ledger.layout().granule);
                    return Err(Error::PurgeUnderWay { offset, waited });
                }
                None => {}
            }
        }
        backoff.wait();
    }
    Ok(())
}

/// Changes the word of a granule that is not purging as `with` says, until it says no; the word
/// before, or the one refused.
pub(super) fn change_idle(
    ledger: &Ledger,
    index: u64,
    granules: Extent,
    with: impl Fn(Word) -> Option<Word>,
) -> Result<Word, Error> {
    let idle = |word: Word| if word.is_purging() { None } else { with(word) };
    loop {
        match change(ledger.word(index), idle) {
            Ok((was, _)) => return Ok(was),
            Err(now) if !now.is_purging() => return Ok(now),
            Err(_) => for_purge(ledger, index, granules)?,
        }
    }
}
