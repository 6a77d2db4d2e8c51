//! [`Pool`]: handles to objects, and what the pool does by itself: compaction, room at the limit.
//!
//! Bytes are encoded and decoded here and nowhere below ([`Pool::insert`], [`Pool::read`]). Every
//! call asks first whether this is a forked child. Cost: an insert, a remove: one lock that only
//! objects of the same class share, a copy, no allocation; a read: no lock.
//!
//! # Safety
//! Bytes of an object are lent for the time of a copy, between pin and unpin.
#![allow(unsafe_code)]

use super::account::{Account, NoRoom};
use super::class::Shape;
use super::classes::Classes;
use super::entries::Entries;
use super::entry::{Kind, PAGE_MAX, SLOTS_MAX, ZSPAGE_BITS};
use super::error::Error;
use super::frames::Frames;
use super::guard::Guard;
use super::handle::{pool_number, Handle};
use super::memory::{Memory, CLASSES_MAX};
use super::objects::{Objects, Pinned};
use super::options::{AtLimit, Compaction, Options, TableChoice};
use super::pages::Pages as Supply;
use super::refit::Refit;
use super::size_class::{SizeClass, Table};
use super::words::Words;
use super::zspage::Zspages;
use crate::stats::{lane, LANES};
use crate::sync::{lock, AtomicU64, MappedWord, Mutex, Ordering};
use crate::sys::fork::ForkGuard;
use crate::sys::{meminfo, page_size};
use crate::units::{Bytes, PageSize, Pages};

/// Address space for each page of the limit: runs of pages are taken where they fit, so that
/// what is free may lie in pieces.
const SPACE_PER_LIMIT: u64 = 2;
/// The least limit that address space is reserved for.
const SPACE_MIN: Bytes = Bytes::mib(1);
/// Where the machine does not say what it has.
const LIMIT_UNKNOWN: Bytes = Bytes::gib(4);
/// Entries that are numbered at most: the top bit of a back pointer is not one of an index.
const ENTRIES_MAX: u64 = 1 << 30;
/// Slots begin at multiples of this where sizes are such.
const ALIGN: u64 = 8;
/// Attempts to make room, against other threads that take it.
const ROOM_ATTEMPTS: u32 = 256;

static POOLS: MappedWord = MappedWord::new(0);

/// Objects of 1 byte to a page, packed across page borders. See the module's head.
#[derive(Debug)]
pub struct Pool {
    pub(crate) objects: Objects,
    number: u32,
    page: PageSize,
    pub(crate) at_limit: AtLimit,
    pub(crate) compaction: Compaction,
    /// The table in use; its lock is that of changing it.
    pub(crate) table: Mutex<Table>,
    /// The zspage at which the search for one to evict goes on.
    pub(crate) hand: AtomicU64,
    /// The class at which compaction by itself goes on.
    pub(crate) next_class: AtomicU64,
    pub(crate) refit: Refit,
    guard: ForkGuard,
}

impl Pool {
    /// What a pool is made with.
    pub fn options() -> Options {
        Options::default()
    }

    pub(crate) fn new(options: &Options) -> Result<Self, Error> {
        let page = page_size();
        let all = || meminfo::available().unwrap_or(LIMIT_UNKNOWN);
        let limit = options.limit.unwrap_or_else(all);
        let table = options.first_table(limit)?;
        let space = limit.max(SPACE_MIN).pages_up(page).get();
        let pages = (space * SPACE_PER_LIMIT).min(1 << ZSPAGE_BITS) as usize;
        let frames = Frames::new(Pages::new(pages as u64), page)?;
        let smallest = table.classes().first().map_or(1, |class| class.size.get());
        let entries = (space * page.bytes().get() / smallest).clamp(1, ENTRIES_MAX) as usize;
        let (words, segments) = Entries::lens(entries);
        let entries = Entries::new(Words::new(words)?, Words::new(segments)?, LANES, page);
        let zspages = Zspages::new(Words::new(Zspages::table_len(pages))?, page);
        let supply = Supply::new(frames, page.bytes().get(), pages as u32);
        let account = Account::new(options.limit.map_or(u64::MAX, Bytes::get));
        let memory = Memory::new(entries, zspages, supply, account);
        let classes = Classes::new(page.shift());
        let pool = Self {
            objects: Objects { memory, classes },
            number: pool_number(POOLS.fetch_add(1, Ordering::Relaxed)),
            page,
            at_limit: options.at_limit,
            compaction: options.compaction,
            table: Mutex::new(table.clone()),
            hand: AtomicU64::new(0),
            next_class: AtomicU64::new(0),
            refit: Refit::new(options.table == TableChoice::Fitted),
            guard: ForkGuard::new(),
        };
        pool.use_table(&table)?;
        let fixed = pool.fixed_bytes();
        if !pool.objects.memory.account.charge(fixed) {
            let limit = Bytes::new(pool.objects.memory.account.limit());
            return Err(Error::LimitBelowHeld { limit, held: Bytes::new(fixed) });
        }
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
    /// is automatic, by whoever inserts or removes.
    ///
    /// # Errors
    /// [`Error::Table`], [`Error::Classes`]: the pool cannot have this table; nothing was changed.
    pub fn set_table(&self, table: &Table) -> Result<(), Error> {
        self.alive()?;
        let mut now = lock(&self.table);
        self.change_table(&mut now, table)
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

    /// The place that a handle means.
    #[inline]
    fn of(&self, handle: Handle) -> Result<(u32, u32), Error> {
        self.alive()?;
        if handle.pool() != self.number {
            return Err(Error::Foreign);
        }
        Ok((handle.index(), handle.generation()))
    }

    #[inline]
    fn checked_len(&self, len: usize) -> Result<(), Error> {
        self.alive()?;
        if len == 0 {
            return Err(Error::Empty);
        }
        if len as u64 > self.page.bytes().get() {
            return Err(Error::TooLong { len, page: self.page.bytes() });
        }
        Ok(())
    }

    /// Stores an object.
    ///
    /// # Errors
    /// [`Error::Empty`] and [`Error::TooLong`] for what no pool takes, [`Error::Full`] at the
    /// limit, or what the kernel refuses.
    #[inline]
    pub fn insert(&self, bytes: &[u8]) -> Result<Handle, Error> {
        self.insert_as(None, bytes)
    }

    /// As [`Pool::insert`], together with others of `group`: a hint that these will go at about
    /// the same time.
    ///
    /// # Errors
    /// As [`Pool::insert`].
    pub fn insert_in(&self, group: u32, bytes: &[u8]) -> Result<Handle, Error> {
        self.insert_as(Some(group), bytes)
    }

    #[inline]
    fn insert_as(&self, group: Option<u32>, bytes: &[u8]) -> Result<Handle, Error> {
        self.checked_len(bytes.len())?;
        let lane = lane();
        let insert = || self.objects.insert(lane, group, Kind::Raw, bytes);
        let (index, generation) = match insert() {
            Ok(made) => made,
            Err(error) => self.with_room(bytes.len(), error, insert)?,
        };
        if self.objects.classes.is_draining() {
            self.drain_some();
        }
        self.refit_if_due();
        Ok(Handle::new(self.number, generation, index))
    }

    /// Does again what met `error`, after there is room.
    #[cold]
    fn with_room<T>(
        &self,
        len: usize,
        error: NoRoom,
        again: impl Fn() -> Result<T, NoRoom>,
    ) -> Result<T, Error> {
        let (mut error, mut trimmed) = (error, false);
        for _ in 0..ROOM_ATTEMPTS {
            match error {
                NoRoom::Os(error) => return Err(error.into()),
                NoRoom::Space if self.objects.memory.account.limit() == u64::MAX => {
                    return Err(Error::Space)
                }
                NoRoom::Limit | NoRoom::Space => {}
            }
            if !self.make_room(&mut trimmed) {
                break;
            }
            match again() {
                Ok(made) => return Ok(made),
                Err(other) => error = other,
            }
        }
        let account = &self.objects.memory.account;
        let (held, limit) = (Bytes::new(account.held()), Bytes::new(account.limit()));
        Err(Error::Full { len, held, limit })
    }

    #[inline]
    fn pinned(&self, handle: Handle) -> Result<Pinned, Error> {
        let (index, generation) = self.of(handle)?;
        let pinned = self.objects.pin(index, generation).ok_or(Error::Stale)?;
        if self.at_limit == AtLimit::EvictOldest && !pinned.is_referenced {
            self.objects.memory.zspages.refer(pinned.entry.place().zspage);
        }
        Ok(pinned)
    }

    /// The length of an object.
    ///
    /// # Errors
    /// [`Error::Stale`], [`Error::Foreign`]: it is not there.
    pub fn len_of(&self, handle: Handle) -> Result<usize, Error> {
        let (index, generation) = self.of(handle)?;
        Ok(self.objects.entry(index, generation).ok_or(Error::Stale)?.len())
    }

    /// Copies an object to the start of `buf`; its length.
    ///
    /// # Errors
    /// [`Error::Stale`], [`Error::Foreign`]: it is not there. [`Error::BufferTooSmall`].
    #[inline]
    pub fn read(&self, handle: Handle, buf: &mut [u8]) -> Result<usize, Error> {
        let pinned = self.pinned(handle)?;
        // SAFETY: not used after the unpin below.
        let bytes = unsafe { self.objects.bytes(&pinned) };
        let (given, len) = (buf.len(), bytes.len());
        let fits = buf.get_mut(..len).map(|buf| buf.copy_from_slice(bytes));
        self.objects.unpin(&pinned);
        fits.map(|()| len).ok_or(Error::BufferTooSmall { given, len })
    }

    /// An object's bytes in place, for a short time.
    ///
    /// # Errors
    /// [`Error::Stale`], [`Error::Foreign`]: it is not there.
    pub fn get(&self, handle: Handle) -> Result<Guard<'_>, Error> {
        Ok(Guard::new(&self.objects, self.pinned(handle)?))
    }

    /// Stores other bytes under the same handle. Whoever reads meanwhile has the old ones or the
    /// new ones.
    ///
    /// # Errors
    /// As [`Pool::insert`] and [`Pool::read`]; the object is as it was, if it still is there.
    pub fn replace(&self, handle: Handle, bytes: &[u8]) -> Result<(), Error> {
        self.checked_len(bytes.len())?;
        let (index, generation) = self.of(handle)?;
        self.objects.entry(index, generation).ok_or(Error::Stale)?;
        let replace = || self.objects.replace(index, generation, Kind::Raw, bytes);
        let done = match replace() {
            Ok(done) => done,
            Err(error) => self.with_room(bytes.len(), error, replace)?,
        };
        self.after_gone();
        if done {
            Ok(())
        } else {
            Err(Error::Stale)
        }
    }

    /// Removes an object.
    ///
    /// # Errors
    /// [`Error::Stale`], [`Error::Foreign`]: it is not there.
    #[inline]
    pub fn remove(&self, handle: Handle) -> Result<(), Error> {
        let (index, generation) = self.of(handle)?;
        self.objects.remove(lane(), index, generation).ok_or(Error::Stale)?;
        self.after_gone();
        Ok(())
    }
}
