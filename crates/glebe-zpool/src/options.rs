//! [`Options`] configures a pool.

use std::time::{Duration, Instant};

use crate::codec::Codec;
use crate::error::Error;
use crate::sizes::table::{Rules, Table};
use glebe_os::units::{Bytes, PageSize, Pages};

/// Selects what a call does if compaction makes no room for an object.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum AtLimit {
    /// Returns an error.
    #[default]
    Refuse,
    /// Evicts the objects of the oldest zspage in a sample, then of another if necessary. Spares
    /// zspages read lately.
    EvictOldest,
}

/// Selects when a pool compacts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Compaction {
    /// Like `Manual`, but a remove or replace also compacts a little if more than ten pages plus a
    /// two-thousandth of the used pages are freeable.
    #[default]
    Automatic,
    /// On request, and before a call is refused or evicts.
    Manual,
}

/// Selects a pool's size classes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum TableChoice {
    /// The kernel's rules. Zspages have up to 4 pages, or 8 if the pool may hold 64 MiB or more.
    BySize,
    /// These rules.
    Rules(Rules),
    /// Classes that fit the stored objects. From 256 used pages on, the pool changes its classes if
    /// this should save enough memory.
    #[default]
    Fitted,
}

/// Bounds one call of [`compact`](super::ObjectPool::compact), which may exceed it slightly.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Budget {
    /// Until this number of pages was freed.
    Pages(Pages),
    /// Until this time has passed.
    Time(Duration),
    /// Until nothing is left to free.
    All,
}

impl Budget {
    pub(crate) fn until(self) -> Result<Option<Instant>, Error> {
        match self {
            Self::Pages(Pages::ZERO) | Self::Time(Duration::ZERO) => Err(Error::NoBudget),
            Self::Time(time) => Ok(Instant::now().checked_add(time)),
            Self::Pages(_) | Self::All => Ok(None),
        }
    }
}

/// Configures a pool.
#[derive(Clone, Debug, Default)]
#[must_use]
pub struct Options {
    pub(crate) limit: Option<Bytes>,
    pub(crate) at_limit: AtLimit,
    pub(crate) table: TableChoice,
    pub(crate) compaction: Compaction,
    pub(crate) codec: Codec,
    /// Free pages to keep, if zspages may be sealed.
    pub(crate) lends: Option<Pages>,
}

const LARGE: Bytes = Bytes::mib(64);
const CHAIN_SMALL: Pages = Pages::new(4);
const CHAIN_LARGE: Pages = Pages::new(8);
const CHAIN_FITTED: Pages = Pages::new(10);
/// Log2 of `SLOTS_MAX`.
const SLOTS_A_PAGE_SHIFT: u32 = 10;

impl Options {
    /// Limits the bytes held, including tables and codec states. There is no limit by default or
    /// with `u64::MAX`.
    ///
    /// A pool reserves addresses for about twice its limit, or once if the kernel refuses that.
    /// Without a limit, it reserves twice the machine's available memory or, if the kernel refuses
    /// (`RLIMIT_AS`), at most about half the free addresses.
    ///
    /// Zstd needs some hundred KiB per concurrent thread. A pool that may not evict may exceed its
    /// limit by this memory.
    pub fn limit(mut self, limit: Bytes) -> Self {
        self.limit = Some(limit);
        self
    }

    /// Sets what happens at the limit.
    pub fn at_limit(mut self, at_limit: AtLimit) -> Self {
        self.at_limit = at_limit;
        self
    }

    /// Sets how size classes are chosen.
    pub fn table(mut self, choice: TableChoice) -> Self {
        self.table = choice;
        self
    }

    /// Sets when zspages are compacted.
    pub fn compaction(mut self, compaction: Compaction) -> Self {
        self.compaction = compaction;
        self
    }

    /// Sets the codec. [`Codec::None`] stores all objects as given, even those that repeat one
    /// value.
    pub fn codec(mut self, codec: Codec) -> Self {
        self.codec = codec;
        self
    }

    pub(crate) fn lend(mut self, keep: Pages) -> Self {
        self.lends = Some(keep);
        self
    }

    pub(crate) fn first_table(&self, limit: Bytes) -> Result<Table, Error> {
        let page = glebe_os::internal::sys::page_size();
        let rules = match self.table {
            TableChoice::Rules(rules) => rules,
            TableChoice::BySize if limit >= LARGE => rules_of(page, CHAIN_LARGE),
            TableChoice::BySize | TableChoice::Fitted => rules_of(page, CHAIN_SMALL),
        };
        Ok(Table::by_rules(&rules)?)
    }
}

fn rules_of(page: PageSize, chain: Pages) -> Rules {
    let rules = Rules::of_page(page);
    let least = Bytes::new(page.bytes().get() >> SLOTS_A_PAGE_SHIFT);
    Rules { chain, min: rules.min.max(least), ..rules }
}

pub(crate) fn fitted_rules(page: PageSize) -> Rules {
    let rules = Rules::of_page(page);
    let (step, chain) = (Bytes::new(rules.step.get() / 2), CHAIN_FITTED);
    let least = Bytes::new(chain.bytes(page).get() >> SLOTS_A_PAGE_SHIFT);
    Rules { step, chain, min: rules.min.max(least), ..rules }
}
