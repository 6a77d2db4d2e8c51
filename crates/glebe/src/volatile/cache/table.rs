//! [`Table`]: which entries there are, where they lie, and in which state each is.
//!
//! Pure bookkeeping under the cache's lock: no memory is touched and no kernel called. Positions
//! are base pages of the region. An item is in one [`Phase`] at a time:
//!
//! ```text
//! Building --> Safe --> Moving --> Marked --> Moving --> Safe or Building
//! ```
//!
//! Invariants: a key leads to at most one item; places do not overlap; a free place was never used
//! or is marked, so that free memory is the kernel's to take, but where it refused a mark and for
//! some after a fork ([`Table::follow_fork`]); only safe items are pinned; a safe item that nobody
//! pins is *young*: once in a queue. A moving item belongs to one thread, which calls the kernel
//! for it and waits for no other item meanwhile. Cost: O(1) for a hit of a safe item, else O(log n)
//! for n items.

mod waits;

use std::borrow::Borrow;
use std::collections::{BTreeMap, HashMap};
use std::hash::Hash;
use std::sync::Arc;
use std::thread::ThreadId;

use super::flight::Flight;
use crate::extent::{without, Extent};
use crate::free_tree::FreeTree;
use crate::volatile::Priority;

/// Names an item while it lives.
pub(super) type Id = usize;

/// What happens to an item.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Phase {
    /// A thread builds its value.
    Building(ThreadId),
    /// A thread marks, unmarks or drops its memory.
    Moving,
    /// Its value is there and stays.
    Safe,
    /// The kernel may take it; the number orders marks.
    Marked(u64),
}

/// An entry, or one that is being made or given back.
#[derive(Debug)]
pub(super) struct Item<K, V> {
    key: K,
    pub(super) phase: Phase,
    /// None where the value is built in ordinary memory.
    pub(super) place: Option<Extent>,
    /// How many `V` it has.
    pub(super) count: usize,
    pub(super) priority: Priority,
    pub(super) pins: usize,
    /// Whether its key leads to it.
    pub(super) is_listed: bool,
    /// Its turn in the queue of the young, if it is there.
    turn: Option<u64>,
    /// Whether it was asked for since it came into the queue.
    is_used: bool,
    pub(super) build_nanos: u64,
    /// Where others wait for it.
    pub(super) flight: Option<Arc<Flight<V>>>,
}

impl<K, V> Item<K, V> {
    pub(super) fn pages(&self) -> u64 {
        self.place.map_or(0, Extent::len)
    }
}

/// What a key leads to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Found {
    Nothing,
    /// Pinned now for who asked.
    Safe(Id),
    /// Was marked, and is the caller's to move.
    Marked(Id),
    Moving(Id),
    Building(Id),
}

/// A place, if there is one, and what went for it.
#[derive(Debug)]
pub(super) struct Room {
    pub(super) place: Option<Extent>,
    /// Marked memory outside the place, of items that are no more.
    pub(super) left_over: Vec<Extent>,
    /// How many items went.
    pub(super) evicted: u64,
}

/// All items of a cache.
#[derive(Debug)]
pub(super) struct Table<K, V> {
    ids: HashMap<K, Id>,
    items: Vec<Option<Item<K, V>>>,
    unused: Vec<Id>,
    free: FreeTree,
    /// Young items by their turn.
    young: BTreeMap<u64, Id>,
    young_pages: u64,
    /// Marked items, the first to go in front.
    marked: BTreeMap<(Priority, u64), Id>,
    marked_pages: u64,
    /// Of turns and of marks.
    last_order: u64,
    kept_pages: u64,
    cap_pages: u64,
    waits: Vec<waits::Wait<V>>,
}

impl<K, V> Table<K, V> {
    /// No items yet in the places that are `free`, of which `cap_pages` may be used at a time.
    pub(super) fn new(free: FreeTree, cap_pages: u64) -> Self {
        Self {
            ids: HashMap::new(),
            items: Vec::new(),
            unused: Vec::new(),
            free,
            young: BTreeMap::new(),
            young_pages: 0,
            marked: BTreeMap::new(),
            marked_pages: 0,
            last_order: 0,
            kept_pages: 0,
            cap_pages,
            waits: Vec::new(),
        }
    }

    /// How many keys lead to an item.
    pub(super) fn len(&self) -> usize {
        self.ids.len()
    }

    /// Pages that items have, and how many of them are young and marked items'.
    pub(super) fn pages(&self) -> (u64, u64, u64) {
        (self.kept_pages, self.young_pages, self.marked_pages)
    }

    /// The item of an id.
    pub(super) fn item(&mut self, id: Id) -> &mut Item<K, V> {
        self.items[id].as_mut().expect("an id is held only while its item lives")
    }

    /// The ids that keys lead to.
    pub(super) fn listed(&self) -> Vec<Id> {
        self.ids.values().copied().collect()
    }

    /// Takes the place from an item that is being built: it is marked still, and free again.
    pub(super) fn take_place(&mut self, id: Id) {
        if let Some(place) = self.item(id).place.take() {
            self.kept_pages -= place.len();
            self.put_back(place);
        }
    }

    /// Pins a safe item.
    #[inline]
    pub(super) fn pin(&mut self, id: Id) {
        let item = self.item(id);
        item.pins += 1;
        item.is_used = true;
    }

    /// Takes a pin off; whether it was the last of an item that no key leads to, which is moving
    /// now and to be given back.
    #[inline]
    pub(super) fn unpin(&mut self, id: Id) -> bool {
        let item = self.item(id);
        item.pins -= 1;
        if item.pins > 0 {
            return false;
        }
        if !item.is_listed {
            self.begin_move(id);
            return true;
        }
        if item.turn.is_none() {
            item.is_used = false;
            self.young_pages += item.pages();
            self.line_up(id);
        }
        false
    }

    /// Gives an item the last turn of the young.
    fn line_up(&mut self, id: Id) {
        self.last_order += 1;
        let turn = self.last_order;
        self.item(id).turn = Some(turn);
        self.young.insert(turn, id);
    }

    /// The young item whose turn it is, if they have more than `most` pages; one that was asked for
    /// since it lined up goes to the end instead. It is moving now, and to be marked.
    pub(super) fn oldest_young(&mut self, most: u64) -> Option<Id> {
        while self.young_pages > most {
            let (_, id) = self.young.pop_first()?;
            let item = self.item(id);
            item.turn = None;
            if item.pins == 0 && std::mem::take(&mut item.is_used) {
                self.line_up(id);
                continue;
            }
            // One that is pinned comes back when it is not.
            let (is_free, pages) = (item.pins == 0, item.pages());
            self.young_pages -= pages;
            if is_free {
                self.begin_move(id);
                return Some(id);
            }
        }
        None
    }

    /// A marked item, or a safe one that nobody pins, is the caller's alone now.
    pub(super) fn begin_move(&mut self, id: Id) {
        let item = self.item(id);
        debug_assert!(item.pins == 0 && matches!(item.phase, Phase::Safe | Phase::Marked(_)));
        let (phase, priority, pages) = (item.phase, item.priority, item.pages());
        item.phase = Phase::Moving;
        if let Some(turn) = item.turn.take() {
            self.young.remove(&turn);
            self.young_pages -= pages;
        }
        if let Phase::Marked(order) = phase {
            self.marked.remove(&(priority, order));
            self.marked_pages -= pages;
        }
    }

    /// A moving item is marked now.
    pub(super) fn set_marked(&mut self, id: Id) {
        self.last_order += 1;
        let order = self.last_order;
        let item = self.item(id);
        item.phase = Phase::Marked(order);
        let (priority, pages) = (item.priority, item.pages());
        self.marked.insert((priority, order), id);
        self.marked_pages += pages;
    }

    /// The marked item that goes first.
    pub(super) fn first_to_go(&self) -> Option<Id> {
        self.marked.first_key_value().map(|(_, id)| *id)
    }

    /// A place is free; it is marked or was never used.
    pub(super) fn put_back(&mut self, place: Extent) {
        self.free.free(place).expect("places do not overlap");
    }
}

impl<K: Hash + Eq, V> Table<K, V> {
    /// The item of a key.
    #[inline]
    pub(super) fn find<Q: Hash + Eq + ?Sized>(&self, key: &Q) -> Option<Id>
    where
        K: Borrow<Q>,
    {
        self.ids.get(key).copied()
    }

    /// What a key leads to; a safe item is pinned, a marked one begins to move.
    #[inline]
    pub(super) fn look<Q: Hash + Eq + ?Sized>(&mut self, key: &Q) -> Found
    where
        K: Borrow<Q>,
    {
        let Some(id) = self.find(key) else { return Found::Nothing };
        match self.item(id).phase {
            Phase::Building(_) => Found::Building(id),
            Phase::Moving => Found::Moving(id),
            Phase::Safe => {
                self.pin(id);
                Found::Safe(id)
            }
            Phase::Marked(_) => {
                self.begin_move(id);
                Found::Marked(id)
            }
        }
    }

    /// Adds an item that a thread builds, without a place, for a key that leads to none.
    pub(super) fn add(&mut self, key: K, count: usize, by: ThreadId) -> Id
    where
        K: Clone,
    {
        let id = self.unused.last().copied().unwrap_or(self.items.len());
        // The caller's code runs here: should it panic, nothing has changed.
        self.ids.insert(key.clone(), id);
        if self.unused.pop().is_none() {
            self.items.push(None);
        }
        self.items[id] = Some(Item {
            key,
            phase: Phase::Building(by),
            place: None,
            count,
            priority: Priority::NORMAL,
            pins: 0,
            is_listed: true,
            turn: None,
            is_used: false,
            build_nanos: 0,
            flight: None,
        });
        id
    }

    /// Gives an item that is being built a place of `pages`, for which marked items may have to go.
    pub(super) fn make_room(&mut self, id: Id, pages: u64) -> Room {
        let mut room = Room { place: None, left_over: Vec::new(), evicted: 0 };
        if pages > self.cap_pages {
            return room;
        }
        loop {
            if self.kept_pages + pages <= self.cap_pages {
                room.place = self.free.alloc(pages, 1, None).ok().flatten();
            }
            if let Some(place) = room.place {
                self.kept_pages += pages;
                self.item(id).place = Some(place);
                room.left_over = without(&room.left_over, place);
                return room;
            }
            let Some(gone) = self.first_to_go() else { return room };
            if let Some(place) = self.take_out(gone).place {
                // Who gets it unmarks it before use, so that a late drop of it finds no mark.
                self.put_back(place);
                room.left_over.push(place);
            }
            room.evicted += 1;
        }
    }

    /// No key leads to an item any more.
    pub(super) fn unlist(&mut self, id: Id) {
        let item = self.items[id].as_mut().expect("an id is held only while its item lives");
        if std::mem::take(&mut item.is_listed) {
            self.ids.remove(&item.key);
        }
    }

    /// No key leads to an item any more; whether it is moving now, for the caller to give back.
    /// Else who pins, builds or moves it ends it.
    pub(super) fn begin_removal(&mut self, id: Id) -> bool {
        self.unlist(id);
        let item = self.item(id);
        let goes = item.pins == 0 && matches!(item.phase, Phase::Safe | Phase::Marked(_));
        if goes {
            self.begin_move(id);
        }
        goes
    }

    /// In a child, whose only thread is `by`: ends what another thread was building or moving, and
    /// forgets who waited. What memory it has comes back with the place's next use.
    pub(super) fn follow_fork(&mut self, by: ThreadId) {
        self.waits.clear();
        for id in 0..self.items.len() {
            let Some(item) = &self.items[id] else { continue };
            let is_others = match item.phase {
                Phase::Building(builder) => builder != by,
                Phase::Moving => true,
                Phase::Safe | Phase::Marked(_) => false,
            };
            if is_others {
                let gone = self.take_out(id);
                gone.place.inspect(|place| self.put_back(*place));
            }
        }
    }

    /// Ends an item that nobody pins; its place, which is not free yet, and whoever waits are the
    /// caller's.
    pub(super) fn take_out(&mut self, id: Id) -> Item<K, V> {
        self.unlist(id);
        if !matches!(self.item(id).phase, Phase::Building(_) | Phase::Moving) {
            self.begin_move(id);
        }
        let item = self.items[id].take().expect("an id is held only while its item lives");
        self.unused.push(id);
        self.kept_pages -= item.pages();
        item
    }
}

#[cfg(test)]
mod tests;
