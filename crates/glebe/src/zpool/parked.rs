//! Insert and remove by way of the thread's own lane ([`lanes`](super::lanes)): no lock.
//!
//! Who changes a live entry has its slot from then on, by compare and exchange: a remove that
//! holds no lock and a mover that holds the class's cannot both have it. What was removed is
//! parked, or given up under the class's lock. A parked slot is written again only if no pin of
//! its zspage is seen, which is looked at after the exchange, as by whoever gives a slot up.
//!
//! An entry word that was seen before may be exchanged although it is another use's, when the
//! generations have come round meanwhile, or were passed over with an epoch. A lane's thread loads
//! and exchanges while it is busy; so an entry whose generation is zero again is given back only
//! after each lane was seen not to be, or never, and so is a page of entries taken from that goes
//! on with a later epoch. Those who hold a class's lock need no such care: a parked slot leaves its
//! entry under that lock alone.
//!
//! An object that a lane owns is removed by plain stores: its word is changed by whoever is in the
//! lane or has it locked, and by nobody else, and no reader has seen it, so pins say nothing of it.
//!
//! # Safety
//! Bytes are written to a slot whose entry was parked and taken out by this thread, and read of a
//! slot whose entry it exchanged.
#![allow(unsafe_code)]

use super::class::given;
use super::entries::swapped;
use super::entry::{Entry, Kind};
use super::lanes::{Inside, Kept, Lane, Magazine, Owner, Wanted, PLACES};
use super::objects::Objects;
use super::threads::thread_number;
use crate::sync::Ordering;

/// What a remove by way of the lane came to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Quick {
    /// The object is gone, and its slot parked.
    Parked,
    /// The object is gone, and its entry was this.
    Taken(Entry),
    /// There is no such object.
    Stale,
    /// Nothing was done.
    None,
}

/// What became of a slot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Removed {
    /// It waits for the thread's next object.
    Parked,
    /// It is free, or will be when nobody reads there.
    GivenUp,
}

impl Objects {
    /// Stores an object in a slot that this thread has parked, if there is one that fits: its
    /// entry's index and the use of it that a handle is to name. Whether the lane may own it.
    #[inline]
    pub(crate) fn insert_parked(
        &self,
        thread: usize,
        (kind, bytes, len): (Kind, &[u8], usize),
        may_own: bool,
    ) -> Option<(u32, u32)> {
        let memory = &self.memory;
        let inside = self.lanes.enter(thread)?;
        let number = self.classes.of(bytes.len());
        let magazine = inside.magazine(number)?;
        let (nth, Kept { index, named, entry: was, at }, was_seen) = magazine.first()?;
        let (size, place, new) = (magazine.slot_bytes(), was.place(), bytes.len());
        // The look-up may be that of another table.
        if new > size || was_seen && memory.pins.is_pinned(place.zspage) {
            return None;
        }
        let live = Entry::live(kind, place, if kind == Kind::Wide { len } else { new }, named);
        let is_owned = may_own && inside.take_and_own(magazine, nth, live);
        if !is_owned {
            inside.take(magazine, nth);
        }
        if live.is_like(was) && len == new {
            magazine.came(0, 0);
        } else {
            let old = was.len();
            magazine.came(new.wrapping_sub(old) as u64, len.wrapping_sub(new) as u64);
            let part = |len| self.classes.part_of(size as u32, len);
            inside.recount(part(old), part(new));
        }
        drop(inside);
        // SAFETY: the slot is this call's alone until its entry is published: it was parked, and
        // nobody reads there.
        unsafe { memory.pages.frames().write(at, bytes) };
        let owned = || Entry::owned(Owner::new(thread, number, nth).raw(), named);
        memory.entries.publish(index, if is_owned { owned() } else { live });
        Some((index, named))
    }

    /// Removes an object; what became of its slot, if it was there.
    #[inline]
    pub(crate) fn remove(&self, thread: usize, index: u32, named: u32) -> Option<Removed> {
        match self.remove_parked(thread, index, named) {
            Quick::Parked => Some(Removed::Parked),
            Quick::Taken(entry) => {
                self.give_back(thread, index, entry);
                Some(Removed::GivenUp)
            }
            Quick::Stale => None,
            Quick::None => self.remove_locked(thread, index, named).then_some(Removed::GivenUp),
        }
    }

    #[inline]
    fn remove_parked(&self, thread: usize, index: u32, named: u32) -> Quick {
        let memory = &self.memory;
        let Some(inside) = self.lanes.enter(thread) else { return Quick::None };
        let Some((word, entry)) = memory.entries.at_home(index) else { return Quick::None };
        if !memory.entries.is(index, entry, named) {
            return Quick::Stale;
        }
        if !entry.has_place() {
            return Quick::None;
        }
        // Looked up before the exchange, which what follows it waits for.
        let place = entry.place();
        let about = memory.zspages.about(place.zspage);
        let magazine = inside.magazine(about.class);
        let freed = entry.freed();
        if !swapped(word, entry, freed) {
            return Quick::None;
        }
        // Now the zspage stays as it is, since this slot of it is in use.
        let now = memory.zspages.about(place.zspage);
        let Some(magazine) =
            magazine.filter(|_| (now.class, now.page) == (about.class, about.page))
        else {
            return Quick::Taken(entry);
        };
        if now.is_unparked {
            memory.zspages.set_parked(place.zspage);
        }
        let at = memory.pages.start_of(about.page) + place.slot as usize * magazine.slot_bytes();
        let may_park = freed.generation() != 0 && memory.entries.is_dense(index);
        let kept = Kept { index, named: named.wrapping_add(1), entry, at };
        let is_parked = may_park
            && (inside.park(magazine, kept)
                || self.make_place(&inside, (about.class, magazine))
                    && inside.park(magazine, kept));
        if !is_parked {
            return Quick::Taken(entry);
        }
        let extra = match entry.kind() {
            Kind::Raw => 0,
            _ => given(memory, entry, || at).wrapping_sub(entry.len() as u64),
        };
        magazine.went(extra);
        Quick::Parked
    }

    /// Removes an object that this thread's lane owns, and parks its slot. False, and nothing done,
    /// if it is another one, or its entry or slot is to be given back.
    #[inline]
    pub(crate) fn remove_owned(&self, thread: usize, index: u32, named: u32) -> bool {
        let Some((word, owner)) = self.memory.entries.owner(index) else { return false };
        if owner.thread() != thread {
            return false;
        }
        let Some(inside) = self.lanes.enter(thread) else { return false };
        let Some(magazine) = inside.magazine(owner.class()) else { return false };
        // As long as it is owned the word is what it was.
        let Some(kept) = magazine.owned(owner.place()) else { return false };
        let freed = kept.entry.freed();
        if (kept.index, kept.named) != (index, named)
            || freed.generation() == 0
            || !inside.park_owned(magazine, owner.place())
        {
            return false;
        }
        // To all others there was no object.
        word.store(freed.raw(), Ordering::Release);
        magazine.went(0);
        true
    }

    /// Makes places of what is owned and stays: they serve better so. Whether there may be any.
    #[cold]
    fn make_place(&self, inside: &Inside<'_>, (class, at): (u32, &Magazine)) -> bool {
        at.is_full_of_owned() && !self.disown(inside.thread(), class, at, Wanted::Little)
    }

    /// Takes from a lane what a magazine of it owns, but what is still being written; whether
    /// anything of that is left. The lane is this thread's, who is there, or locked.
    #[cold]
    fn disown(&self, thread: usize, class: u32, magazine: &Magazine, wanted: Wanted) -> bool {
        let (mut is_any, mut is_left) = (false, false);
        for (nth, kept) in magazine.all_owned() {
            let owned = Entry::owned(Owner::new(thread, class, nth).raw(), kept.named);
            is_any = true;
            match self.memory.entries.own_word(kept.index) {
                Some((word, now)) if now == owned => {
                    word.store(kept.entry.raw(), Ordering::SeqCst);
                    magazine.let_go(nth);
                }
                _ => is_left = true,
            }
        }
        if is_any {
            magazine.own_less(wanted);
        }
        is_left
    }

    /// The entry of an object that a lane owned when it was looked at, if it still is there: taken
    /// from the lane.
    #[cold]
    pub(crate) fn entry_of_owned(&self, index: u32, named: u32) -> Option<Entry> {
        let (entries, own) = (&self.memory.entries, thread_number());
        loop {
            let entry = entries.load(index);
            if entries.is(index, entry, named) {
                return Some(entry);
            }
            let owner = entry.owner().filter(|_| entries.is_owned(index, entry, named))?;
            let owner = Owner::from_raw(owner);
            let (thread, class) = (owner.thread(), owner.class());
            if let Some(inside) = self.lanes.enter(own).filter(|_| thread == own) {
                let magazine = inside.magazine(class);
                magazine.map(|at| self.disown(thread, class, at, Wanted::Little));
                continue;
            }
            self.lanes.locked(own, thread, |lane| {
                for (class, magazine) in lane.magazines() {
                    self.disown(thread, class, magazine, Wanted::Elsewhere);
                }
            });
        }
    }

    /// Takes from all lanes what they own.
    pub(crate) fn disown_all(&self, thread: usize) {
        self.lanes.each_locked(thread, false, |lane| {
            for (class, magazine) in lane.magazines() {
                self.disown(lane.thread(), class, magazine, Wanted::Little);
            }
        });
    }

    /// Gives up the slot of an object whose entry this thread exchanged, and the entry.
    #[cold]
    fn give_back(&self, thread: usize, index: u32, entry: Entry) {
        let memory = &self.memory;
        let place = entry.place();
        let number = memory.zspages.about(place.zspage).class;
        let Some(class) = self.classes.get(number) else { return };
        let mut state = class.lock();
        self.count_gone(&mut state, entry);
        state.give_up(memory, place);
        if let Some(inside) = self.lanes.enter(thread).filter(|_| !state.is_retired) {
            inside.open(&memory.account, number, state.shape().size);
        }
        drop(state);
        self.free_entry(thread, index);
        self.make_lane(thread);
    }

    /// Gives an entry back whose object is gone and whose word says so.
    #[inline]
    pub(crate) fn free_entry(&self, thread: usize, index: u32) {
        let memory = &self.memory;
        if memory.entries.load(index).generation() == 0 && !self.lanes.wait_out(thread) {
            return memory.entries.retire(&memory.account, index);
        }
        memory.entries.free(&memory.account, thread, index);
    }

    /// Makes this thread's lane, or sees to its bound.
    pub(crate) fn make_lane(&self, thread: usize) {
        let memory = &self.memory;
        let used = memory.pages.used() * memory.pages.page_bytes();
        self.lanes.make(&memory.account, thread, used);
    }

    /// Gives up what is parked, in all lanes, and takes from them what they own; whether anything
    /// was parked. Whoever parks meanwhile may have something parked after it.
    pub(crate) fn unpark(&self, thread: usize) -> bool {
        let is_parked = self.lanes.has_parked();
        if self.lanes.have_any() {
            self.lanes.each_locked(thread, false, |lane| self.empty(thread, lane));
        }
        is_parked
    }

    /// As [`Objects::unpark`], tells the classes what was counted, and parks nothing any more of
    /// those that are retired. False if some lanes could not be looked at.
    pub(crate) fn settle_lanes(&self, thread: usize) -> bool {
        self.lanes.each_locked(thread, true, |lane| self.empty(thread, lane))
    }

    /// As [`Objects::settle_lanes`], and gives back what the lanes have for the classes.
    pub(crate) fn clear_lanes(&self, thread: usize) -> bool {
        self.lanes.each_locked(thread, true, |lane| {
            self.empty(thread, lane);
            // SAFETY: the lane is locked, and emptying it has left none of its magazines here.
            unsafe { lane.give_back(&self.memory.account) };
        })
    }

    fn empty(&self, thread: usize, lane: &Lane) {
        let mut owns = false;
        for (number, magazine) in lane.magazines() {
            owns |= self.disown(lane.thread(), number, magazine, Wanted::Little);
            if !magazine.is_closed() {
                self.empty_one(thread, number, magazine);
            }
        }
        lane.emptied(owns);
    }

    fn empty_one(&self, thread: usize, number: u32, magazine: &Magazine) {
        let (memory, mut parked) = (&self.memory, [0; PLACES]);
        let Some(class) = self.classes.get(number) else { return };
        let mut state = class.lock();
        state.count_lane(magazine.counted());
        let mut count = 0;
        while let Some(Kept { index, entry, .. }) = magazine.pop() {
            let len = entry.len();
            state.counts.bytes = state.counts.bytes.wrapping_sub(len as u64);
            state.counts.given = state.counts.given.wrapping_sub(len as u64);
            let parts = self.classes.parts_below(state.shape().size, len);
            state.went(parts);
            state.give_up(memory, entry.place());
            parked[count] = index;
            count += 1;
        }
        if state.is_retired {
            magazine.close();
        }
        drop(state);
        for index in &parked[..count] {
            // Its generation is not zero: such an entry is not parked.
            memory.entries.put_back(&memory.account, thread, *index);
        }
    }
}
