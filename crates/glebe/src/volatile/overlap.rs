//! Unmarks under way at once: each is told what an overlapping one found lost before either
//! returned.
//!
//! Without it the later of two overlapping unmarks would find the zeros that the first left for
//! a lost page, and call them kept. Time is a counter that each call moves on when it begins and
//! when it returns. A loss is kept while a call is under way that began before its finder
//! returned. One lock, held for a few instructions; calls are few, so lists do.
//!
//! A child has none of the calls under way in its parent: what these found lost, and no call that
//! has returned was told, is told by the child's next unmark of it.

use super::resident::without;
use crate::extent::Extent;
use crate::sync::{lock, Mutex, MutexGuard};

/// What one unmark found lost.
#[derive(Debug)]
struct Loss {
    /// When its finder began, which names it.
    finder: u64,
    /// When its finder returned.
    returned: Option<u64>,
    runs: Vec<Extent>,
    /// Others that were told of what lies in an extent of theirs: when they began.
    told: Vec<(u64, Extent)>,
    /// What of the runs no call that has returned was told of.
    untold: Vec<Extent>,
}

#[derive(Debug, Default)]
pub(super) struct Log {
    time: u64,
    /// When the calls under way began.
    under_way: Vec<u64>,
    losses: Vec<Loss>,
    /// Lost before this process was forked, and told to nobody.
    untold: Vec<Extent>,
}

/// The unmarks of one region.
#[derive(Debug)]
pub(super) struct Calls {
    log: Mutex<Log>,
}

/// An unmark under way; it returns when this is dropped.
#[derive(Debug)]
pub(super) struct Call<'a> {
    calls: &'a Calls,
    began: u64,
}

impl Calls {
    pub(super) fn new() -> Self {
        Self { log: Mutex::new(Log::default()) }
    }

    /// An unmark begins; before it waits for the region's lock.
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
        let cut_short = self.losses.drain(..).filter(|loss| loss.returned.is_none());
        self.untold.extend(cut_short.flat_map(|loss| loss.untold));
        self.under_way.clear();
    }
}

impl Call<'_> {
    /// Adds to `lost` what others found lost in `extent`, then keeps all of it for others. Under
    /// the region's lock, after the pages were looked at.
    pub(super) fn share(&self, extent: Extent, lost: &mut Vec<Extent>) {
        let mut log = lock(&self.calls.log);
        let log = &mut *log;
        lost.extend(within(&log.untold, extent));
        log.untold = without(std::mem::take(&mut log.untold), &[extent]);
        let own = lost.clone();
        for loss in &mut log.losses {
            // Returned before this began: its caller knew, and this one may rely on that.
            if loss.returned.is_none_or(|returned| returned > self.began) {
                lost.extend(within(&loss.runs, extent));
                loss.told.push((self.began, extent));
            }
        }
        if !own.is_empty() {
            let untold = own.clone();
            let (finder, told) = (self.began, Vec::new());
            log.losses.push(Loss { finder, returned: None, runs: own, told, untold });
        }
    }
}

impl Drop for Call<'_> {
    fn drop(&mut self) {
        let mut log = lock(&self.calls.log);
        log.time += 1;
        let now = log.time;
        log.under_way.retain(|began| *began != self.began);
        let oldest = log.under_way.iter().copied().min().unwrap_or(u64::MAX);
        for loss in &mut log.losses {
            if loss.finder == self.began {
                loss.returned = Some(now);
            }
            for (_, extent) in loss.told.iter().filter(|(caller, _)| *caller == self.began) {
                loss.untold = without(std::mem::take(&mut loss.untold), &[*extent]);
            }
        }
        log.losses.retain(|loss| loss.returned.is_none_or(|returned| returned > oldest));
    }
}

/// What of `runs` lies in `extent`.
fn within(runs: &[Extent], extent: Extent) -> impl Iterator<Item = Extent> + '_ {
    runs.iter().filter_map(move |run| run.intersection(extent))
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

    #[test]
    fn a_child_is_told_what_no_call_that_returned_was() {
        let calls = Calls::new();
        let (early, finder, other) = (calls.begin(), calls.begin(), calls.begin());
        early.share(extent(90, 1), &mut vec![extent(90, 1)]);
        finder.share(extent(0, 20), &mut vec![extent(2, 4), extent(10, 4)]);
        let mut told = Vec::new();
        other.share(extent(12, 8), &mut told);
        assert_eq!(told, [extent(12, 2)]);
        drop((early, other));
        let in_child = || lock(&calls.log).follow_fork();
        in_child();
        let (first, second) = (calls.begin(), calls.begin());
        let mut lost = vec![extent(0, 1)];
        first.share(extent(0, 4), &mut lost);
        assert_eq!(lost, [extent(0, 1), extent(2, 2)]);
        // In a child of the child the first one has not returned either.
        in_child();
        let mut lost = Vec::new();
        second.share(extent(0, 100), &mut lost);
        lost.sort_unstable();
        assert_eq!(lost, [extent(0, 1), extent(2, 2), extent(4, 2), extent(10, 2)]);
        drop((first, second, finder));
        let mut lost = Vec::new();
        calls.begin().share(extent(0, 100), &mut lost);
        assert_eq!(lost, []);
    }
}
