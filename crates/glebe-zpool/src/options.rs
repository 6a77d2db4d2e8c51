//! [`Options`] of a pool.

use std::time::{Duration, Instant};

use crate::codec::Codec;
use crate::error::Error;
use crate::sizes::table::{Rules, Table};
use glebe_os::units::{Bytes, PageSize, Pages};

/// The action at a limit that leaves no room, even after compaction.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum AtLimit {
    /// Returns an error.
    #[default]
    Refuse,
    /// Removes whole zspages of objects until the call has room. Each is the oldest zspage of a
    /// sample, among those not read since the last look. In a small pool the sample has all
    /// zspages.
    EvictOldest,
}

/// The times at which a pool compacts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Compaction {
    /// A little with each remove or replace, once a two-thousandth of the pool's pages could be
    /// freed; and as `Manual`.
    #[default]
    Automatic,
    /// Before anything is refused or evicted, and on request.
    Manual,
}

/// The choice of a pool's size classes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum TableChoice {
    /// The kernel's rules, with zspages of up to 4 pages, or 8 if the pool may hold 64 MiB or more.
    BySize,
    /// These rules, for good.
    Rules(Rules),
    /// Classes that fit the objects in the pool. It begins with the kernel's rules for a small
    /// pool. Each time the pages in use changed by a sixteenth, it chooses new classes if they save
    /// more than moving the objects costs.
    #[default]
    Fitted,
}

/// The most that one call of [`compact`](super::ObjectPool::compact) does. It may exceed the budget
/// by a few KiB of moves.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Budget {
    /// Until this many pages were freed.
    Pages(Pages),
    /// Until this much time has passed.
    Time(Duration),
    /// Until nothing is left to free.
    All,
}

impl Budget {
    /// Returns the end of the budget, if it is a time.
    ///
    /// # Errors
    /// [`Error::NoBudget`] for a budget of zero.
    pub(crate) fn until(self) -> Result<Option<Instant>, Error> {
        match self {
            Self::Pages(Pages::ZERO) | Self::Time(Duration::ZERO) => Err(Error::NoBudget),
            Self::Time(time) => Ok(Instant::now().checked_add(time)),
            Self::Pages(_) | Self::All => Ok(None),
        }
    }
}

/// The options of a pool.
#[derive(Clone, Debug, Default)]
#[must_use]
pub struct Options {
    pub(crate) limit: Option<Bytes>,
    pub(crate) at_limit: AtLimit,
    pub(crate) table: TableChoice,
    pub(crate) compaction: Compaction,
    pub(crate) codec: Codec,
    /// The number of pages kept for new zspages, if zspages are sealed.
    pub(crate) lends: Option<Pages>,
}

const LARGE: Bytes = Bytes::mib(64);
const CHAIN_SMALL: Pages = Pages::new(4);
const CHAIN_LARGE: Pages = Pages::new(8);
const CHAIN_FITTED: Pages = Pages::new(10);
/// Log2 of the smallest slots per page: a zspage has at most `SLOTS_MAX`.
const SLOTS_A_PAGE_SHIFT: u32 = 10;

impl Options {
    /// Sets the most bytes that the pool may hold: objects, rounding, free slots, tables and the
    /// state of codecs. The default, and `u64::MAX`, is the memory available on the machine when
    /// the pool is made.
    ///
    /// A pool reserves addresses, which are no memory, for its tables and for one to two times its
    /// limit. Without a limit it reserves at most half of what the process may still have
    /// (`RLIMIT_AS`).
    ///
    /// With zstd, each thread that compresses or decompresses at the same time as others needs some
    /// hundred KiB. If the pool may not evict objects for that, it exceeds its limit until some are
    /// removed.
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

    /// Sets the codec. [`Codec::None`] stores all objects as given, including those that repeat one
    /// value.
    pub fn codec(mut self, codec: Codec) -> Self {
        self.codec = codec;
        self
    }

    /// Lets zspages be sealed, and keeps `keep` pages for new ones.
    #[doc(hidden)]
    pub fn lend(mut self, keep: Pages) -> Self {
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

/// Returns the kernel's rules, with at most `SLOTS_MAX` slots in a zspage of one page.
fn rules_of(page: PageSize, chain: Pages) -> Rules {
    let rules = Rules::of_page(page);
    let least = Bytes::new(page.bytes().get() >> SLOTS_A_PAGE_SHIFT);
    Rules { chain, min: rules.min.max(least), ..rules }
}

/// Returns the rules of fitted tables: half the kernel's step, and at most `SLOTS_MAX` slots in a
/// zspage.
pub(crate) fn fitted_rules(page: PageSize) -> Rules {
    let rules = Rules::of_page(page);
    let (step, chain) = (Bytes::new(rules.step.get() / 2), CHAIN_FITTED);
    let least = Bytes::new(chain.bytes(page).get() >> SLOTS_A_PAGE_SHIFT);
    Rules { step, chain, min: rules.min.max(least), ..rules }
}
