//! Makes and configures [`ObjectPool`]s. Calls that return a `Result` fail in a forked child.

use crate::class::classes::Classes;
use crate::codec::Coder;
use crate::entry::handle::pool_number;
use crate::entry::table::Entries;
use crate::error::Error;
use crate::memory::account::Account;
use crate::memory::pages::Pages as Supply;
use crate::memory::zspages::Zspages;
use crate::objects::{Filled, Objects};
use crate::options::{Budget, Options, TableChoice};
use crate::policy::compact::{compact, Compacted, Compactor};
use crate::policy::evict::Evictor;
use crate::policy::refit::{adopt, Refit};
use crate::shared::Memory;
use crate::sizes::table::Table;
use crate::space::Space;
use crate::stats::Stats;
use glebe_os::internal::sync::{MappedWord, Ordering};
use glebe_os::internal::sys::machine::meminfo;
use glebe_os::internal::sys::page_size;
use glebe_os::internal::sys::processes::claim::Claim;
use glebe_os::internal::sys::processes::fork::ForkGuard;
use glebe_os::units::{Bytes, PageSize, Pages};

/// Assumed memory of a machine that does not report it.
const LIMIT_UNKNOWN: Bytes = Bytes::gib(4);
static POOLS: MappedWord = MappedWord::new(0);

/// Stores objects of 1 byte to a page.
#[derive(Debug)]
pub struct ObjectPool {
    pub(crate) objects: Objects,
    pub(crate) coder: Coder,
    pub(crate) number: u32,
    pub(crate) page: PageSize,
    pub(crate) evictor: Evictor,
    pub(crate) compactor: Compactor,
    pub(crate) refit: Refit,
    pub(crate) claim: Claim,
    guard: ForkGuard,
}

impl ObjectPool {
    /// Returns the default options.
    pub fn options() -> Options {
        Options::default()
    }

    pub(crate) fn new(options: &Options) -> Result<Self, Error> {
        let page = page_size();
        let limit = options.limit.filter(|limit| limit.get() < u64::MAX);
        let all = || meminfo::available().unwrap_or(LIMIT_UNKNOWN);
        let table = options.first_table(limit.unwrap_or_else(all))?;
        let smallest = table.classes().first().map_or(Bytes::new(1), |class| class.size);
        let space = match limit {
            Some(limit) => Space::for_limit(limit, smallest, page)?,
            None => Space::for_all(all(), smallest, page)?,
        };
        let entries = Entries::new(space.entries, page);
        let zspages = Zspages::new(space.zspages, page);
        let supply = Supply::new(space.frames, page.bytes().get(), space.pages);
        let supply = supply.keeping(options.lends.map_or(0, Pages::get));
        let account = Account::new(limit.map_or(u64::MAX, Bytes::get));
        let memory = Memory::new(entries, zspages, supply, account, options.lends.is_some());
        let classes = Classes::new(page.shift());
        let pool = Self {
            objects: Objects { memory, classes, filled: Filled::default() },
            coder: Coder::new(&options.codec, page.bytes().as_usize())?,
            number: pool_number(POOLS.fetch_add(1, Ordering::Relaxed)),
            page,
            evictor: Evictor::new(options.at_limit),
            compactor: Compactor::new(options.compaction),
            refit: Refit::new(table.clone(), page, options.table == TableChoice::Fitted),
            claim: Claim::default(),
            guard: ForkGuard::new(),
        };
        adopt(&pool.objects, &table, page)?;
        let (_, codec) = pool.coder.count();
        let fixed = pool.fixed_bytes() + codec;
        if !pool.objects.memory.account.charge(fixed) {
            let limit = Bytes::new(pool.objects.memory.account.limit());
            return Err(Error::LimitBelowHeld { limit, held: Bytes::new(fixed) });
        }
        pool.refit.look_if_due(&pool.objects);
        Ok(pool)
    }

    fn fixed_bytes(&self) -> u64 {
        let pins = self.objects.memory.pins.held_bytes();
        let table = self.refit.table().held().get();
        size_of::<Self>() as u64 + pins + table + self.objects.classes.held_bytes()
    }

    /// Changes the size classes. The pool no longer chooses classes by itself. Handles stay valid.
    /// Objects leave removed classes during [`ObjectPool::compact`] and, with automatic compaction,
    /// during inserts and removes.
    ///
    /// # Errors
    /// [`Error::Forked`]; [`Error::Rules`], [`Error::Classes`]: the pool cannot have this table.
    pub fn set_table(&self, table: &Table) -> Result<(), Error> {
        self.alive()?;
        self.refit.set(&self.objects, table)
    }

    /// Returns the table in use.
    #[must_use]
    pub fn table(&self) -> Table {
        self.refit.table()
    }

    /// Returns the pages that [`ObjectPool::compact`] would free without concurrent calls and
    /// guards. The number is inexact while a class is being emptied.
    #[must_use]
    pub fn freeable(&self) -> Pages {
        let classes = self.objects.classes.all();
        Pages::new(classes.map(|class| class.lock().freeable_pages()).sum())
    }

    /// Compacts within `budget`. Does not move objects that are being read or written.
    ///
    /// # Errors
    /// [`Error::NoBudget`], [`Error::Forked`].
    pub fn compact(&self, budget: Budget) -> Result<Compacted, Error> {
        self.alive()?;
        compact(&self.objects, budget)
    }

    /// Changes the limit. A pool that exceeds it compacts and, if allowed, evicts.
    ///
    /// # Errors
    /// [`Error::Forked`]; [`Error::LimitBelowHeld`]: the pool cannot shed enough. It keeps the old
    /// limit, but may have evicted objects.
    pub fn set_limit(&self, limit: Bytes) -> Result<(), Error> {
        self.alive()?;
        self.evictor.set_limit(&self.objects, limit)
    }

    /// Returns the bytes held, including some KiB for the growth of small tables.
    #[must_use]
    pub fn held(&self) -> Bytes {
        Bytes::new(self.objects.memory.account.held())
    }

    /// Returns the limit in bytes; `u64::MAX` without one.
    #[must_use]
    pub fn limit(&self) -> Bytes {
        Bytes::new(self.objects.memory.account.limit())
    }

    /// Returns the statistics. O(zspages).
    #[must_use]
    pub fn stats(&self) -> Stats {
        if self.alive().is_ok() {
            self.after_gone();
        }
        Stats::of(&self.objects, self.refit.vectors(&self.objects))
    }

    #[inline]
    pub(crate) fn after_gone(&self) {
        self.compactor.after_gone(&self.objects);
        self.refit.look_if_due(&self.objects);
    }

    #[inline]
    pub(crate) fn count_codec(&self) {
        if self.coder.has_grown() {
            self.evictor.charge_codec(&self.objects, &self.coder);
        }
    }

    #[inline]
    pub(crate) fn alive(&self) -> Result<(), Error> {
        if self.guard.is_child() {
            return Err(Error::Forked);
        }
        Ok(())
    }
}

impl Options {
    /// Makes the pool.
    ///
    /// # Errors
    /// [`Error::Rules`], [`Error::Classes`], [`Error::Codec`]; [`Error::LimitBelowHeld`]: an empty
    /// pool exceeds the limit; [`Error::Os`]: the kernel refuses the addresses.
    pub fn build(self) -> Result<ObjectPool, Error> {
        ObjectPool::new(&self)
    }
}
