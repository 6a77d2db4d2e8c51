//! Sheds granules for a reclaimer, the oldest of a priority first.
//!
//! [`Queue`] keeps the first candidates of one priority between sheds, because a scan reads every
//! granule's [`Word`]. A purge checks each word again. Times are of the machine's clock; granules
//! of `Order::Lifo` have negative times, and count as oldest. Lock: the queue's, before the purge
//! lock.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use super::protocol::is_pinned;
use super::purge::{self, candidates, ByLevel, Candidate};
use super::purger::Purger;
use super::word::Word;
use crate::shed::Shed;
use crate::{Error, Priority};
use glebe_os::extent::Extent;
use glebe_os::internal::sync::{lock, First};
use glebe_os::internal::sys::machine::uptime;
use glebe_os::internal::sys::processes::claim::Holder;
use glebe_os::units::Bytes;

/// Instant when the machine's clock was 0, the same for all files.
static ZERO: First<Instant> = First::new();

fn zero() -> Instant {
    let now = Instant::now();
    now.checked_sub(Duration::from_micros(uptime::micros())).unwrap_or(now)
}

/// Pause between looks, as a multiple of the last look's duration.
const REST: u32 = 8;
/// Longest pause, because a look may have been slow only for lack of a processor.
const REST_MAX: Duration = Duration::from_millis(500);

/// A granule that a purge takes next. Values sort in the order of purging.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[non_exhaustive]
pub struct Next {
    /// Priority.
    pub priority: Priority,
    /// Place within the priority; lower keys go first. Comparable between files.
    pub key: u64,
    /// Length in bytes.
    pub len: Bytes,
}

#[derive(Debug)]
pub(super) struct Queue {
    zero: Instant,
    looked: Option<Instant>,
    took: Duration,
    sheddable: ByLevel<Bytes>,
    oldest: ByLevel<Option<i64>>,
    /// Priority of `first`. More candidates may follow after `behind`.
    level: Option<Priority>,
    first: VecDeque<(Candidate, Word)>,
    behind: Option<Candidate>,
}

impl Queue {
    pub(super) fn new() -> Self {
        Self {
            zero: *ZERO.get_or_compute(zero),
            looked: None,
            took: Duration::ZERO,
            sheddable: ByLevel::default(),
            oldest: ByLevel::default(),
            level: None,
            first: VecDeque::new(),
            behind: None,
        }
    }

    fn forget(&mut self) {
        (self.level, self.behind) = (None, None);
        self.first.clear();
    }

    fn time(&self, micros: i64) -> Instant {
        let distance = Duration::from_micros(micros.unsigned_abs());
        let time = match micros {
            0.. => self.zero.checked_add(distance),
            _ => self.zero.checked_sub(distance),
        };
        time.unwrap_or(self.zero)
    }

    fn micros(&self, time: Instant) -> i64 {
        let most = |distance: Duration| i64::try_from(distance.as_micros()).unwrap_or(i64::MAX);
        match time.checked_duration_since(self.zero) {
            Some(after) => most(after),
            None => {
                let before = self.zero.saturating_duration_since(time);
                -most(before + Duration::from_nanos(999))
            }
        }
    }

    fn next(&self) -> Option<i64> {
        self.first.front().map(|(candidate, _)| candidate.key.micros())
    }

    fn until(&self, last: i64) -> usize {
        self.first.partition_point(|(candidate, _)| candidate.key.micros() <= last)
    }
}

impl Purger {
    /// Returns the granules that a purge of `target` bytes, rounded up to granules, would take, in
    /// order.
    ///
    /// # Errors
    /// As [`Purger::look`].
    pub fn next(&self, target: Bytes) -> Result<Vec<Next>, Error> {
        self.begin()?;
        let (ledger, granule) = (self.ledger(), self.granule());
        let (mut next, mut behind) = (Vec::new(), None);
        let mut missing = target.get().div_ceil(granule.get());
        if !ledger.has_holder()? {
            return Ok(next);
        }
        let levels = Priority::LOWEST..=Priority::HIGHEST;
        while missing > 0 {
            let first = candidates(ledger, missing, levels.clone(), self.all()?, behind)?;
            let Some((last, _)) = first.last() else { break };
            behind = Some(*last);
            for (Candidate { priority, key, index }, _) in first {
                if !is_pinned(ledger, index)? {
                    next.push(Next { priority, key: key.get(), len: granule });
                    missing -= 1;
                }
            }
        }
        ledger.whole()?;
        Ok(next)
    }

    fn shed_of(
        &self,
        queue: &mut Queue,
        priority: Priority,
        most: Bytes,
        until: Option<Instant>,
    ) -> Result<Bytes, Error> {
        self.begin()?;
        let (ledger, granule) = (self.ledger(), self.granule().get());
        let busy = Error::Busy { what: "a purge", waited: Duration::ZERO };
        let lock = purge::try_lock(ledger)?.ok_or(busy)?;
        let most = most.get().div_ceil(granule);
        if queue.level != Some(priority) {
            queue.forget();
            queue.level = Some(priority);
            if !ledger.has_holder()? {
                return Ok(Bytes::ZERO);
            }
            lock.finish_left(ledger)?;
            self.fill(queue, priority, most)?;
        }
        let Some(first) = queue.next() else { return Ok(Bytes::ZERO) };
        let last = until.map_or(i64::MAX, |until| queue.micros(until)).max(first);
        let mut freed = 0;
        while freed < most && queue.next().is_some_and(|next| next <= last) {
            let some = u64::try_from(queue.until(last)).unwrap_or(u64::MAX).min(most - freed);
            let mut part: Vec<_> = queue.first.drain(..some as usize).collect();
            let gone = lock.take_all(ledger, &mut part)?;
            self.count(priority, Bytes::new(gone * granule));
            freed += gone;
            if queue.first.is_empty() {
                self.fill(queue, priority, (most - freed).max(1))?;
            }
        }
        ledger.whole()?;
        Ok(Bytes::new(freed * granule))
    }

    fn fill(&self, queue: &mut Queue, priority: Priority, most: u64) -> Result<(), Error> {
        let levels = priority..=priority;
        let found = candidates(self.ledger(), most, levels, self.all()?, queue.behind)?;
        queue.behind = found.last().map(|(last, _)| *last).or(queue.behind);
        queue.first = found.into();
        Ok(())
    }

    fn all(&self) -> Result<Extent, Error> {
        Extent::new(0, self.ledger().layout().granules).ok_or(Error::Empty)
    }
}

impl Shed for Purger {
    fn claim_for(&self, holder: Holder) -> Result<bool, Error> {
        Ok(self.taken.take(holder))
    }

    fn release(&self, holder: Holder) {
        self.taken.release(holder);
    }

    /// Answers from the last look for up to [`REST_MAX`].
    fn sheddable(&self) -> [Bytes; Priority::COUNT] {
        let (queue, begin) = (&mut *lock(&self.queue), Instant::now());
        let rest = (queue.took * REST).min(REST_MAX);
        if queue.looked.is_some_and(|looked| begin.saturating_duration_since(looked) < rest) {
            return queue.sheddable;
        }
        queue.forget();
        let look = self.look().unwrap_or_default();
        // Marked granules may have absent pages.
        let mut there = self.ledger().file().allocated().unwrap_or(Bytes::ZERO);
        queue.sheddable = look.marked_bytes.map(|marked| {
            let marked = marked.min(there);
            there = there - marked;
            marked
        });
        queue.oldest = look.oldest.map(|key| key.map(super::word::micros_of));
        let end = Instant::now();
        (queue.looked, queue.took) = (Some(end), end.saturating_duration_since(begin));
        queue.sheddable
    }

    fn oldest(&self, priority: Priority) -> Option<Instant> {
        let queue = lock(&self.queue);
        queue.oldest[priority.place()].map(|micros| queue.time(micros))
    }

    fn shed(
        &self,
        priority: Priority,
        most: Bytes,
        until: Option<Instant>,
    ) -> Result<Bytes, Error> {
        let queue = &mut *lock(&self.queue);
        let place = priority.place();
        queue.oldest[place] = None;
        let shed = self.shed_of(queue, priority, most, until).inspect_err(|_| queue.forget())?;
        queue.oldest[place] = queue.next();
        queue.sheddable[place] = queue.sheddable[place].saturating_sub(shed);
        Ok(shed)
    }
}
