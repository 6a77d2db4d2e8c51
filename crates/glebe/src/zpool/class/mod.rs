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
mod growth;
mod moves;
mod seal;

use crate::sync::{lock, AtomicU64, Mutex, MutexGuard, Ordering};
use crate::zpool::entry::word::{Entry, Place};
use crate::zpool::memory::account::NoRoom;
use crate::zpool::shared::Memory;
use blocks::{Blocks, Groups, GROUPS};

pub(crate) use moves::{Stop, Work};
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
        self.state.try_lock().ok()
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

/// What the lock of a class guards.
#[derive(Debug)]
pub(crate) struct State {
    number: u32,
    shape: Shape,
    /// Bytes of a part of a page, as a power of two.
    part_shift: u32,
    blocks: Blocks,
    groups: Groups,
    /// Free slots.
    slack: u32,
    /// Zspages that the pool's count of freeable ones has of this class: see [`State::set_slack`].
    told: u32,
    /// Slots that objects were given up in while somebody may have been reading them.
    limbo: Vec<Place>,
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
            slack: 0,
            told: 0,
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
    fn freeable(&self) -> u32 {
        self.slack / self.shape.objects
    }

    /// Pages that compaction would free.
    pub(crate) fn freeable_pages(&self) -> u64 {
        u64::from(self.freeable()) * u64::from(self.shape.pages)
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
        let limbo = (self.limbo.capacity() + self.leaving.capacity()) * size_of::<Place>();
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
        self.set_slack(memory, self.slack - 1);
        let at = self.at(memory, self.blocks.page(ordinal), slot);
        Spot { place: Place { zspage: self.blocks.number(ordinal), slot }, at }
    }

    /// Counts free slots. The pool's count of freeable pages is never too low; it falls some slots
    /// late, so that an object which comes and goes does not change it.
    #[inline]
    fn set_slack(&mut self, memory: &Memory, slack: u32) {
        let objects = self.shape.objects;
        self.slack = slack;
        if slack >= (self.told + 1) * objects || slack + objects / 2 < self.told * objects {
            self.tell(memory);
        }
    }

    /// Corrects the pool's count of freeable pages.
    #[cold]
    fn tell(&mut self, memory: &Memory) {
        let (before, now) = (self.told, self.freeable());
        let pages = |zspages: u32| u64::from(zspages * self.shape.pages);
        if now > before {
            memory.freeable.fetch_add(pages(now - before), Ordering::Relaxed);
        } else if now < before {
            memory.freeable.fetch_sub(pages(before - now), Ordering::Relaxed);
        }
        self.told = now;
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

    /// Gives a slot up that no entry names any more, or ever did; whether a zspage went with it.
    #[inline]
    pub(crate) fn give_up(&mut self, memory: &Memory, place: Place, empty: Empty) -> bool {
        let ordinal = memory.zspages.ordinal(place.zspage);
        if memory.pins.is_pinned(place.zspage) {
            self.blocks.set_limbo(ordinal, place.slot);
            self.limbo.push(place);
            memory.waiting.fetch_add(1, Ordering::Relaxed);
            return false;
        }
        self.free(memory, ordinal, place.slot, empty)
    }

    #[inline]
    fn free(&mut self, memory: &Memory, ordinal: u32, slot: u32, empty: Empty) -> bool {
        self.blocks.free_slot(ordinal, slot);
        let used = self.blocks.used(ordinal);
        if !self.blocks.is_sealed(ordinal) {
            self.set_slack(memory, self.slack + 1);
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

    /// Tests what must hold between the parts, for tests; the pages of this class that the pool's
    /// count of freeable ones has.
    ///
    /// # Panics
    /// If it does not.
    #[cfg(test)]
    pub(crate) fn check(&self, memory: &Memory) -> u64 {
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
        assert!(free == self.slack && self.freeable() <= self.told, "slack {self:?}");
        u64::from(self.told * self.shape.pages)
    }

    /// Tests that each back pointer names the entry that names its slot; no call is under way.
    #[cfg(test)]
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
