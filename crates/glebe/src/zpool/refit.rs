//! The table of a pool follows its objects, where [`TableChoice::Fitted`] asks for that.
//!
//! Looked at when the pages in use have become a sixteenth more or fewer since the last look, and
//! changed if the estimate for the objects there are says that it saves enough. A class that is
//! there stays where that costs less than to move its objects. One thread looks; others go on.
//! Cost: a look is a walk over the classes and a fit of some microseconds
//! to milliseconds.
//!
//! [`TableChoice::Fitted`]: super::options::TableChoice::Fitted

use super::fitted::Metadata;
use super::histogram::Histogram;
use super::options::fitted_rules;
use super::pool::Pool;
use super::size_class::RulesError;
use crate::sync::{AtomicU64, Ordering};
use crate::units::Bytes;

/// Pages below which a table is not worth a look.
const PAGES_MIN: u64 = 256;
/// A new table saves at least one byte of so many held.
const HELD_PER_SAVED: f64 = 1000.0;
/// Held bytes for which one byte is moved.
const MOVE_COST: f64 = 0.005;
/// What part of the pages more or fewer makes it look again.
const CHANGE_PARTS: u64 = 16;
/// What an object, a slot, a zspage and a class take beside the pages. What is left over of a
/// class goes to others in part.
const METADATA: Metadata = Metadata {
    object: Bytes::new(8),
    slot: Bytes::new(4),
    zspage: Bytes::new(40),
    class: Bytes::new(640),
    left_percent: 80,
};

/// Between which numbers of pages in use nothing is looked at.
#[derive(Debug)]
pub(crate) struct Refit {
    low: AtomicU64,
    high: AtomicU64,
}

impl Refit {
    pub(crate) fn new(wanted: bool) -> Self {
        let high = if wanted { PAGES_MIN } else { u64::MAX };
        Self { low: AtomicU64::new(0), high: AtomicU64::new(high) }
    }

    /// From which number of pages in use on, and below which, nothing is looked at.
    pub(crate) fn bounds(&self) -> (u64, u64) {
        (self.low.load(Ordering::Relaxed), self.high.load(Ordering::Relaxed))
    }

    /// The table stays as it is from now on; the caller has its lock.
    pub(crate) fn stop(&self) {
        self.low.store(0, Ordering::Relaxed);
        self.high.store(u64::MAX, Ordering::Relaxed);
    }
}

impl Pool {
    pub(crate) fn refit_if_due(&self, used: u64) {
        let (low, high) = self.refit.bounds();
        if used < low || used >= high {
            self.refit(used);
        }
    }

    #[cold]
    fn refit(&self, used: u64) {
        let Ok(mut table) = self.table.try_lock() else { return };
        if self.refit.high.load(Ordering::Relaxed) == u64::MAX {
            return;
        }
        let low = if used < PAGES_MIN { 0 } else { used - used / CHANGE_PARTS };
        self.refit.low.store(low, Ordering::Relaxed);
        let high = (used + used / CHANGE_PARTS).max(PAGES_MIN);
        self.refit.high.store(high, Ordering::Relaxed);
        let Ok(histogram) = self.histogram_on(&fitted_rules(self.page)) else { return };
        let fitted = table.refitted(&histogram, &METADATA, MOVE_COST);
        let (now, then) =
            (table.expected(&histogram, &METADATA), fitted.expected(&histogram, &METADATA));
        if (now.held - then.held) * HELD_PER_SAVED >= now.held {
            // What does not fit now, with classes still being emptied, is looked at again later.
            let _ = self.change_table(&mut table, &fitted);
        }
    }

    /// The lengths of the objects that are stored, to a 512th of a page, on the grid of `rules`.
    fn histogram_on(&self, rules: &super::size_class::Rules) -> Result<Histogram, RulesError> {
        let mut histogram = Histogram::new(rules)?;
        let longest = rules.page.bytes().get() as usize;
        let classes = &self.objects.classes;
        let mut sums = vec![0_u64; classes.part_lens().len()];
        for class in classes.all() {
            let state = class.lock();
            for (parts, objects) in state.below.iter().enumerate().filter(|(_, n)| **n != 0) {
                let len = classes.len_of(state.shape().size, parts);
                sums[classes.part_of_len(len)] += u64::from(*objects);
            }
        }
        for (len, objects) in classes.part_lens().zip(sums).filter(|(_, objects)| *objects > 0) {
            histogram.add(len.clamp(1, longest), objects);
        }
        Ok(histogram)
    }
}
