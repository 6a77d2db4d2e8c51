//! [`Pool`]: what a pool consists of, how it is made, and its table of size classes.
//!
//! Every call asks first whether this is a forked child ([`Pool::alive`]).

use super::account::Account;
use super::apart::Apart;
use super::class::Shape;
use super::classes::Classes;
use super::coding::Coding;
use super::entries::Entries;
use super::entry::{PAGE_MAX, SLOTS_MAX};
use super::error::Error;
use super::handle::pool_number;
use super::memory::{Memory, CLASSES_MAX};
use super::objects::{Filled, Objects};
use super::options::{AtLimit, Compaction, Options, TableChoice};
use super::pages::Pages as Supply;
use super::refit::Refit;
use super::size_class::{SizeClass, Table};
use super::space::Space;
use super::spill::Spill;
use super::zspage::Zspages;
use crate::sync::{lock, AtomicU64, MappedWord, Mutex, Ordering};
use crate::sys::fork::ForkGuard;
use crate::sys::{meminfo, page_size};
use crate::units::{Bytes, PageSize, Pages};

/// Where the machine does not say what it has.
const LIMIT_UNKNOWN: Bytes = Bytes::gib(4);
/// Slots begin at multiples of this where sizes are such.
const ALIGN: u64 = 8;
static POOLS: MappedWord = MappedWord::new(0);

/// Objects of 1 byte to a page, packed across page borders. See the module's head.
#[derive(Debug)]
pub struct Pool {
    pub(crate) objects: Objects,
    pub(crate) coding: Coding,
    pub(crate) number: u32,
    pub(crate) page: PageSize,
    pub(crate) at_limit: AtLimit,
    pub(crate) compaction: Compaction,
    /// The table in use; its lock is that of changing it.
    pub(crate) table: Mutex<Table>,
    /// The zspage at which the search for one to evict goes on.
    pub(crate) hand: AtomicU64,
    /// The zspage at which the search for idle objects goes on.
    pub(crate) idle_hand: AtomicU64,
    /// The class at which compaction by itself goes on.
    pub(crate) next_class: AtomicU64,
    pub(crate) refit: Refit,
    pub(crate) apart: Apart,
    pub(crate) spill: Spill,
    guard: ForkGuard,
}

impl Pool {
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
            objects: Objects { memory, classes, filled: Filled::new() },
            coding: Coding::new(&options.codec, page.bytes().as_usize())?,
            number: pool_number(POOLS.fetch_add(1, Ordering::Relaxed)),
            page,
            at_limit: options.at_limit,
            compaction: options.compaction,
            table: Mutex::new(table.clone()),
            hand: AtomicU64::new(0),
            idle_hand: AtomicU64::new(0),
            next_class: AtomicU64::new(0),
            refit: Refit::new(options.table == TableChoice::Fitted),
            apart: Apart::new(),
            spill: Spill::new(),
            guard: ForkGuard::new(),
        };
        pool.use_table(&table)?;
        let (_, codec) = pool.coding.count();
        let fixed = pool.fixed_bytes() + codec;
        if !pool.objects.memory.account.charge(fixed) {
            let limit = Bytes::new(pool.objects.memory.account.limit());
            return Err(Error::LimitBelowHeld { limit, held: Bytes::new(fixed) });
        }
        pool.look_if_due();
        Ok(pool)
    }

    /// What the pool takes before it holds anything.
    fn fixed_bytes(&self) -> u64 {
        let pins = self.objects.memory.pins.held_bytes();
        let table = lock(&self.table).held().get();
        size_of::<Self>() as u64 + pins + table + self.objects.classes.held_bytes()
    }

    /// Changes the classes to those of `table`.
    fn use_table(&self, table: &Table) -> Result<(), Error> {
        let (objects, page) = (table.most_objects(), table.rules().page);
        if objects > SLOTS_MAX || page != self.page || page.bytes().get() > PAGE_MAX {
            let (page, machine_page) = (page.bytes(), self.page.bytes());
            return Err(Error::Table { objects, page, objects_max: SLOTS_MAX, machine_page });
        }
        let shape = |class: &SizeClass| {
            // Slots as wide as fit, so that classes of the same zspages are one, on words.
            let (least, widest) = (class.size.get(), class.stride(self.page).get());
            let size = (widest & !(ALIGN - 1)).max(least) as u32;
            let (pages, objects) = (class.pages.get() as u32, class.objects);
            (least as u32, Shape { size, pages, objects })
        };
        let shapes: Vec<(u32, Shape)> = table.classes().iter().map(shape).collect();
        if !self.objects.classes.change(&shapes) {
            let (classes, limit) = (shapes.len(), CLASSES_MAX as usize);
            return Err(Error::Classes { classes, limit });
        }
        Ok(())
    }

    /// Changes the size classes while the pool is in use. Handles stay what they are. Objects of
    /// classes that are no longer there are moved bit by bit, by whoever compacts and, where that
    /// is automatic, by whoever inserts or removes. From then on the pool chooses none by itself.
    ///
    /// # Errors
    /// [`Error::Table`], [`Error::Classes`]: the pool cannot have this table; nothing was changed.
    pub fn set_table(&self, table: &Table) -> Result<(), Error> {
        self.alive()?;
        let mut now = lock(&self.table);
        self.change_table(&mut now, table)?;
        self.refit.stop();
        Ok(())
    }

    /// As [`Pool::set_table`], under the lock of the table.
    pub(crate) fn change_table(&self, now: &mut Table, table: &Table) -> Result<(), Error> {
        let before = self.objects.classes.held_bytes() + now.held().get();
        self.use_table(table)?;
        *now = table.clone();
        let after = self.objects.classes.held_bytes() + table.held().get();
        let account = &self.objects.memory.account;
        account.release(before);
        account.charge_past(after);
        Ok(())
    }

    /// The table in use.
    #[must_use]
    pub fn table(&self) -> Table {
        lock(&self.table).clone()
    }

    #[inline]
    pub(crate) fn alive(&self) -> Result<(), Error> {
        if self.guard.is_child() {
            return Err(Error::Forked);
        }
        Ok(())
    }
}
