//! [`Table`] records the places and states of a cache's items, and calls no region. Unit: base
//! pages. Lock: the cache's.
//!
//! ```text
//! Building --> Safe --> Moving --> Marked --> Moving --> Safe or Building
//! ```
//!
//! A *safe* item's pages are not marked. A *moving* item belongs to one thread, which waits for no
//! other item.
//!
//! Invariants: a key leads to at most one item. Places do not overlap. A free place was never used
//! or is marked, unless the kernel refused the mark or [`Table::follow_fork`] freed the place. Only
//! safe items are pinned. The queue `young` has each unpinned safe item once.

mod waits;

use std::borrow::Borrow;
use std::collections::{BTreeMap, HashMap};
use std::hash::Hash;
use std::sync::Arc;
use std::thread::ThreadId;

use super::flight::Flight;
use crate::Priority;
use glebe_os::extent::Extent;
use glebe_os::internal::extents::without;
use glebe_vmap::free_tree::FreeTree;

pub(super) type Id = usize;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Phase {
    Building(ThreadId),
    Moving,
    Safe,
    /// Orders items by their marks.
    Marked(u64),
}

#[derive(Debug)]
pub(super) struct Item<K, V> {
    key: K,
    pub(super) phase: Phase,
    /// `None` before the item has a place, or if its value is in ordinary memory.
    pub(super) place: Option<Extent>,
    pub(super) count: usize,
    pub(super) priority: Priority,
    pub(super) pins: usize,
    pub(super) is_listed: bool,
    turn: Option<u64>,
    is_used: bool,
    pub(super) build_nanos: u64,
    pub(super) flight: Option<Arc<Flight<V>>>,
}

impl<K, V> Item<K, V> {
    pub(super) fn pages(&self) -> u64 {
        self.place.map_or(0, Extent::len)
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Found {
    Nothing,
    Safe(Id),
    /// The item's phase is [`Phase::Moving`], which the caller must end.
    Marked(Id),
    Moving(Id),
    Building(Id),
}

#[derive(Debug)]
pub(super) struct Room {
    pub(super) place: Option<Extent>,
    /// Marked memory of evicted items outside `place`.
    pub(super) left_over: Vec<Extent>,
    pub(super) evicted: u64,
}

#[derive(Debug)]
pub(super) struct Table<K, V> {
    ids: HashMap<K, Id>,
    items: Vec<Option<Item<K, V>>>,
    unused: Vec<Id>,
    free: FreeTree,
    young: BTreeMap<u64, Id>,
    young_pages: u64,
    /// The first to evict is in front.
    marked: BTreeMap<(Priority, u64), Id>,
    marked_pages: u64,
    last_order: u64,
    kept_pages: u64,
    cap_pages: u64,
    waits: Vec<waits::Wait<V>>,
}

impl<K, V> Table<K, V> {
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

    pub(super) fn len(&self) -> usize {
        self.ids.len()
    }

    pub(super) fn pages(&self) -> (u64, u64, u64) {
        (self.kept_pages, self.young_pages, self.marked_pages)
    }

    pub(super) fn item(&mut self, id: Id) -> &mut Item<K, V> {
        self.items[id].as_mut().expect("an id is held only while its item lives")
    }

    pub(super) fn listed(&self) -> Vec<Id> {
        self.ids.values().copied().collect()
    }

    pub(super) fn take_place(&mut self, id: Id) {
        if let Some(place) = self.item(id).place.take() {
            self.kept_pages -= place.len();
            self.put_back(place);
        }
    }

    #[inline]
    pub(super) fn pin(&mut self, id: Id) {
        let item = self.item(id);
        item.pins += 1;
        item.is_used = true;
    }

    /// Returns true if the caller must call `Cache::give_up`.
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

    fn line_up(&mut self, id: Id) {
        self.last_order += 1;
        let turn = self.last_order;
        self.item(id).turn = Some(turn);
        self.young.insert(turn, id);
    }

    /// Takes the first of `young` for marking, if more than `most` pages are queued. An item used
    /// while queued goes to the end instead.
    pub(super) fn oldest_young(&mut self, most: u64) -> Option<Id> {
        while self.young_pages > most {
            let (_, id) = self.young.pop_first()?;
            let item = self.item(id);
            item.turn = None;
            if item.pins == 0 && std::mem::take(&mut item.is_used) {
                self.line_up(id);
                continue;
            }
            // The last unpin queues a pinned item again.
            let (is_free, pages) = (item.pins == 0, item.pages());
            self.young_pages -= pages;
            if is_free {
                self.begin_move(id);
                return Some(id);
            }
        }
        None
    }

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

    pub(super) fn set_marked(&mut self, id: Id) {
        self.last_order += 1;
        let order = self.last_order;
        let item = self.item(id);
        item.phase = Phase::Marked(order);
        let (priority, pages) = (item.priority, item.pages());
        self.marked.insert((priority, order), id);
        self.marked_pages += pages;
    }

    pub(super) fn first_to_go(&self) -> Option<Id> {
        self.marked.first_key_value().map(|(_, id)| *id)
    }

    pub(super) fn put_back(&mut self, place: Extent) {
        self.free.free(place).expect("places do not overlap");
    }
}

impl<K: Hash + Eq, V> Table<K, V> {
    #[inline]
    pub(super) fn find<Q: Hash + Eq + ?Sized>(&self, key: &Q) -> Option<Id>
    where
        K: Borrow<Q>,
    {
        self.ids.get(key).copied()
    }

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

    pub(super) fn add(&mut self, key: K, count: usize, by: ThreadId) -> Id
    where
        K: Clone,
    {
        let id = self.unused.last().copied().unwrap_or(self.items.len());
        // `clone` and `hash` of the key may panic, so nothing has changed so far.
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
                // An item that gets the place before the drop of `left_over` survives, because it
                // unmarks the pages.
                self.put_back(place);
                room.left_over.push(place);
            }
            room.evicted += 1;
        }
    }

    pub(super) fn unlist(&mut self, id: Id) {
        let item = self.items[id].as_mut().expect("an id is held only while its item lives");
        if std::mem::take(&mut item.is_listed) {
            self.ids.remove(&item.key);
        }
    }

    /// Returns true if the caller must call `Cache::give_up`.
    pub(super) fn begin_removal(&mut self, id: Id) -> bool {
        self.unlist(id);
        let item = self.item(id);
        let goes = item.pins == 0 && matches!(item.phase, Phase::Safe | Phase::Marked(_));
        if goes {
            self.begin_move(id);
        }
        goes
    }

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

    /// The caller frees its place and wakes its waiters.
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
