//! [`Class`] owns the zspages of one size class and their slots.
//!
//! Only the holder of the class's lock changes zspages, slots, or the [`Entry`] of an object in a
//! slot. Only [`ClassState::pour`] and [`ClassState::move_to`] copy bytes under the lock. A thread
//! that locks two classes locks the lower number first.
//!
//! A slot is *free*, *used* or in *limbo*. A slot in limbo has lost its object, and counts as used
//! until no reader pins its zspage.

pub(crate) mod blocks;
pub(crate) mod classes;
mod growth;
mod moves;
mod seal;

use crate::entry::word::{Entry, Place};
use crate::memory::account::{Account, NoRoom};
use crate::shared::Memory;
use blocks::{Blocks, Groups, GROUPS};
use glebe_os::internal::sync::{lock, AtomicU64, Mutex, MutexGuard, Ordering};

pub(crate) use moves::{Stop, Work};
pub(crate) use seal::{Begun, Fullness};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Shape {
    /// Bytes from one slot to the next.
    pub(crate) size: u32,
    pub(crate) pages: u32,
    pub(crate) objects: u32,
}

#[derive(Debug)]
#[repr(align(64))]
pub(crate) struct Class {
    /// Bytes of a slot. Constant while the class has a zspage.
    size: AtomicU64,
    state: Mutex<ClassState>,
}

impl Class {
    pub(crate) fn new(number: u32, shape: Shape, part_shift: u32) -> Self {
        let state = Mutex::new(ClassState::new(number, shape, part_shift));
        Self { size: AtomicU64::new(shape.size.into()), state }
    }

    #[inline]
    pub(crate) fn size(&self) -> usize {
        self.size.load(Ordering::Relaxed) as usize
    }

    #[inline]
    pub(crate) fn lock(&self) -> MutexGuard<'_, ClassState> {
        lock(&self.state)
    }

    pub(crate) fn try_lock(&self) -> Option<MutexGuard<'_, ClassState>> {
        self.state.try_lock().ok()
    }

    /// The class has no zspage.
    pub(crate) fn reshape(&self, account: &Account, state: &mut ClassState, shape: Shape) {
        let counts = state.counts;
        state.blocks.give_up(account);
        *state = ClassState::new(state.number, shape, state.part_shift);
        state.counts = counts;
        self.size.store(shape.size.into(), Ordering::Relaxed);
    }
}

#[cfg(not(loom))]
const _: () = assert!(size_of::<Class>() <= 320, "a pool makes a hundred of them");

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Empty {
    Stays,
    Goes,
}

#[derive(Debug)]
pub(crate) struct Spot {
    pub(crate) place: Place,
    pub(crate) at: usize,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Counts {
    pub(crate) objects: u64,
    pub(crate) bytes: u64,
    /// Objects that were written to a slot.
    pub(crate) came: u64,
    pub(crate) came_given: u64,
    pub(crate) came_stored: u64,
    pub(crate) went: u64,
    pub(crate) evicted: u64,
    pub(crate) moved: u64,
    pub(crate) compacted: u64,
}

#[derive(Debug)]
pub(crate) struct ClassState {
    number: u32,
    shape: Shape,
    part_shift: u32,
    blocks: Blocks,
    groups: Groups,
    /// Free slots of zspages that are not sealed.
    slack: u32,
    told: u32,
    limbo: Vec<Place>,
    /// Number and first old page of each sealed zspage that readers pin.
    leaving: Vec<(u32, u32)>,
    /// Counts of objects, by the slot's unused bytes in units of `1 << part_shift`.
    pub(crate) below: Vec<u32>,
    /// Bytes of the longest object for which the table chooses this class.
    pub(crate) longest: u32,
    pub(crate) is_retired: bool,
    pub(crate) counts: Counts,
}

impl ClassState {
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

    fn freeable(&self) -> u32 {
        self.slack / self.shape.objects
    }

    pub(crate) fn freeable_pages(&self) -> u64 {
        u64::from(self.freeable()) * u64::from(self.shape.pages)
    }

    pub(crate) fn limbo(&self) -> usize {
        self.limbo.len()
    }

    pub(crate) fn is_waiting(&self) -> bool {
        !self.limbo.is_empty() || !self.leaving.is_empty()
    }

    pub(crate) fn group_counts(&self) -> [u64; GROUPS] {
        self.groups.counts(&self.blocks)
    }

    pub(crate) fn held_bytes(&self) -> u64 {
        let limbo = (self.limbo.capacity() + self.leaving.capacity()) * size_of::<Place>();
        (limbo + self.below.capacity() * size_of::<u32>()) as u64
    }

    #[inline]
    fn below_at(&mut self, len: usize) -> &mut u32 {
        let parts = (self.shape.size as usize - len) >> self.part_shift;
        if self.below.len() <= parts {
            self.below.resize(parts + 1, 0);
        }
        &mut self.below[parts]
    }

    #[inline]
    pub(crate) fn has(&self, memory: &Memory, zspage: u32) -> bool {
        let about = memory.zspages.about(zspage);
        about.exists && about.class == self.number
    }

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

    /// The pool's `freeable` rises at once but falls half a zspage late, so repeated inserts and
    /// removes of one object do not change it.
    #[inline]
    fn set_slack(&mut self, memory: &Memory, slack: u32) {
        let objects = self.shape.objects;
        self.slack = slack;
        if slack >= (self.told + 1) * objects || slack + objects / 2 < self.told * objects {
            self.tell(memory);
        }
    }

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

    /// Frees a slot that no entry names, or puts it in limbo if its zspage is pinned.
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

    fn object(&self, memory: &Memory, ordinal: u32, slot: u32) -> Option<(u32, Entry)> {
        let index = self.blocks.back(ordinal, slot)?;
        let entry = memory.entries.load(index);
        let place = Place { zspage: self.blocks.number(ordinal), slot };
        (entry.has_place() && entry.place() == place).then_some((index, entry))
    }

    #[inline]
    pub(crate) fn count_in(&mut self, stored: usize, given: usize) {
        self.counts.came += 1;
        self.counts.came_given += given as u64;
        self.counts.came_stored += stored as u64;
        self.count_on(stored);
    }

    #[inline]
    fn count_on(&mut self, stored: usize) {
        self.counts.objects += 1;
        self.counts.bytes += stored as u64;
        *self.below_at(stored) += 1;
    }

    #[inline]
    pub(crate) fn count_off(&mut self, entry: Entry) {
        self.counts.objects -= 1;
        self.counts.bytes -= entry.len() as u64;
        *self.below_at(entry.len()) -= 1;
    }

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
