//! [`Table`] holds the size classes of a pool, and finds the class of each length.
//!
//! Sizes are on a *grid*: the smallest class, then every step, then the page. Classes ascend and
//! end with a page, so every length of 1 byte to a page has a class. Unit: bytes.
//!
//! Source: `mm/zsmalloc.c` of Linux 6.3 and later. A zspage has as many pages as leave the fewest
//! unused bytes, or one page if the size is a power of two.

use glebe_os::units::{Bytes, PageSize, Pages};

const CHAIN_MAX: u64 = 16;

/// The word of a zspage has 12 bits for its class number.
const CLASSES_MAX: u64 = 1 << 12;

/// The value of [`Rules`] that is out of range.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{what} of {given}: there may be {least} to {most}")]
pub struct RulesError {
    pub(crate) what: &'static str,
    pub(crate) given: u64,
    pub(crate) least: u64,
    pub(crate) most: u64,
}

impl RulesError {
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

/// The rules that make the classes of a pool.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Rules {
    /// Bytes between two adjacent sizes; a power of two.
    pub step: Bytes,
    /// The size of the smallest class.
    pub min: Bytes,
    /// The most pages of a zspage.
    pub chain: Pages,
    /// Merges classes with equal pages and slots.
    pub merge: bool,
    /// The size of a page.
    pub page: PageSize,
}

impl Rules {
    /// The smallest supported page.
    pub const PAGE_MIN: Bytes = Bytes::new(4 << 10);
    /// The largest supported page.
    pub const PAGE_MAX: Bytes = Bytes::new(64 << 10);

    /// Returns the kernel's defaults: 256 steps per page, sizes from 32 bytes on, up to 8 pages per
    /// zspage, merged.
    #[must_use]
    pub const fn of_page(page: PageSize) -> Self {
        let step = Bytes::new(page.bytes().get() >> 8);
        Self { step, min: Bytes::new(32), chain: Pages::new(8), merge: true, page }
    }

    /// Checks the rules.
    ///
    /// # Errors
    /// [`RulesError`]: the first value that is out of range.
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

    /// Requires valid rules.
    pub(super) fn grid_len(&self) -> usize {
        let above = self.page.bytes().saturating_sub(self.min).get();
        above.div_ceil(self.step.get()) as usize + 1
    }

    pub(super) fn grid_size(&self, index: usize) -> Bytes {
        let size = self.min.get() + index as u64 * self.step.get();
        Bytes::new(size).min(self.page.bytes())
    }

    pub(super) fn grid_index(&self, len: usize) -> Option<usize> {
        if len == 0 || len as u64 > self.page.bytes().get() {
            return None;
        }
        let above = (len as u64).saturating_sub(self.min.get());
        Some(((above + self.step.get() - 1) >> self.step.get().trailing_zeros()) as usize)
    }

    fn class_of_size(&self, size: Bytes) -> SizeClass {
        let page = self.page.bytes().get();
        let tail = |pages: &u64| pages * page % size.get();
        // `min_by_key` returns the first minimum: the fewest pages.
        let least = (1..=self.chain.get()).min_by_key(tail).unwrap_or(1);
        let pages = if size.get().is_power_of_two() { 1 } else { least };
        SizeClass::of(size, Pages::new(pages), self.page)
    }
}

/// One class: the size of its slots, and its zspages.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct SizeClass {
    /// Bytes of the longest object.
    pub size: Bytes,
    /// Pages of a zspage.
    pub pages: Pages,
    /// Slots of a zspage.
    pub objects: u32,
}

impl SizeClass {
    pub(super) fn of(size: Bytes, pages: Pages, page: PageSize) -> Self {
        let objects = (pages.get() << page.shift()) / size.get();
        Self { size, pages, objects: objects as u32 }
    }

    /// Returns true if zspages of both classes have equally many pages and slots.
    #[must_use]
    pub fn same_zspages(&self, other: &Self) -> bool {
        (self.pages, self.objects) == (other.pages, other.objects)
    }

    /// Returns the bytes from one slot to the next.
    #[must_use]
    pub fn stride(&self, page: PageSize) -> Bytes {
        Bytes::new(self.pages.bytes(page).get() / u64::from(self.objects))
    }

    /// Returns the unused bytes of a zspage full of the longest objects.
    #[must_use]
    pub fn tail(&self, page: PageSize) -> Bytes {
        let slots = Bytes::new(self.size.get() * u64::from(self.objects));
        self.pages.bytes(page).saturating_sub(slots)
    }
}

/// A set of size classes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Table {
    rules: Rules,
    classes: Vec<SizeClass>,
}

impl Table {
    /// Makes a class for each size on the grid; see [`Rules::merge`].
    ///
    /// # Errors
    /// [`RulesError`]: a value is out of range.
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

    pub(super) fn of_classes(rules: &Rules, classes: Vec<SizeClass>) -> Self {
        Self { rules: *rules, classes }
    }

    /// Returns the index of the smallest class that holds `len` bytes; `None` for zero and above a
    /// page.
    #[must_use]
    pub fn class_of(&self, len: usize) -> Option<usize> {
        self.rules.grid_index(len)?;
        Some(self.classes.partition_point(|class| class.size.as_usize() < len))
    }

    /// Returns the classes, by size.
    #[must_use]
    pub fn classes(&self) -> &[SizeClass] {
        &self.classes
    }

    /// Returns the rules of the table.
    #[must_use]
    pub const fn rules(&self) -> &Rules {
        &self.rules
    }

    /// Returns the longest length whose zspage has several slots.
    #[must_use]
    pub fn watermark(&self) -> Bytes {
        let shared = self.classes.iter().rev().find(|class| class.objects > 1);
        shared.map_or(Bytes::ZERO, |class| class.size)
    }

    /// Returns the most slots of a zspage.
    #[must_use]
    pub fn most_objects(&self) -> u32 {
        self.classes.iter().map(|class| class.objects).max().unwrap_or(0)
    }

    /// Returns the bytes of the table itself.
    #[must_use]
    pub fn held(&self) -> Bytes {
        let classes = size_of_val(self.classes.as_slice());
        Bytes::new((size_of::<Self>() + classes) as u64)
    }
}

#[cfg(test)]
mod tests;
