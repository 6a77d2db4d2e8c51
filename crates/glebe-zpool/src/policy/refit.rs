//! [`Refit`] fits a pool's size classes to its objects, and charges vectors to the pool's account.
//!
//! `look` runs each time the pages in use changed by a sixteenth, and by at least 16. `look`
//! changes fitted classes if a new table should save enough memory. Vectors cannot be charged where
//! they grow, so `look` charges them ahead.
//!
//! Unit: bytes. Lock: `state`; `look` does not wait for it.

use crate::class::classes::Classes;
use crate::class::Shape;
use crate::entry::word::{PAGE_MAX, SLOTS_MAX};
use crate::error::Error;
use crate::objects::Objects;
use crate::options::fitted_rules;
use crate::shared::CLASSES_MAX;
use crate::sizes::fitted::Histogram;
use crate::sizes::table::{Rules, RulesError, SizeClass, Table};
use glebe_os::internal::sync::{lock, AtomicU64, Mutex, Ordering};
use glebe_os::units::PageSize;

const ALIGN: u64 = 8;
/// Pages in use below which no table is fitted.
const PAGES_MIN: u64 = 256;
/// Held bytes per byte that a new table must save.
const HELD_PER_SAVED: f64 = 1000.0;
/// Held bytes that a new table must save per byte moved to another class.
const MOVE_COST: f64 = 0.005;
const CHANGE_PARTS: u64 = 16;
const CHANGE_MIN: u64 = 16;
const AHEAD: u64 = 4 << 10;
const AHEAD_PARTS: u64 = 8;
#[derive(Debug)]
pub(crate) struct Refit {
    state: Mutex<State>,
    page: PageSize,
    /// `look` is due when the pages in use are below `low`, or at least `high`.
    low: AtomicU64,
    high: AtomicU64,
}

#[derive(Debug)]
struct State {
    table: Table,
    is_fitted: bool,
    charged: u64,
}

impl Refit {
    pub(crate) fn new(table: Table, page: PageSize, is_fitted: bool) -> Self {
        let state = Mutex::new(State { table, is_fitted, charged: 0 });
        Self { state, page, low: AtomicU64::new(0), high: AtomicU64::new(0) }
    }

    pub(crate) fn table(&self) -> Table {
        lock(&self.state).table.clone()
    }

    pub(crate) fn set(&self, objects: &Objects, table: &Table) -> Result<(), Error> {
        let mut state = lock(&self.state);
        self.change(objects, &mut state.table, table)?;
        state.is_fitted = false;
        Ok(())
    }

    fn change(&self, objects: &Objects, now: &mut Table, table: &Table) -> Result<(), Error> {
        let before = objects.classes.held_bytes() + now.held().get();
        adopt(objects, table, self.page)?;
        *now = table.clone();
        let after = objects.classes.held_bytes() + table.held().get();
        let account = &objects.memory.account;
        account.release(before);
        account.charge_past(after);
        Ok(())
    }

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
        // If the limit leaves no room, the next call tries again.
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
            // The change fails if too many classes are still being emptied.
            let _ = self.change(objects, table, &fitted);
        }
    }

    pub(crate) fn vectors(&self, objects: &Objects) -> (u64, u64) {
        let state = lock(&self.state);
        (vector_bytes(objects), state.charged)
    }
}

fn vector_bytes(objects: &Objects) -> u64 {
    let memory = &objects.memory;
    let tables = memory.pages.held_bytes() + memory.entries.held().1 + memory.zspages.held().1;
    let classes = objects.classes.all().map(|class| class.lock().held_bytes());
    tables + classes.sum::<u64>()
}

/// Counts stored objects by length, rounded up to a 512th of a page.
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

/// No other thread may change the classes meanwhile.
pub(crate) fn adopt(objects: &Objects, table: &Table, machine_page: PageSize) -> Result<(), Error> {
    let (page, own) = (table.rules().page, machine_page.bytes().get());
    RulesError::within("a page in bytes", page.bytes().get(), own, own.min(PAGE_MAX))?;
    RulesError::within("slots in a zspage", table.most_objects().into(), 1, SLOTS_MAX.into())?;
    let shape = |class: &SizeClass| {
        // Slots are as wide as the zspage allows, in multiples of 8 bytes. So classes with equal
        // numbers of pages and slots have equal shapes.
        let (least, widest) = (class.size.get(), class.stride(page).get());
        let size = (widest & !(ALIGN - 1)).max(least) as u32;
        let (pages, objects) = (class.pages.get() as u32, class.objects);
        (least as u32, Shape { size, pages, objects })
    };
    let shapes: Vec<(u32, Shape)> = table.classes().iter().map(shape).collect();
    if !objects.classes.change(&objects.memory.account, &shapes) {
        let (classes, limit) = (shapes.len(), CLASSES_MAX as usize);
        return Err(Error::Classes { classes, limit });
    }
    Ok(())
}
