//! [`Purged`] lists the pages that an unmark found lost; [`Calls`] shares losses between
//! overlapping unmarks.
//!
//! Without [`Calls`], the second of two overlapping unmarks would find the pages unmarked and
//! report no loss. A counter orders the starts and ends of calls. The log keeps a loss until the
//! finding call and all calls that overlap it have returned. Lock order: the region's, then the
//! log's.

use glebe_os::extent::Extent;
use glebe_os::internal::extents::{merged, within, without};
use glebe_os::internal::sync::{lock, AtomicU64, Mutex, MutexGuard, Ordering};
use glebe_os::units::Pages;

/// Lost pages as ascending runs that do not touch.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[must_use = "the contents of these pages are gone"]
pub struct Purged {
    runs: Vec<Extent>,
}

impl Purged {
    #[inline]
    pub(super) fn from_runs(runs: Vec<Extent>) -> Self {
        Self { runs: if runs.is_empty() { runs } else { merged(runs) } }
    }

    /// Returns the runs, in base pages from the start of the region or shared data.
    #[must_use]
    pub fn runs(&self) -> &[Extent] {
        &self.runs
    }

    /// Returns the number of lost pages.
    #[must_use]
    pub fn pages(&self) -> Pages {
        Pages::new(self.runs.iter().map(|run| run.len()).sum())
    }

    /// Returns true if no page was lost.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.runs.is_empty()
    }
}

#[derive(Debug)]
struct Loss {
    /// Start time of the finding call, which identifies the call.
    finder: u64,
    returned: Option<u64>,
    runs: Vec<Extent>,
    told: Vec<(u64, Extent)>,
    untold: Vec<Extent>,
}

#[derive(Debug, Default)]
pub(super) struct Log {
    time: u64,
    under_way: Vec<u64>,
    losses: Vec<Loss>,
    /// Losses found before a fork that no call has reported.
    untold: Vec<Extent>,
}

#[derive(Debug)]
pub(super) struct Calls {
    log: Mutex<Log>,
    /// Losses in the log. Grows only under the region's lock.
    losses: AtomicU64,
}

/// Its drop records that the call returns.
#[derive(Debug)]
pub(super) struct Call<'a> {
    calls: &'a Calls,
    began: Option<u64>,
}

impl Calls {
    pub(super) fn new() -> Self {
        Self { log: Mutex::new(Log::default()), losses: AtomicU64::new(0) }
    }

    #[inline]
    pub(super) fn begin(&self) -> Call<'_> {
        Call { calls: self, began: Some(self.list()) }
    }

    /// Begins an unmark under the region's exclusive lock. If the log is empty, the call is not
    /// listed, because no other call can add a loss under the lock.
    #[inline]
    pub(super) fn begin_held(&self) -> Call<'_> {
        let is_told = self.losses.load(Ordering::Acquire) != 0;
        Call { calls: self, began: is_told.then(|| self.list()) }
    }

    fn list(&self) -> u64 {
        let mut log = lock(&self.log);
        log.time += 1;
        let began = log.time;
        log.under_way.push(began);
        began
    }

    pub(super) fn hold(&self) -> MutexGuard<'_, Log> {
        lock(&self.log)
    }

    /// Ends the parent's calls in a forked child. The child's next unmark of a lost page reports
    /// the loss if no call did before the fork.
    pub(super) fn follow_fork(&self, log: &mut Log) {
        let cut_short = log.losses.drain(..).filter(|loss| loss.returned.is_none());
        log.untold.extend(cut_short.flat_map(|loss| loss.untold));
        log.under_way.clear();
        self.count(log);
    }

    fn count(&self, log: &Log) {
        let losses = log.losses.len() + log.untold.len();
        self.losses.store(losses as u64, Ordering::Release);
    }
}

impl Call<'_> {
    /// Logs `lost`, and adds other calls' losses in `extent` to `lost`. The caller holds the
    /// region's lock.
    #[inline]
    pub(super) fn share(&mut self, extent: Extent, lost: &mut Vec<Extent>) {
        // The load sees all earlier losses, because they were logged under the region's lock.
        if lost.is_empty() && self.calls.losses.load(Ordering::Acquire) == 0 {
            return;
        }
        let began = *self.began.get_or_insert_with(|| self.calls.list());
        let log = &mut *lock(&self.calls.log);
        lost.extend(within(&log.untold, extent));
        log.untold = without(&log.untold, extent);
        let own = lost.clone();
        for loss in &mut log.losses {
            // Skips losses that another call reported before this call began.
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
