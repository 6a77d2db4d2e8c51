//! [`Table`]: the size classes of a pool, and which class an object's length belongs to.
//!
//! A class has slots of one size, in zspages of one number of pages. Lengths stand on a *grid*:
//! the smallest class, then every step, then the page. Invariants: classes ascend by size, the
//! last is a whole page, so that every length of 1 byte to a page has a class that holds it.
//! Sizes are bytes. Cost: a look-up is a binary search; a table is made once, O(grid x chain).
//! No lock: a table never changes.
//!
//! Source: `mm/zsmalloc.c` of Linux 6.3 and later, as the report of the pool's design states it:
//! the pages of a zspage are the fewest that leave the least tail, one where the size is a power
//! of two; classes with as many pages and as many objects are one. Up to 6.2 the number of pages
//! was chosen by whole percents used; that rule is not here.

use crate::units::{Bytes, PageSize, Pages};

/// The most pages that a zspage may have.
const CHAIN_MAX: u64 = 16;

/// The most classes of a table: a handle has this much room for a class.
const CLASSES_MAX: u64 = 1 << 12;

/// Why rules make no table: a value out of its limits.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{what} of {given}: there may be {least} to {most}")]
pub struct RulesError {
    pub(crate) what: &'static str,
    pub(crate) given: u64,
    pub(crate) least: u64,
    pub(crate) most: u64,
}

impl RulesError {
    /// Whether a value is within its limits.
    pub(crate) fn within(
        what: &'static str,
        given: u64,
        least: u64,
        most: u64,
    ) -> Result<(), Self> {
        let is = (least..=most).contains(&given);
        is.then_some(()).ok_or(Self { what, given, least, most })
    }
}

/// What the classes of a pool are made by.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Rules {
    /// Between the sizes of two classes; a power of two.
    pub step: Bytes,
    /// The size of the smallest class.
    pub min: Bytes,
    /// The most pages that a zspage may have.
    pub chain: Pages,
    /// Whether classes with as many pages and as many objects are one.
    pub merge: bool,
    /// The size of a page.
    pub page: PageSize,
}

impl Rules {
    /// The smallest page that a table is made for.
    pub const PAGE_MIN: Bytes = Bytes::new(4 << 10);
    /// The largest page that a table is made for.
    pub const PAGE_MAX: Bytes = Bytes::new(64 << 10);

    /// What the kernel takes by default: 256 steps a page, from 32 bytes on, up to 8 pages,
    /// merged.
    #[must_use]
    pub const fn of_page(page: PageSize) -> Self {
        let step = Bytes::new(page.bytes().get() >> 8);
        Self { step, min: Bytes::new(32), chain: Pages::new(8), merge: true, page }
    }

    /// Whether a table can be made.
    ///
    /// # Errors
    /// [`RulesError`]: the first value that is out of its limits.
    pub fn check(&self) -> Result<(), RulesError> {
        let page = self.page.bytes().get();
        let within = RulesError::within;
        within("a page in bytes", page, Self::PAGE_MIN.get(), Self::PAGE_MAX.get())?;
        let (step, what) = (self.step.get(), "a step in bytes, a power of two,");
        within(what, step, 1, page)?;
        if !step.is_power_of_two() {
            return Err(RulesError { what, given: step, least: 1, most: page });
        }
        within("a smallest class in bytes", self.min.get(), 1, page)?;
        within("a chain in pages", self.chain.get(), 1, CHAIN_MAX)?;
        within("a number of classes", self.grid_len() as u64, 1, CLASSES_MAX)
    }

    /// Sizes on the grid. The rules were checked.
    pub(super) fn grid_len(&self) -> usize {
        let above = self.page.bytes().saturating_sub(self.min).get();
        above.div_ceil(self.step.get()) as usize + 1
    }

    /// The size at place `index` of the grid.
    pub(super) fn grid_size(&self, index: usize) -> Bytes {
        let size = self.min.get() + index as u64 * self.step.get();
        Bytes::new(size).min(self.page.bytes())
    }

    /// The place of the smallest size that holds `len` bytes; `None` above a page and at zero.
    pub(super) fn grid_index(&self, len: usize) -> Option<usize> {
        if len == 0 || len as u64 > self.page.bytes().get() {
            return None;
        }
        let above = (len as u64).saturating_sub(self.min.get());
        Some(((above + self.step.get() - 1) >> self.step.get().trailing_zeros()) as usize)
    }

    /// The class of objects of up to `size` bytes that has the least tail.
    fn class_of_size(&self, size: Bytes) -> SizeClass {
        let page = self.page.bytes().get();
        let tail = |pages: &u64| pages * page % size.get();
        // The first of equals: the fewest pages.
        let least = (1..=self.chain.get()).min_by_key(tail).unwrap_or(1);
        let pages = if size.get().is_power_of_two() { 1 } else { least };
        SizeClass::of(size, Pages::new(pages), self.page)
    }
}

/// One class: the size of its slots, and the zspages that they lie in.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct SizeClass {
    /// Of a slot: the longest object.
    pub size: Bytes,
    /// Of a zspage.
    pub pages: Pages,
    /// Slots of a zspage.
    pub objects: u32,
}

impl SizeClass {
    /// Slots of `size` in `pages` pages, at least one of which fits.
    pub(super) fn of(size: Bytes, pages: Pages, page: PageSize) -> Self {
        let objects = (pages.get() << page.shift()) / size.get();
        Self { size, pages, objects: objects as u32 }
    }

    /// Whether both have as many pages and as many objects, and so zspages that are the same:
    /// those of one class may become the other's with nothing moved.
    #[must_use]
    pub fn same_zspages(&self, other: &Self) -> bool {
        (self.pages, self.objects) == (other.pages, other.objects)
    }

    /// From the start of one slot to the next: at least `size`, and the same for all classes
    /// that have the [same zspages](Self::same_zspages).
    #[must_use]
    pub fn stride(&self, page: PageSize) -> Bytes {
        Bytes::new(self.pages.bytes(page).get() / u64::from(self.objects))
    }

    /// What objects of `size` bytes leave unused of a full zspage.
    #[must_use]
    pub fn tail(&self, page: PageSize) -> Bytes {
        let slots = Bytes::new(self.size.get() * u64::from(self.objects));
        self.pages.bytes(page).saturating_sub(slots)
    }
}

/// The classes in use, and the class of each length.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Table {
    rules: Rules,
    classes: Vec<SizeClass>,
}

impl Table {
    /// A class for every size on the grid or, merged, for each that differs.
    ///
    /// # Errors
    /// [`RulesError`]: a value is out of its limits.
    pub fn by_rules(rules: &Rules) -> Result<Self, RulesError> {
        rules.check()?;
        let mut classes: Vec<SizeClass> = Vec::new();
        for index in (0..rules.grid_len()).rev() {
            let class = rules.class_of_size(rules.grid_size(index));
            let same = |last: &SizeClass| rules.merge && last.same_zspages(&class);
            if !classes.last().is_some_and(same) {
                classes.push(class);
            }
        }
        classes.reverse();
        Ok(Self::of_classes(rules, classes))
    }

    /// A table of `classes`, which ascend, stand on the grid and end with a page.
    pub(super) fn of_classes(rules: &Rules, classes: Vec<SizeClass>) -> Self {
        Self { rules: *rules, classes }
    }

    /// The index of the smallest class whose slots hold `len` bytes; `None` for no bytes and for
    /// more than a page. O(log classes).
    #[must_use]
    pub fn class_of(&self, len: usize) -> Option<usize> {
        self.rules.grid_index(len)?;
        Some(self.classes.partition_point(|class| class.size.as_usize() < len))
    }

    /// The classes, by size.
    #[must_use]
    pub fn classes(&self) -> &[SizeClass] {
        &self.classes
    }

    /// What the table was made by.
    #[must_use]
    pub const fn rules(&self) -> &Rules {
        &self.rules
    }

    /// The longest object that shares its zspage with others: a longer one takes a page.
    #[must_use]
    pub fn watermark(&self) -> Bytes {
        let shared = self.classes.iter().rev().find(|class| class.objects > 1);
        shared.map_or(Bytes::ZERO, |class| class.size)
    }

    /// The most slots that a zspage of any class has.
    #[must_use]
    pub fn most_objects(&self) -> u32 {
        self.classes.iter().map(|class| class.objects).max().unwrap_or(0)
    }

    /// The bytes that this table itself takes.
    #[must_use]
    pub fn held(&self) -> Bytes {
        let classes = size_of_val(self.classes.as_slice());
        Bytes::new((size_of::<Self>() + classes) as u64)
    }
}

#[cfg(test)]
mod tests;
