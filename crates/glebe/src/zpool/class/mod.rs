//! [`Class`]: the zspages of one size class, and what may be done with their slots.
//!
//! All of it is under the class's lock, held for the time of a search in a list; [`State::pour`]
//! and [`State::move_to`] alone copy bytes under it, of a bounded number of objects. Only the
//! holder of this lock changes the *entry* of an object in one of these zspages. A slot is *free*,
//! *used* (an object's, or being written by an insert that has not published its entry yet), or in
//! *limbo*: given up while somebody may be reading there; limbo counts as used until no pin is
//! seen.
//!
//! Slack is the number of free slots in zspages; compaction would free `slack / objects` zspages,
//! which is kept up to date with every slot. Locks of two classes are taken lower number first.

pub(crate) mod blocks;
pub(crate) mod classes;
mod moves;
mod seal;

use std::time::Instant;

use crate::sync::{lock, AtomicU64, Mutex, MutexGuard, Ordering, TryLockError};
use crate::zpool::entry::word::{Entry, Place};
use crate::zpool::memory::account::NoRoom;
use crate::zpool::shared::Memory;
use blocks::{Blocks, Groups, EMPTY, GROUPS};

pub(crate) use seal::{Begun, Fullness};

/// The geometry of a class.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Shape {
    /// Bytes from one slot to the next.
    pub(crate) size: u32,
    /// Pages of a zspage.
    pub(crate) pages: u32,
    /// Slots of a zspage.
    pub(crate) objects: u32,
}

/// See the module.
#[derive(Debug)]
#[repr(align(64))]
pub(crate) struct Class {
    /// Bytes of a slot, for readers: constant while the class has a zspage.
    size: AtomicU64,
    state: Mutex<State>,
}

impl Class {
    /// A class of that number.
    pub(crate) fn new(number: u32, shape: Shape, part_shift: u32) -> Self {
        let state = Mutex::new(State::new(number, shape, part_shift));
        Self { size: AtomicU64::new(shape.size.into()), state }
    }

    /// Bytes of a slot.
    #[inline]
    pub(crate) fn size(&self) -> usize {
        self.size.load(Ordering::Relaxed) as usize
    }

    #[inline]
    pub(crate) fn lock(&self) -> MutexGuard<'_, State> {
        lock(&self.state)
    }

    /// The lock, if nobody has it.
    pub(crate) fn try_lock(&self) -> Option<MutexGuard<'_, State>> {
        match self.state.try_lock() {
            Ok(state) => Some(state),
            Err(TryLockError::Poisoned(poisoned)) => Some(poisoned.into_inner()),
            Err(TryLockError::WouldBlock) => None,
        }
    }

    /// Gives an empty class another shape; the caller has its lock.
    pub(crate) fn reshape(&self, state: &mut State, shape: Shape) {
        let counts = state.counts;
        *state = State::new(state.number, shape, state.part_shift);
        state.counts = counts;
        self.size.store(shape.size.into(), Ordering::Relaxed);
    }
}

#[cfg(not(loom))]
const _: () = assert!(size_of::<Class>() <= 320, "a pool makes a hundred of them");

/// A slot that an object was given up in while somebody may have been reading it.
#[derive(Clone, Copy, Debug)]
struct Limbo {
    zspage: u32,
    slot: u32,
}

/// What becomes of a zspage of which the last slot was given up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Empty {
    /// It stays for the next object, as the only such one of a class that has others.
    Stays,
    /// It leaves.
    Goes,
}

/// A slot that is the caller's alone, and where its bytes begin.
#[derive(Debug)]
pub(crate) struct Spot {
    pub(crate) place: Place,
    pub(crate) at: usize,
}

/// What is counted in a class.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Counts {
    /// Objects there.
    pub(crate) objects: u64,
    /// Their stored bytes.
    pub(crate) bytes: u64,
    /// Objects that came by insert or replace.
    pub(crate) came: u64,
    /// Bytes of these as they were given.
    pub(crate) came_given: u64,
    /// Bytes of these as they were stored.
    pub(crate) came_stored: u64,
    /// Objects that went by remove or replace.
    pub(crate) went: u64,
    /// Objects that were evicted.
    pub(crate) evicted: u64,
    /// Objects that compaction moved within this class or to another.
    pub(crate) moved: u64,
    /// Pages that compaction freed.
    pub(crate) compacted: u64,
}

/// What compaction may still do, and what it did.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Work {
    /// Bytes that may be moved.
    pub(crate) bytes_left: usize,
    /// When it is to stop; looked at after each object.
    pub(crate) until: Option<Instant>,
    pub(crate) moved: u64,
    pub(crate) pages: u64,
}

impl Work {
    /// Whether nothing more is to be moved.
    #[inline]
    pub(crate) fn is_spent(&self) -> bool {
        self.bytes_left == 0 || self.is_late()
    }

    /// Whether its time is over.
    #[inline]
    pub(crate) fn is_late(&self) -> bool {
        self.until.is_some_and(|until| Instant::now() >= until)
    }
}

/// Why compaction of a class stopped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Stop {
    /// Nothing is left to free.
    Done,
    /// The budget.
    Spent,
    /// What is left is pinned or being written.
    Stuck,
}

/// What the lock of a class guards.
#[derive(Debug)]
pub(crate) struct State {
    number: u32,
    shape: Shape,
    /// Bytes of a part of a page, as a power of two.
    part_shift: u32,
    blocks: Blocks,
    groups: Groups,
    /// Free slots beyond a multiple of `shape.objects`.
    slack_rest: u32,
    /// Zspages that compaction would free.
    freeable: u32,
    limbo: Vec<Limbo>,
    /// Sealed zspages whose own pages wait for readers to leave, and the first of these pages.
    leaving: Vec<(u32, u32)>,
    /// Objects by how much smaller they are than a slot, in steps.
    pub(crate) below: Vec<u32>,
    /// The longest object that the table sends here.
    pub(crate) longest: u32,
    /// It is in no table: nothing new comes in.
    pub(crate) is_retired: bool,
    pub(crate) counts: Counts,
}

impl State {
    fn new(number: u32, shape: Shape, part_shift: u32) -> Self {
        Self {
            number,
            shape,
            part_shift,
            blocks: Blocks::new(shape.objects),
            groups: Groups::new(shape.objects),
            slack_rest: 0,
            freeable: 0,
            limbo: Vec::new(),
            leaving: Vec::new(),
            below: Vec::new(),
            longest: shape.size,
            is_retired: false,
            counts: Counts::default(),
        }
    }

    pub(crate) fn shape(&self) -> Shape {
        self.shape
    }

    pub(crate) fn zspages(&self) -> u32 {
        self.blocks.len()
    }

    /// Zspages that compaction would free.
    pub(crate) fn freeable(&self) -> u32 {
        self.freeable
    }

    /// Slots that wait for readers.
    pub(crate) fn limbo(&self) -> usize {
        self.limbo.len()
    }

    /// Whether anything waits for readers.
    pub(crate) fn is_waiting(&self) -> bool {
        !self.limbo.is_empty() || !self.leaving.is_empty()
    }

    pub(crate) fn group_counts(&self) -> [u64; GROUPS] {
        self.groups.counts(&self.blocks)
    }

    /// Bytes that are not charged.
    pub(crate) fn held_bytes(&self) -> u64 {
        let limbo = (self.limbo.capacity() + self.leaving.capacity()) * size_of::<Limbo>();
        (limbo + self.below.capacity() * size_of::<u32>()) as u64
    }

    /// How many objects are as much shorter than a slot as one of `len` bytes.
    #[inline]
    fn below_at(&mut self, len: usize) -> &mut u32 {
        let parts = (self.shape.size as usize - len) >> self.part_shift;
        if self.below.len() <= parts {
            self.below.resize(parts + 1, 0);
        }
        &mut self.below[parts]
    }

    /// Whether a zspage is one of this class.
    #[inline]
    pub(crate) fn has(&self, memory: &Memory, zspage: u32) -> bool {
        let about = memory.zspages.about(zspage);
        about.exists && about.class == self.number
    }

    /// Takes a slot for the object of the entry `index`.
    #[inline]
    pub(crate) fn alloc(&mut self, memory: &Memory, index: u32) -> Result<Spot, NoRoom> {
        let ordinal = match self.groups.fullest() {
            Some(ordinal) => ordinal,
            None => self.grow_or_settle(memory)?,
        };
        Ok(self.take(memory, ordinal, index))
    }

    #[inline]
    fn take(&mut self, memory: &Memory, ordinal: u32, index: u32) -> Spot {
        let used = self.blocks.used(ordinal);
        let slot = self.blocks.take_slot(ordinal, index);
        self.regroup(ordinal, used, used + 1);
        if self.slack_rest == 0 {
            self.slack_rest = self.shape.objects - 1;
            self.freeable -= 1;
            memory.sub_freeable(self.shape.pages.into());
        } else {
            self.slack_rest -= 1;
        }
        let at = self.at(memory, self.blocks.page(ordinal), slot);
        Spot { place: Place { zspage: self.blocks.number(ordinal), slot }, at }
    }

    #[inline]
    fn at(&self, memory: &Memory, page: u32, slot: u32) -> usize {
        memory.pages.start_of(page) + slot as usize * self.shape.size as usize
    }

    #[inline]
    fn regroup(&mut self, ordinal: u32, before: u32, after: u32) {
        let (from, to) = (self.groups.of(before), self.groups.of(after));
        if from != to && !self.blocks.is_sealed(ordinal) {
            self.groups.unlink(&mut self.blocks, ordinal, from);
            self.groups.link(&mut self.blocks, ordinal, to);
        }
    }

    /// A zspage with room where none was: one that readers have left, or a new one.
    #[cold]
    fn grow_or_settle(&mut self, memory: &Memory) -> Result<u32, NoRoom> {
        if !self.limbo.is_empty() {
            self.settle(memory);
            if let Some(ordinal) = self.groups.fullest() {
                return Ok(ordinal);
            }
        }
        self.grow(memory)
    }

    /// Makes a zspage; its ordinal.
    fn grow(&mut self, memory: &Memory) -> Result<u32, NoRoom> {
        let account = &memory.account;
        let (number, made) = memory.zspages.take(account)?;
        let page = match memory.pages.alloc(account, self.shape.pages) {
            Ok(page) => page,
            Err(error) => {
                memory.zspages.drop_number(account, number);
                return Err(error);
            }
        };
        let ordinal = match self.blocks.push(account, number, page) {
            Ok(ordinal) => ordinal,
            Err(error) => {
                memory.pages.free(page, self.shape.pages);
                memory.zspages.drop_number(account, number);
                return Err(error);
            }
        };
        memory.zspages.set((number, made), self.number, page, ordinal);
        self.groups.link(&mut self.blocks, ordinal, EMPTY);
        self.add_slacks(memory, self.shape.objects);
        Ok(ordinal)
    }

    /// Gives a slot up whose object's entry was exchanged just now; whether a zspage went with it.
    #[inline]
    pub(crate) fn give_up(&mut self, memory: &Memory, place: Place, empty: Empty) -> bool {
        let ordinal = memory.zspages.ordinal(place.zspage);
        if memory.pins.is_pinned(place.zspage) {
            self.blocks.set_limbo(ordinal, place.slot);
            self.limbo.push(Limbo { zspage: place.zspage, slot: place.slot });
            memory.add_waiting();
            return false;
        }
        self.free(memory, ordinal, place.slot, empty)
    }

    /// Gives a slot back that nobody ever named; whether a zspage went with it.
    #[inline]
    pub(crate) fn free_unused(&mut self, memory: &Memory, place: Place) -> bool {
        let ordinal = memory.zspages.ordinal(place.zspage);
        self.free(memory, ordinal, place.slot, Empty::Goes)
    }

    #[inline]
    fn free(&mut self, memory: &Memory, ordinal: u32, slot: u32, empty: Empty) -> bool {
        self.blocks.free_slot(ordinal, slot);
        let used = self.blocks.used(ordinal);
        if !self.blocks.is_sealed(ordinal) {
            self.add_slack(memory);
            // Of a class that has no others nothing stays.
            let may_stay = !memory.lends && !self.is_retired && self.zspages() > 1;
            let stays = empty == Empty::Stays && may_stay;
            let is_only = used == 0 && stays && self.groups.empty().is_none();
            self.regroup(ordinal, used + 1, used);
            if used > 0 || is_only {
                return false;
            }
        } else if used > 0 {
            return false;
        }
        self.shrink(memory, ordinal);
        if self.zspages() == 1 {
            self.free_empty(memory);
        }
        true
    }

    /// Frees zspages of which no slot is in use; how many.
    pub(crate) fn free_empty(&mut self, memory: &Memory) -> u32 {
        let before = self.zspages();
        while let Some(ordinal) = self.groups.empty() {
            self.shrink(memory, ordinal);
        }
        before - self.zspages()
    }

    #[inline]
    fn add_slack(&mut self, memory: &Memory) {
        self.slack_rest += 1;
        if self.slack_rest == self.shape.objects {
            self.slack_rest = 0;
            self.freeable += 1;
            memory.add_freeable(self.shape.pages.into());
        }
    }

    /// Frees a zspage of which no slot is in use.
    #[cold]
    fn shrink(&mut self, memory: &Memory, ordinal: u32) {
        if self.blocks.is_sealed(ordinal) {
            return self.end_sealed(memory, ordinal);
        }
        let (number, page) = (self.blocks.number(ordinal), self.blocks.page(ordinal));
        self.sub_slacks(memory, self.shape.objects);
        self.groups.unlink(&mut self.blocks, ordinal, EMPTY);
        self.drop_block(memory, ordinal);
        memory.zspages.put_back(&memory.account, number);
        memory.pages.free(page, self.shape.pages);
    }

    /// Takes the block of a zspage away that stands in no list.
    fn drop_block(&mut self, memory: &Memory, ordinal: u32) {
        if let Some(moved) = self.blocks.remove(&memory.account, ordinal) {
            self.blocks.tell(&memory.zspages, moved);
            if !self.blocks.is_sealed(moved) {
                let group = self.groups.of(self.blocks.used(moved));
                self.groups.relink(&mut self.blocks, moved, group);
            }
        }
    }

    /// Frees the slots in limbo where nobody reads any more; whether a zspage went.
    pub(crate) fn settle(&mut self, memory: &Memory) -> bool {
        let waiting = std::mem::take(&mut self.limbo);
        let mut went = false;
        if !self.leaving.is_empty() {
            went = self.settle_leaving(memory);
        }
        for limbo in waiting {
            if memory.pins.is_pinned(limbo.zspage) {
                self.limbo.push(limbo);
            } else {
                let Limbo { zspage, slot } = limbo;
                memory.sub_waiting();
                went |= self.free_unused(memory, Place { zspage, slot });
            }
        }
        went
    }

    /// The object in a slot: its entry's index and the entry. None where the slot is free, or
    /// still being written.
    fn object(&self, memory: &Memory, ordinal: u32, slot: u32) -> Option<(u32, Entry)> {
        let index = self.blocks.back(ordinal, slot)?;
        let entry = memory.entries.load(index);
        let place = Place { zspage: self.blocks.number(ordinal), slot };
        (entry.has_place() && entry.place() == place).then_some((index, entry))
    }

    /// Counts an object that is about to be published, or was taken back.
    #[inline]
    pub(crate) fn count_in(&mut self, stored: usize, given: usize) {
        self.counts.came += 1;
        self.counts.came_given += given as u64;
        self.counts.came_stored += stored as u64;
        self.count_on(stored);
    }

    /// Counts an object that is in a slot here now.
    #[inline]
    fn count_on(&mut self, stored: usize) {
        self.counts.objects += 1;
        self.counts.bytes += stored as u64;
        *self.below_at(stored) += 1;
    }

    /// Counts an object off that is still in its slot.
    #[inline]
    pub(crate) fn count_off(&mut self, entry: Entry) {
        self.counts.objects -= 1;
        self.counts.bytes -= entry.len() as u64;
        *self.below_at(entry.len()) -= 1;
    }

    /// Tests what must hold between the parts, for tests.
    ///
    /// # Panics
    /// If it does not.
    #[cfg(any(test, loom))]
    pub(crate) fn check(&self, memory: &Memory) {
        let mut free = 0;
        for ordinal in 0..self.blocks.len() {
            let number = self.blocks.number(ordinal);
            assert_eq!(memory.zspages.ordinal(number), ordinal);
            assert!(self.has(memory, number));
            let used = self.blocks.used(ordinal);
            assert!(used <= self.shape.objects, "{used} slots in use");
            assert!(used > 0 || self.groups.empty() == Some(ordinal), "two empty zspages");
            if !self.blocks.is_sealed(ordinal) {
                free += self.shape.objects - used;
            }
            let fresh = self.blocks.fresh(ordinal);
            let live = (0..fresh).filter(|slot| self.blocks.back(ordinal, *slot).is_some());
            let limbo = self.limbo.iter().filter(|limbo| limbo.zspage == number).count();
            assert_eq!(live.count() + limbo, used as usize, "zspage {number}");
            self.check_back_pointers(memory, ordinal);
        }
        assert_eq!(free, self.freeable * self.shape.objects + self.slack_rest, "slack");
    }

    /// Tests that each back pointer names the entry that names its slot; no call is under way.
    #[cfg(any(test, loom))]
    fn check_back_pointers(&self, memory: &Memory, ordinal: u32) {
        let zspage = self.blocks.number(ordinal);
        for slot in 0..self.blocks.fresh(ordinal) {
            let Some(index) = self.blocks.back(ordinal, slot) else { continue };
            let entry = memory.entries.load(index);
            let named = entry.has_place().then(|| entry.place());
            assert_eq!(named, Some(Place { zspage, slot }), "back pointer to entry {index}");
        }
    }
}
