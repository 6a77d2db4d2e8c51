//! What follows the number of pages in use: the table of a pool, where [`TableChoice::Fitted`] asks
//! for that, and the account of small vectors.
//!
//! Both are looked at when the pages in use have become a sixteenth more or fewer since the last
//! look. The table is changed if the estimate for the objects there are says that it saves enough;
//! a class that is there stays where that costs less than to move its objects. Vectors of classes
//! and tables cannot be charged where they grow: they are charged somewhat ahead, so that between
//! two looks no more is there than is charged. One thread looks; others go on. Unit: bytes. Cost:
//! two loads an operation; a look is a walk over the classes and a fit of some microseconds to
//! milliseconds.
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
use crate::zpool::sizes::table::{Rules, RulesError, SizeClass, Table};

/// Slots begin at multiples of this where sizes are such.
const ALIGN: u64 = 8;
/// Pages below which a table is not worth a look.
const PAGES_MIN: u64 = 256;
/// A new table saves at least one byte of so many held.
const HELD_PER_SAVED: f64 = 1000.0;
/// Held bytes for which one byte is moved.
const MOVE_COST: f64 = 0.005;
/// What part of the pages more or fewer makes it look again, and how many at least.
const CHANGE_PARTS: u64 = 16;
const CHANGE_MIN: u64 = 16;
/// Charged ahead of vectors: so much, and a part of what there is.
const AHEAD: u64 = 4 << 10;
const AHEAD_PARTS: u64 = 8;
/// See the module.
#[derive(Debug)]
pub(crate) struct Refit {
    state: Mutex<State>,
    page: PageSize,
    /// Between which numbers of pages in use nothing is looked at.
    low: AtomicU64,
    high: AtomicU64,
}

#[derive(Debug)]
struct State {
    table: Table,
    /// Whether tables are chosen.
    is_fitted: bool,
    /// Bytes of vectors that are charged.
    charged: u64,
}

impl Refit {
    pub(crate) fn new(table: Table, page: PageSize, is_fitted: bool) -> Self {
        let state = Mutex::new(State { table, is_fitted, charged: 0 });
        Self { state, page, low: AtomicU64::new(0), high: AtomicU64::new(0) }
    }

    /// The table in use.
    pub(crate) fn table(&self) -> Table {
        lock(&self.state).table.clone()
    }

    /// Changes the table, for good: from now on none is chosen.
    ///
    /// # Errors
    /// Those of [`adopt`]; nothing was changed.
    pub(crate) fn set(&self, objects: &Objects, table: &Table) -> Result<(), Error> {
        let mut state = lock(&self.state);
        self.change(objects, &mut state.table, table)?;
        state.is_fitted = false;
        Ok(())
    }

    /// As [`Refit::set`], under the lock.
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

    /// Looks, if the pages in use are many more or fewer than at the last look.
    #[inline]
    pub(crate) fn look_if_due(&self, objects: &Objects) {
        let used = objects.memory.pages.used();
        if used < self.low.load(Ordering::Relaxed) || used >= self.high.load(Ordering::Relaxed) {
            self.look(objects, used);
        }
    }

    #[cold]
    fn look(&self, objects: &Objects, used: u64) {
        let Ok(mut state) = self.state.try_lock() else { return };
        let change = (used / CHANGE_PARTS).max(CHANGE_MIN);
        self.low.store(used.saturating_sub(change), Ordering::Relaxed);
        self.high.store(used + change, Ordering::Relaxed);
        if state.is_fitted && used >= PAGES_MIN {
            self.fit(objects, &mut state.table);
        }
        // Without room it waits until the next look: what was charged ahead lasts until then.
        let (is, account) = (vector_bytes(objects), &objects.memory.account);
        let wanted = is + is / AHEAD_PARTS + AHEAD;
        if wanted <= state.charged || account.charge(wanted - state.charged) {
            account.release(state.charged.saturating_sub(wanted));
            state.charged = wanted;
        }
    }

    fn fit(&self, objects: &Objects, table: &mut Table) {
        let histogram = histogram(&objects.classes, &fitted_rules(self.page));
        let fitted = table.fitted(&histogram, MOVE_COST);
        let (now, then) = (table.expected(&histogram), fitted.expected(&histogram));
        if (now - then) * HELD_PER_SAVED >= now {
            // What does not fit now, with classes still being emptied, is looked at again later.
            let _ = self.change(objects, table, &fitted);
        }
    }

    /// Bytes of small vectors that are there, and that are charged.
    pub(crate) fn vectors(&self, objects: &Objects) -> (u64, u64) {
        let state = lock(&self.state);
        (vector_bytes(objects), state.charged)
    }
}

/// Bytes of small vectors now.
fn vector_bytes(objects: &Objects) -> u64 {
    let memory = &objects.memory;
    let tables = memory.pages.held_bytes() + memory.entries.held().1 + memory.zspages.held().1;
    let classes = objects.classes.all().map(|class| class.lock().held_bytes());
    tables + classes.sum::<u64>()
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
/// [`Error::Rules`], [`Error::Classes`]: a pool of this page cannot have it; nothing was
/// changed.
pub(crate) fn adopt(classes: &Classes, table: &Table, machine_page: PageSize) -> Result<(), Error> {
    let (page, own) = (table.rules().page, machine_page.bytes().get());
    RulesError::within("a page in bytes", page.bytes().get(), own, own.min(PAGE_MAX))?;
    RulesError::within("slots in a zspage", table.most_objects().into(), 1, SLOTS_MAX.into())?;
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
