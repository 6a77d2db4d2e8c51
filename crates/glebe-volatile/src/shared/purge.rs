//! [`PurgeLock`] locks a byte of the file, so only one purger chooses and frees granules.
//!
//! A purge scans the granules' words, except holes, in O(granules). One call frees adjacent
//! granules; if the kernel refuses, the purge restores their words. Unit: granules.

use std::collections::BinaryHeap;
use std::ops::RangeInclusive;
use std::time::Duration;

use super::layout::{Field, Layout};
use super::ledger::Ledger;
use super::protocol::{claim, finish};
use super::word::{change, Key, Word};
use crate::{Error, Priority};
use glebe_os::extent::Extent;
use glebe_os::internal::sync::Ordering;
use glebe_os::internal::sys::files::ofd_lock::{is_locked, Description};
use glebe_os::units::Bytes;

/// Maximum bytes, or one granule, freed by a call, because pins wait for it.
const RUN_MAX: u64 = 8 << 20;

#[derive(Debug)]
pub(super) struct PurgeLock(Description);

/// Sorts in the order of purging.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Candidate {
    pub(super) priority: Priority,
    pub(super) key: Key,
    pub(super) index: u64,
}

pub(super) type ByLevel<T> = [T; Priority::COUNT];

pub(super) fn try_lock(ledger: &Ledger) -> Result<Option<PurgeLock>, Error> {
    let file = ledger.file().as_file();
    if is_locked(file, Layout::PURGE..Layout::PURGE + 1)? {
        return Ok(None);
    }
    let description = Description::reopen(file)?;
    Ok(description.try_lock(Layout::PURGE)?.then_some(PurgeLock(description)))
}

pub(super) fn lock(ledger: &Ledger, patience: Duration) -> Result<PurgeLock, Error> {
    let description = Description::reopen(ledger.file().as_file())?;
    if description.lock(Layout::PURGE, patience)? {
        Ok(PurgeLock(description))
    } else {
        Err(Error::Busy { what: "a purge", waited: patience })
    }
}

impl Drop for PurgeLock {
    fn drop(&mut self) {
        self.0.unlock(Layout::PURGE);
    }
}

impl PurgeLock {
    pub(super) fn finish(&self, ledger: &Ledger, granules: Extent) -> Result<u64, Error> {
        let freed = finish(ledger, granules)?;
        count(ledger, freed);
        Ok(freed)
    }

    pub(super) fn finish_left(&self, ledger: &Ledger) -> Result<(), Error> {
        for run in ledger.noted()? {
            for index in run.start()..run.end() {
                let is_left = Word(ledger.word(index).load(Ordering::SeqCst)).is_purging();
                if let Some(one) = Extent::new(index, 1).filter(|_| is_left) {
                    self.finish(ledger, one)?;
                }
            }
        }
        Ok(())
    }

    pub(super) fn purge(
        &self,
        ledger: &Ledger,
        target: u64,
        up_to: Priority,
        within: Extent,
    ) -> Result<ByLevel<u64>, Error> {
        let (mut freed, mut all, mut behind) = (ByLevel::default(), 0, None);
        while all < target {
            let levels = Priority::LOWEST..=up_to;
            let mut first = candidates(ledger, target - all, levels, within, behind)?;
            let Some(last) = first.last() else { break };
            behind = Some(last.0);
            for level in first.chunk_by_mut(|(a, _), (b, _)| a.priority == b.priority) {
                let priority = level[0].0.priority;
                match self.take_all(ledger, level) {
                    Ok(gone) => {
                        (freed[priority.place()], all) =
                            (freed[priority.place()] + gone, all + gone)
                    }
                    Err(error) if all == 0 => return Err(error),
                    Err(_) => return Ok(freed), // the next call returns the error
                }
            }
        }
        Ok(freed)
    }

    /// Frees granules without pins. Returns how many; an error only if none was freed.
    pub(super) fn take_all(
        &self,
        ledger: &Ledger,
        all: &mut [(Candidate, Word)],
    ) -> Result<u64, Error> {
        let mut freed = 0;
        all.sort_unstable_by_key(|(candidate, _)| candidate.index);
        for run in all.chunk_by(|(a, _), (b, _)| a.index + 1 == b.index) {
            for part in run.chunks((RUN_MAX / ledger.layout().granule).max(1) as usize) {
                match self.take(ledger, part) {
                    Ok(gone) => freed += gone,
                    Err(error) if freed == 0 => return Err(error),
                    Err(_) => return Ok(freed),
                }
            }
        }
        Ok(freed)
    }

    fn take(&self, ledger: &Ledger, run: &[(Candidate, Word)]) -> Result<u64, Error> {
        let [(first, _), ..] = run else { return Ok(0) };
        let Some(granules) = Extent::new(first.index, run.len() as u64) else { return Ok(0) };
        let claimed: Vec<_> = run.iter().map(|(at, seen)| claim(ledger, at.index, *seen)).collect();
        self.finish(ledger, granules).inspect_err(|_| {
            for ((at, seen), _) in run.iter().zip(claimed).filter(|(_, claimed)| *claimed) {
                let _ = change(ledger.word(at.index), |word| word.is_purging().then_some(*seen));
            }
        })
    }
}

pub(super) fn candidates(
    ledger: &Ledger,
    most: u64,
    levels: RangeInclusive<Priority>,
    within: Extent,
    behind: Option<Candidate>,
) -> Result<Vec<(Candidate, Word)>, Error> {
    let most = usize::try_from(most).unwrap_or(usize::MAX);
    let mut first = BinaryHeap::new();
    for run in ledger.noted()?.iter().filter_map(|run| run.intersection(within)) {
        for index in run.start()..run.end() {
            let word = Word(ledger.word(index).load(Ordering::SeqCst));
            let (priority, key) = (word.priority(), word.key());
            let candidate = Candidate { priority, key, index };
            let is_one = word.is_candidate() && levels.contains(&priority);
            if !is_one || behind.is_some_and(|behind| candidate <= behind) {
                continue;
            }
            let entry = (candidate, word.0);
            if first.len() < most {
                first.push(entry);
            } else if let Some(mut last) = first.peek_mut().filter(|last| entry < **last) {
                *last = entry;
            }
        }
    }
    Ok(first.into_sorted_vec().into_iter().map(|(at, word)| (at, Word(word))).collect())
}

pub(super) fn purge(
    ledger: &Ledger,
    target: Bytes,
    up_to: Priority,
) -> Result<ByLevel<Bytes>, Error> {
    let granule = ledger.layout().granule;
    let lock = try_lock(ledger)?.ok_or(Error::Busy { what: "a purge", waited: Duration::ZERO })?;
    lock.finish_left(ledger)?;
    let all = Extent::new(0, ledger.layout().granules).ok_or(Error::Empty)?;
    // A file that nobody uses holds nothing volatile.
    if !ledger.has_holder()? {
        return Ok(ByLevel::default());
    }
    let freed = lock.purge(ledger, target.get().div_ceil(granule), up_to, all)?;
    Ok(freed.map(|granules| Bytes::new(granules * granule)))
}

fn count(ledger: &Ledger, freed: u64) {
    if freed > 0 {
        let bytes = freed * ledger.layout().granule;
        ledger.field(Field::PurgedBytes).fetch_add(bytes, Ordering::Relaxed);
        ledger.field(Field::Purges).fetch_add(1, Ordering::Relaxed);
    }
}
