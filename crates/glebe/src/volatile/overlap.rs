//! Unmarks under way at once: each is told what an overlapping one found lost before either
//! returned.
//!
//! Without it the later of two overlapping unmarks would find the zeros that the first left for
//! a lost page, and call them kept. Time is a counter that each call moves on when it begins and
//! when it returns. A loss is kept while a call is under way that began before its finder
//! returned. One lock, held for a few instructions, after the region's where both are; calls are
//! few, so lists do. A call that has not to wait for the region's lock and finds no loss, its own or
//! another's, leaves the log alone.

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
    /// None while no other call has to know of this one.
    began: Option<u64>,
}

impl Calls {
    pub(super) fn new() -> Self {
        Self { log: Mutex::new(Log::default()), losses: AtomicU64::new(0) }
    }

    /// An unmark begins; before it waits for the region's lock.
    #[inline]
    pub(super) fn begin(&self) -> Call<'_> {
        Call { calls: self, began: Some(self.list()) }
    }

    /// An unmark begins that had not to wait: the caller holds the region's lock alone. Nobody
    /// adds a loss until it is released, so there is nothing to be told where there is none now.
    #[inline]
    pub(super) fn begin_held(&self) -> Call<'_> {
        let is_told = self.losses.load(Ordering::Acquire) != 0;
        Call { calls: self, began: is_told.then(|| self.list()) }
    }

    /// Lists a call; the time.
    fn list(&self) -> u64 {
        let mut log = lock(&self.log);
        log.time += 1;
        let began = log.time;
        log.under_way.push(began);
        began
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
    pub(super) fn share(&mut self, extent: Extent, lost: &mut Vec<Extent>) {
        // What another found before is seen here: the region's lock lay between.
        if lost.is_empty() && self.calls.losses.load(Ordering::Acquire) == 0 {
            return;
        }
        let began = *self.began.get_or_insert_with(|| self.calls.list());
        let mut log = lock(&self.calls.log);
        let own = lost.clone();
        for loss in &log.losses {
            // Returned before this began: its caller knew, and this one may rely on that.
            if loss.returned.is_none_or(|returned| returned > began) {
                lost.extend(loss.runs.iter().filter_map(|run| run.intersection(extent)));
            }
        }
        if !own.is_empty() {
            log.losses.push(Loss { finder: began, returned: None, runs: own });
            self.calls.losses.store(log.losses.len() as u64, Ordering::Release);
        }
    }
}

impl Drop for Call<'_> {
    #[inline]
    fn drop(&mut self) {
        let Some(began) = self.began else { return };
        let mut log = lock(&self.calls.log);
        log.time += 1;
        let now = log.time;
        log.under_way.retain(|other| *other != began);
        if log.losses.is_empty() {
            return;
        }
        let oldest = log.under_way.iter().copied().min().unwrap_or(u64::MAX);
        for loss in log.losses.iter_mut().filter(|loss| loss.finder == began) {
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
        let (mut first, mut second) = (calls.begin(), calls.begin());
        first.share(extent(0, 10), &mut vec![extent(3, 4)]);
        let mut third = calls.begin();
        drop(first);
        let mut fourth = calls.begin();
        for (call, told) in [(&mut second, true), (&mut third, true), (&mut fourth, false)] {
            let mut lost = Vec::new();
            call.share(extent(5, 10), &mut lost);
            assert_eq!(lost, if told { vec![extent(5, 2)] } else { vec![] });
        }
        drop((second, third));
        assert!(lock(&calls.log).losses.is_empty());
        drop(fourth);
        assert!(lock(&calls.log).under_way.is_empty());
    }

    #[test]
    fn a_call_that_need_not_wait_is_told_and_tells() {
        let calls = Calls::new();
        let quiet = calls.begin_held();
        assert!(quiet.began.is_none());
        drop(quiet);
        let waits = calls.begin();
        let mut finder = calls.begin_held();
        finder.share(extent(0, 10), &mut vec![extent(3, 4)]);
        let meanwhile = calls.begin_held();
        drop(finder);
        let afterwards = calls.begin_held();
        for (call, told) in [(waits, true), (meanwhile, true), (afterwards, false)] {
            let (mut call, mut lost) = (call, Vec::new());
            call.share(extent(5, 10), &mut lost);
            assert_eq!(lost, if told { vec![extent(5, 2)] } else { vec![] });
        }
        assert_eq!(calls.losses.load(Ordering::Relaxed), 0);
        assert!(calls.begin_held().began.is_none());
    }
}
