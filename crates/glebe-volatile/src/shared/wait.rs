//! Waits for a purger, and finishes its purge if it was killed.
//!
//! A waiter polls the word, because a purger notifies nobody. After a millisecond it also tries the
//! purge lock, which is free if the purger is dead. [`PATIENCE`] limits the wait for a stopped
//! purger.

use std::time::{Duration, Instant};

use super::holder::PATIENCE;
use super::ledger::Ledger;
use super::purge;
use super::word::{change, Word};
use crate::Error;
use glebe_os::extent::Extent;
use glebe_os::internal::sync::{Backoff, Ordering};
use glebe_os::units::Bytes;

const LEFT_ALONE: Duration = Duration::from_millis(1);

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

/// Waits for the end of the granule's purge, then changes the word. Returns the old word, even if
/// `with` refused.
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
