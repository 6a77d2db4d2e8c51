//! What a pool is made with.

use std::time::{Duration, Instant};

use crate::units::{Bytes, PageSize, Pages};
use crate::zpool::codec::Codec;
use crate::zpool::error::Error;
use crate::zpool::sizes::table::{Rules, Table};

/// What happens when a limit leaves no room, after compaction has freed what it could.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum AtLimit {
    /// The call is refused.
    #[default]
    Refuse,
    /// Objects are removed, a whole zspage of them at a time, until there is room. The zspage that
    /// goes is the oldest of a sample of those that were not read since they were last looked
    /// at; of few zspages the sample is all of them.
    EvictOldest,
}

/// When zspages are compacted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Compaction {
    /// A little with each remove or replace, once it would free more than a two-thousandth of
    /// the pool's pages; before anything is refused or evicted; and by request.
    #[default]
    Automatic,
    /// Before anything is refused or evicted, and by request.
    Manual,
}

/// How size classes are chosen.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum TableChoice {
    /// By the kernel's rules with chains that suit the size: 4 pages in a small pool, 8 in one
    /// that may hold 64 MiB or more.
    BySize,
    /// By these rules, and never otherwise.
    Rules(Rules),
    /// By the kernel's rules for a small pool at first, then by what the pool holds: whenever its
    /// pages have become a sixteenth more or fewer, classes are chosen for the lengths there are,
    /// if that saves more than it costs to move what is there.
    #[default]
    Fitted,
}

/// The most that one call of [`compact`](super::ObjectPool::compact) does. It stops at the first
/// object that takes it over the budget.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Budget {
    /// Until so many pages were freed.
    Pages(Pages),
    /// Until so much time has passed.
    Time(Duration),
    /// Until nothing is left to free.
    All,
}

impl Budget {
    /// When it ends, if that is a time.
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

/// What a pool is made with.
#[derive(Clone, Debug, Default)]
#[must_use]
pub struct Options {
    pub(crate) limit: Option<Bytes>,
    pub(crate) at_limit: AtLimit,
    pub(crate) table: TableChoice,
    pub(crate) compaction: Compaction,
    pub(crate) codec: Codec,
    /// Whether zspages are sealed: then so many pages wait for the next ones.
    pub(crate) lends: Option<Pages>,
}

/// From a limit of this on, zspages may be longer.
const LARGE: Bytes = Bytes::mib(64);
const CHAIN_SMALL: Pages = Pages::new(4);
const CHAIN_LARGE: Pages = Pages::new(8);
/// Where classes are chosen for what there is.
const CHAIN_FITTED: Pages = Pages::new(10);
/// The least size of a slot, as a part of a page: zspages of one page have so many slots.
const SLOTS_A_PAGE_SHIFT: u32 = 10;

impl Options {
    /// The most that the pool may hold, everything counted: objects, rounding, free slots, tables
    /// and the state of codecs. Without one, or with `u64::MAX`, as much as the machine has
    /// available when the pool is made. A pool reserves addresses for one to two times its limit
    /// and for its tables. They are no memory. Without a limit it reserves no more than half of
    /// what the process may still have (`RLIMIT_AS`).
    ///
    /// With zstd each thread that codes or decodes at the same time as others takes a state of its
    /// own, of a few hundred KiB: where objects may not be evicted for it, the limit is passed by
    /// that until some go.
    pub fn limit(mut self, limit: Bytes) -> Self {
        self.limit = Some(limit);
        self
    }

    /// What happens at the limit.
    pub fn at_limit(mut self, at_limit: AtLimit) -> Self {
        self.at_limit = at_limit;
        self
    }

    /// How size classes are chosen.
    pub fn table(mut self, choice: TableChoice) -> Self {
        self.table = choice;
        self
    }

    /// When zspages are compacted.
    pub fn compaction(mut self, compaction: Compaction) -> Self {
        self.compaction = compaction;
        self
    }

    /// How objects are made smaller; LZ4 if nothing is said. With [`Codec::None`] everything is
    /// stored as it is, what one word fills as well.
    pub fn codec(mut self, codec: Codec) -> Self {
        self.codec = codec;
        self
    }

    /// Lets zspages be sealed, and keeps so many of their pages for the next ones.
    pub(crate) fn lend(mut self, keep: Pages) -> Self {
        self.lends = Some(keep);
        self
    }

    /// The table for a pool of up to `limit`.
    pub(crate) fn first_table(&self, limit: Bytes) -> Result<Table, Error> {
        let page = crate::sys::page_size();
        let rules = match self.table {
            TableChoice::Rules(rules) => rules,
            TableChoice::BySize if limit >= LARGE => rules_of(page, CHAIN_LARGE),
            TableChoice::BySize | TableChoice::Fitted => rules_of(page, CHAIN_SMALL),
        };
        Ok(Table::by_rules(&rules)?)
    }
}

/// The kernel's rules, with as many slots in a page as a zspage of it may have.
fn rules_of(page: PageSize, chain: Pages) -> Rules {
    let rules = Rules::of_page(page);
    let least = Bytes::new(page.bytes().get() >> SLOTS_A_PAGE_SHIFT);
    Rules { chain, min: rules.min.max(least), ..rules }
}

/// What tables are fitted by: lengths to half a step of the kernel's, and no zspage of more slots
/// than it may have.
pub(crate) fn fitted_rules(page: PageSize) -> Rules {
    let rules = Rules::of_page(page);
    let (step, chain) = (Bytes::new(rules.step.get() / 2), CHAIN_FITTED);
    let least = Bytes::new(chain.bytes(page).get() >> SLOTS_A_PAGE_SHIFT);
    Rules { step, chain, min: rules.min.max(least), ..rules }
}
