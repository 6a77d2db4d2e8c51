//! The table of a pool follows its objects, where [`TableChoice::Fitted`] asks for that.
//!
//! Looked at when the pages in use have become a sixteenth more or fewer since the last look, and
//! changed if the estimate for the objects there are says that it saves enough. A class that is
//! there stays where that costs less than to move its objects. One thread looks; others go on.
//! Cost: a look is a walk over the classes and a fit of some microseconds to milliseconds.
//!
//! [`TableChoice::Fitted`]: crate::zpool::options::TableChoice::Fitted

use crate::sync::{lock, AtomicU64, Mutex, Ordering};
use crate::units::PageSize;
use crate::zpool::class::classes::Classes;
use crate::zpool::class::Shape;
use crate::zpool::entry::word::{PAGE_MAX, SLOTS_MAX};
use crate::zpool::error::Error;
use crate::zpool::objects::Objects;
use crate::zpool::options::fitted_rules;
use crate::zpool::shared::CLASSES_MAX;
use crate::zpool::sizes::fitted::Histogram;
use crate::zpool::sizes::table::{Rules, SizeClass, Table};

/// Slots begin at multiples of this where sizes are such.
const ALIGN: u64 = 8;
/// Pages below which a table is not worth a look.
const PAGES_MIN: u64 = 256;
/// A new table saves at least one byte of so many held.
const HELD_PER_SAVED: f64 = 1000.0;
/// Held bytes for which one byte is moved.
const MOVE_COST: f64 = 0.005;
/// What part of the pages more or fewer makes it look again.
const CHANGE_PARTS: u64 = 16;
/// The table of a pool, and between which numbers of pages in use nothing is looked at.
#[derive(Debug)]
pub(crate) struct Refit {
    /// Its lock is that of changing it.
    table: Mutex<Table>,
    page: PageSize,
    low: AtomicU64,
    high: AtomicU64,
}

impl Refit {
    pub(crate) fn new(table: Table, page: PageSize, wanted: bool) -> Self {
        let high = if wanted { PAGES_MIN } else { u64::MAX };
        Self { table: Mutex::new(table), page, low: AtomicU64::new(0), high: AtomicU64::new(high) }
    }

    /// The table in use.
    pub(crate) fn table(&self) -> Table {
        lock(&self.table).clone()
    }

    /// Changes the table, for good: from now on none is chosen.
    ///
    /// # Errors
    /// Those of [`adopt`]; nothing was changed.
    pub(crate) fn set(&self, objects: &Objects, table: &Table) -> Result<(), Error> {
        let mut now = lock(&self.table);
        self.change(objects, &mut now, table)?;
        self.low.store(0, Ordering::Relaxed);
        self.high.store(u64::MAX, Ordering::Relaxed);
        Ok(())
    }

    /// As [`Refit::set`], under the lock of the table.
    fn change(&self, objects: &Objects, now: &mut Table, table: &Table) -> Result<(), Error> {
        let before = objects.classes.held_bytes() + now.held().get();
        adopt(&objects.classes, table, self.page)?;
        *now = table.clone();
        let after = objects.classes.held_bytes() + table.held().get();
        let account = &objects.memory.account;
        account.release(before);
        account.charge_past(after);
        Ok(())
    }

    /// From which number of pages in use on, and below which, nothing is looked at.
    pub(crate) fn bounds(&self) -> (u64, u64) {
        (self.low.load(Ordering::Relaxed), self.high.load(Ordering::Relaxed))
    }

    /// Looks whether another table is worth it, now that so many pages are in use.
    pub(crate) fn look_if_due(&self, objects: &Objects, used: u64) {
        let (low, high) = self.bounds();
        if used < low || used >= high {
            self.look(objects, used);
        }
    }

    #[cold]
    fn look(&self, objects: &Objects, used: u64) {
        let Ok(mut table) = self.table.try_lock() else { return };
        if self.high.load(Ordering::Relaxed) == u64::MAX {
            return;
        }
        let low = if used < PAGES_MIN { 0 } else { used - used / CHANGE_PARTS };
        self.low.store(low, Ordering::Relaxed);
        let high = (used + used / CHANGE_PARTS).max(PAGES_MIN);
        self.high.store(high, Ordering::Relaxed);
        let histogram = histogram(&objects.classes, &fitted_rules(self.page));
        let fitted = table.fitted(&histogram, MOVE_COST);
        let (now, then) = (table.expected(&histogram), fitted.expected(&histogram));
        if (now - then) * HELD_PER_SAVED >= now {
            // What does not fit now, with classes still being emptied, is looked at again later.
            let _ = self.change(objects, &mut table, &fitted);
        }
    }
}

/// The lengths of the objects that are stored, to a 512th of a page, on the grid of `rules`.
fn histogram(classes: &Classes, rules: &Rules) -> Histogram {
    let mut histogram = Histogram::new(rules);
    let longest = rules.page.bytes().get() as usize;
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
    histogram
}

/// Changes the classes to those of `table`. The caller is the only one that does so now.
///
/// # Errors
/// [`Error::Table`], [`Error::Classes`]: a pool of this page cannot have it; nothing was
/// changed.
pub(crate) fn adopt(classes: &Classes, table: &Table, machine_page: PageSize) -> Result<(), Error> {
    let (objects, page) = (table.most_objects(), table.rules().page);
    if objects > SLOTS_MAX || page != machine_page || page.bytes().get() > PAGE_MAX {
        let (page, machine_page) = (page.bytes(), machine_page.bytes());
        return Err(Error::Table { objects, page, objects_max: SLOTS_MAX, machine_page });
    }
    let shape = |class: &SizeClass| {
        // Slots as wide as fit, so that classes of the same zspages are one, on words.
        let (least, widest) = (class.size.get(), class.stride(page).get());
        let size = (widest & !(ALIGN - 1)).max(least) as u32;
        let (pages, objects) = (class.pages.get() as u32, class.objects);
        (least as u32, Shape { size, pages, objects })
    };
    let shapes: Vec<(u32, Shape)> = table.classes().iter().map(shape).collect();
    if !classes.change(&shapes) {
        let (classes, limit) = (shapes.len(), CLASSES_MAX as usize);
        return Err(Error::Classes { classes, limit });
    }
    Ok(())
}
