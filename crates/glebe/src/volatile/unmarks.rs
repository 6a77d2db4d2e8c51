//! What unmarks find: [`Purged`], and [`Calls`], by which each of several under way at once is told
//! what an overlapping one found lost before either returned.
//!
//! Without it the later of two overlapping unmarks would find the zeros that the first left for
//! a lost page, and call them kept. Time is a counter that each call moves on when it begins and
//! when it returns. A loss is kept while a call is under way that began before its finder
//! returned. One lock, held for a few instructions, after the region's where both are; calls are
//! few, so lists do. A call that has not to wait for the region's lock and finds no loss, its own
//! or another's, leaves the log alone.
//!
//! A child has none of the calls under way in its parent: what these found lost, and no call that
//! has returned was told, is told by the child's next unmark of it.

use crate::extent::{merged, within, without, Extent};
use crate::sync::{lock, AtomicU64, Mutex, MutexGuard, Ordering};
use crate::units::Pages;

/// The pages that were lost, exactly: ascending runs with a page that was kept between any two.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[must_use = "the contents of these pages are gone"]
pub struct Purged {
    runs: Vec<Extent>,
}

impl Purged {
    /// From runs in any order, which may overlap.
    #[inline]
    pub(super) fn from_runs(runs: Vec<Extent>) -> Self {
        Self { runs: if runs.is_empty() { runs } else { merged(runs) } }
    }

    /// The runs of lost pages, in pages from the region's start.
    #[must_use]
    pub fn runs(&self) -> &[Extent] {
        &self.runs
    }

    /// How many pages were lost.
    #[must_use]
    pub fn pages(&self) -> Pages {
        Pages::new(self.runs.iter().map(|run| run.len()).sum())
    }

    /// Whether nothing was lost.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.runs.is_empty()
    }
}

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
    /// How many losses the log holds that somebody may have to be told: none, as a rule. Grows
    /// under the region's lock only.
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

    /// In a child: the calls of the parent's other threads never return here.
    pub(super) fn follow_fork(&self, log: &mut Log) {
        let cut_short = log.losses.drain(..).filter(|loss| loss.returned.is_none());
        log.untold.extend(cut_short.flat_map(|loss| loss.untold));
        log.under_way.clear();
        self.count(log);
    }

    /// Counts what the log, whose lock is held, has for those who call next.
    fn count(&self, log: &Log) {
        let losses = log.losses.len() + log.untold.len();
        self.losses.store(losses as u64, Ordering::Release);
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
        let log = &mut *lock(&self.calls.log);
        lost.extend(within(&log.untold, extent));
        log.untold = without(&log.untold, extent);
        let own = lost.clone();
        for loss in &mut log.losses {
            // Returned before this began: its caller knew, and this one may rely on that.
            if loss.returned.is_none_or(|returned| returned > began) {
                lost.extend(within(&loss.runs, extent));
                loss.told.push((began, extent));
            }
        }
        if !own.is_empty() {
            let untold = own.clone();
            let (finder, told) = (began, Vec::new());
            log.losses.push(Loss { finder, returned: None, runs: own, told, untold });
        }
        self.calls.count(log);
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
        let log = &mut *log;
        let oldest = log.under_way.iter().copied().min().unwrap_or(u64::MAX);
        for loss in &mut log.losses {
            if loss.finder == began {
                loss.returned = Some(now);
            }
            for (_, extent) in loss.told.iter().filter(|(caller, _)| *caller == began) {
                loss.untold = without(&loss.untold, *extent);
            }
        }
        log.losses.retain(|loss| loss.returned.is_none_or(|returned| returned > oldest));
        self.calls.count(log);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn extent(start: u64, len: u64) -> Extent {
        Extent::new(start, len).unwrap()
    }

    #[test]
    fn runs_are_merged_and_in_order() {
        let purged =
            Purged::from_runs(vec![extent(8, 2), extent(1, 2), extent(2, 3), extent(5, 1)]);
        assert_eq!(purged.runs(), [extent(1, 5), extent(8, 2)]);
        assert_eq!(purged.pages(), Pages::new(7));
        assert!(Purged::from_runs(Vec::new()).is_empty());
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
    fn a_child_is_told_what_no_call_that_returned_was() {
        let calls = Calls::new();
        let (mut early, mut finder, mut other) = (calls.begin(), calls.begin(), calls.begin());
        early.share(extent(90, 1), &mut vec![extent(90, 1)]);
        finder.share(extent(0, 20), &mut vec![extent(2, 4), extent(10, 4)]);
        let mut told = Vec::new();
        other.share(extent(12, 8), &mut told);
        assert_eq!(told, [extent(12, 2)]);
        drop((early, other));
        let in_child = || calls.follow_fork(&mut lock(&calls.log));
        in_child();
        let (mut first, mut second) = (calls.begin_held(), calls.begin());
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
        assert_eq!(calls.losses.load(Ordering::Relaxed), 0);
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
