//! What a reclaimer takes of a file in turn with its other parts: the oldest of a priority, as
//! long as no other part has older.
//!
//! [`Queue`] keeps the first candidates of one priority from one shed to the next: a scan of all
//! words, O(granules), is due once a priority and look and not once a turn. What it says may be
//! out of date; a purge looks at each word again. A look at a large file is repeated only after a
//! rest that is some times as long. Ages are on the scale of the machine's clock, what is last in,
//! first out before all else. Lock: the queue's, before the purge lock.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use super::protocol::is_pinned;
use super::purge::{self, candidates, ByLevel, Candidate};
use super::purger::Purger;
use super::word::Word;
use crate::extent::Extent;
use crate::sync::{lock, First};
use crate::sys::uptime;
use crate::units::Bytes;
use crate::volatile::{Error, Priority};

/// When the machine's clock was 0, the same for all files.
static ZERO: First<Instant> = First::new();

fn zero() -> Instant {
    let now = Instant::now();
    now.checked_sub(Duration::from_micros(uptime::micros())).unwrap_or(now)
}

/// A look is not repeated before it has been so many times as long as it took.
const REST: u32 = 8;
/// Nor much longer: it may have taken so long for want of a processor.
const REST_MAX: Duration = Duration::from_millis(500);

/// What a purge takes next: in the order of these.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[non_exhaustive]
pub struct Next {
    /// Its priority.
    pub priority: Priority,
    /// Its place within the priority, comparable with that of other files of the machine.
    pub key: u64,
    /// How much it is.
    pub len: Bytes,
}

/// See the module.
#[derive(Debug)]
pub(super) struct Queue {
    /// When the machine's clock was 0.
    zero: Instant,
    looked: Option<Instant>,
    took: Duration,
    sheddable: ByLevel<Bytes>,
    oldest: ByLevel<Option<i64>>,
    /// The first candidates of a priority, and the one behind which there may be more.
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

    /// The time of a place in the order.
    fn time(&self, micros: i64) -> Instant {
        let distance = Duration::from_micros(micros.unsigned_abs());
        let time = match micros {
            0.. => self.zero.checked_add(distance),
            _ => self.zero.checked_sub(distance),
        };
        time.unwrap_or(self.zero)
    }

    /// The last place in the order that is not behind a time.
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

    /// Where the next candidate stands.
    fn next(&self) -> Option<i64> {
        self.first.front().map(|(candidate, _)| candidate.key.micros())
    }

    /// How many of the first stand no later than `last`.
    fn until(&self, last: i64) -> usize {
        self.first.partition_point(|(candidate, _)| candidate.key.micros() <= last)
    }
}

impl Purger {
    /// What a purge of `target` bytes would take now, in order; the last may be more than is
    /// missing. For this file alone: the order of several is that of their lists, sorted.
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

    /// What it could shed of each priority; nothing where it cannot be looked at.
    pub(crate) fn sheddable(&self) -> [Bytes; Priority::COUNT] {
        let (queue, begin) = (&mut *lock(&self.queue), Instant::now());
        let rest = (queue.took * REST).min(REST_MAX);
        if queue.looked.is_some_and(|looked| begin.saturating_duration_since(looked) < rest) {
            return queue.sheddable;
        }
        queue.forget();
        let look = self.look().unwrap_or_default();
        // Words may say that there is more than the file has.
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

    /// When the oldest of a priority was marked, as of the last look and what was shed since.
    pub(crate) fn oldest(&self, priority: Priority) -> Option<Instant> {
        let queue = lock(&self.queue);
        queue.oldest[priority.place()].map(|micros| queue.time(micros))
    }

    /// Purges the oldest of a priority, up to `most`, rounded up to a granule; of what was marked
    /// after `until` nothing but the first. Where it fails, or finds nothing, it says until the
    /// next look that there is none.
    pub(crate) fn shed(
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

    /// Puts the next candidates into the queue, which is empty.
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
