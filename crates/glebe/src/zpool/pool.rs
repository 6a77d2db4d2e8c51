//! [`ObjectPool`]: what a pool consists of, how it is made, and its table of size classes.
//!
//! Every call asks first whether this is a forked child ([`ObjectPool::alive`]).

use crate::sync::{MappedWord, Ordering};
use crate::sys::claim::Claim;
use crate::sys::fork::ForkGuard;
use crate::sys::{meminfo, page_size};
use crate::units::{Bytes, PageSize, Pages};
use crate::zpool::class::classes::Classes;
use crate::zpool::codec::Coder;
use crate::zpool::entry::handle::pool_number;
use crate::zpool::entry::table::Entries;
use crate::zpool::error::Error;
use crate::zpool::memory::account::Account;
use crate::zpool::memory::pages::Pages as Supply;
use crate::zpool::memory::zspages::Zspages;
use crate::zpool::objects::{Filled, Objects};
use crate::zpool::options::{Budget, Options, TableChoice};
use crate::zpool::policy::compact::{compact, Compacted, Compactor};
use crate::zpool::policy::evict::Evictor;
use crate::zpool::policy::refit::{adopt, Refit};
use crate::zpool::shared::Memory;
use crate::zpool::sizes::table::Table;
use crate::zpool::space::Space;
use crate::zpool::stats::Stats;

/// Where the machine does not say what it has.
const LIMIT_UNKNOWN: Bytes = Bytes::gib(4);
static POOLS: MappedWord = MappedWord::new(0);

/// Objects of 1 byte to a page, packed across page borders. See the module's head.
#[derive(Debug)]
pub struct ObjectPool {
    pub(crate) objects: Objects,
    pub(crate) coder: Coder,
    pub(crate) number: u32,
    pub(crate) page: PageSize,
    pub(crate) evictor: Evictor,
    pub(crate) compactor: Compactor,
    pub(crate) refit: Refit,
    /// Whether a reclaimer has it.
    pub(crate) claim: Claim,
    guard: ForkGuard,
}

impl ObjectPool {
    /// What a pool is made with.
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
        adopt(&pool.objects.classes, &table, page)?;
        let (_, codec) = pool.coder.count();
        let fixed = pool.fixed_bytes() + codec;
        if !pool.objects.memory.account.charge(fixed) {
            let limit = Bytes::new(pool.objects.memory.account.limit());
            return Err(Error::LimitBelowHeld { limit, held: Bytes::new(fixed) });
        }
        pool.refit.look_if_due(&pool.objects);
        Ok(pool)
    }

    /// What the pool takes before it holds anything.
    fn fixed_bytes(&self) -> u64 {
        let pins = self.objects.memory.pins.held_bytes();
        let table = self.refit.table().held().get();
        size_of::<Self>() as u64 + pins + table + self.objects.classes.held_bytes()
    }

    /// Changes the size classes while the pool is in use. Handles stay what they are. Objects of
    /// classes that are no longer there are moved bit by bit, by whoever compacts and, where that
    /// is automatic, by whoever inserts or removes. From then on the pool chooses none by itself.
    ///
    /// # Errors
    /// [`Error::Rules`], [`Error::Classes`]: the pool cannot have this table; nothing was changed.
    pub fn set_table(&self, table: &Table) -> Result<(), Error> {
        self.alive()?;
        self.refit.set(&self.objects, table)
    }

    /// The table in use.
    #[must_use]
    pub fn table(&self) -> Table {
        self.refit.table()
    }

    /// Pages that [`ObjectPool::compact`] would free now, if nobody reads or writes meanwhile.
    /// Exact, as long as no class is retired, as [`ObjectPool::set_table`] and the pool itself do:
    /// pages of such are not counted, and their objects will go to slots of others that are.
    /// O(classes).
    #[must_use]
    pub fn freeable(&self) -> Pages {
        let classes = self.objects.classes.all();
        Pages::new(classes.map(|class| class.lock().freeable_pages()).sum())
    }

    /// Compacts, as far as the budget allows. Objects that are being read or written meanwhile are
    /// passed over.
    ///
    /// # Errors
    /// [`Error::NoBudget`] for a budget of zero.
    pub fn compact(&self, budget: Budget) -> Result<Compacted, Error> {
        self.alive()?;
        compact(&self.objects, budget)
    }

    /// Changes the limit. Where the pool holds more, it compacts and, if it may, evicts.
    ///
    /// # Errors
    /// [`Error::LimitBelowHeld`]: it cannot shed enough; the limit stays as it was, what was shed
    /// is shed.
    pub fn set_limit(&self, limit: Bytes) -> Result<(), Error> {
        self.alive()?;
        self.evictor.set_limit(&self.objects, limit)
    }

    /// Bytes that the pool holds, everything counted; of small tables some KiB more than there are.
    #[must_use]
    pub fn held(&self) -> Bytes {
        Bytes::new(self.objects.memory.account.held())
    }

    /// The limit of what the pool holds; `u64::MAX` without one.
    #[must_use]
    pub fn limit(&self) -> Bytes {
        Bytes::new(self.objects.memory.account.limit())
    }

    /// The statistics now: O(zspages).
    #[must_use]
    pub fn stats(&self) -> Stats {
        if self.alive().is_ok() {
            self.after_gone();
        }
        Stats::of(&self.objects, self.refit.vectors(&self.objects))
    }

    /// Does what is due after an object went.
    #[inline]
    pub(crate) fn after_gone(&self) {
        self.compactor.after_gone(&self.objects);
        self.refit.look_if_due(&self.objects);
    }

    /// Charges the state of codecs where it grew. The caller pins nothing.
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
    /// Rules that make no table, a codec's bad parameters, a limit that an empty pool passes, or
    /// what the kernel refuses: addresses for the limit, in a process with a limit on those.
    pub fn build(self) -> Result<ObjectPool, Error> {
        ObjectPool::new(&self)
    }
}
