//! Unmarks under way at once: each is told what an overlapping one found lost before either
//! returned.
//!
//! Without it the later of two overlapping unmarks would find the zeros that the first left for
//! a lost page, and call them kept. Time is a counter that each call moves on when it begins and
//! when it returns. A loss is kept while a call is under way that began before its finder
//! returned. One lock, held for a few instructions; calls are few, so lists do.

use crate::extent::Extent;
use crate::sync::{lock, AtomicU64, Mutex, MutexGuard, Ordering};

/// What one unmark found lost.
#[derive(Debug)]
struct Loss {
    /// When its finder began, which names it.
    finder: u64,
    /// When its finder returned.
    returned: Option<u64>,
    runs: Vec<Extent>,
}

#[derive(Debug, Default)]
pub(super) struct Log {
    time: u64,
    /// When the calls under way began.
    under_way: Vec<u64>,
    losses: Vec<Loss>,
}

/// The unmarks of one region.
#[derive(Debug)]
pub(super) struct Calls {
    log: Mutex<Log>,
    /// How many losses the log holds: none, as a rule. Grows under the region's lock only.
    losses: AtomicU64,
}

/// An unmark under way; it returns when this is dropped.
#[derive(Debug)]
pub(super) struct Call<'a> {
    calls: &'a Calls,
    began: u64,
}

impl Calls {
    pub(super) fn new() -> Self {
        Self { log: Mutex::new(Log::default()), losses: AtomicU64::new(0) }
    }

    /// An unmark begins; before it waits for the region's lock.
    #[inline]
    pub(super) fn begin(&self) -> Call<'_> {
        let mut log = lock(&self.log);
        log.time += 1;
        let began = log.time;
        log.under_way.push(began);
        Call { calls: self, began }
    }

    /// The lock, held over a fork.
    pub(super) fn hold(&self) -> MutexGuard<'_, Log> {
        lock(&self.log)
    }
}

impl Log {
    /// In a child: the calls of the parent's other threads never return here.
    pub(super) fn follow_fork(&mut self) {
        *self = Self { time: self.time, ..Self::default() };
    }
}

impl Call<'_> {
    /// Adds to `lost` what others found lost in `extent`, then keeps all of it for others. Under
    /// the region's lock, after the pages were looked at.
    #[inline]
    pub(super) fn share(&self, extent: Extent, lost: &mut Vec<Extent>) {
        // What another found before is seen here: the region's lock lay between.
        if lost.is_empty() && self.calls.losses.load(Ordering::Acquire) == 0 {
            return;
        }
        let mut log = lock(&self.calls.log);
        let own = lost.clone();
        for loss in &log.losses {
            // Returned before this began: its caller knew, and this one may rely on that.
            if loss.returned.is_none_or(|returned| returned > self.began) {
                lost.extend(loss.runs.iter().filter_map(|run| run.intersection(extent)));
            }
        }
        if !own.is_empty() {
            log.losses.push(Loss { finder: self.began, returned: None, runs: own });
            self.calls.losses.store(log.losses.len() as u64, Ordering::Release);
        }
    }
}

impl Drop for Call<'_> {
    #[inline]
    fn drop(&mut self) {
        let mut log = lock(&self.calls.log);
        log.time += 1;
        let now = log.time;
        log.under_way.retain(|began| *began != self.began);
        if log.losses.is_empty() {
            return;
        }
        let oldest = log.under_way.iter().copied().min().unwrap_or(u64::MAX);
        for loss in log.losses.iter_mut().filter(|loss| loss.finder == self.began) {
            loss.returned = Some(now);
        }
        log.losses.retain(|loss| loss.returned.is_none_or(|returned| returned > oldest));
        self.calls.losses.store(log.losses.len() as u64, Ordering::Release);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn extent(start: u64, len: u64) -> Extent {
        Extent::new(start, len).unwrap()
    }

    #[test]
    fn a_loss_is_told_to_whoever_began_before_its_finder_returned() {
        let calls = Calls::new();
        let (first, second) = (calls.begin(), calls.begin());
        first.share(extent(0, 10), &mut vec![extent(3, 4)]);
        let third = calls.begin();
        drop(first);
        let fourth = calls.begin();
        for (call, told) in [(&second, true), (&third, true), (&fourth, false)] {
            let mut lost = Vec::new();
            call.share(extent(5, 10), &mut lost);
            assert_eq!(lost, if told { vec![extent(5, 2)] } else { vec![] });
        }
        drop((second, third));
        assert!(lock(&calls.log).losses.is_empty());
        drop(fourth);
        assert!(lock(&calls.log).under_way.is_empty());
    }
}
