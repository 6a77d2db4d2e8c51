//! [`Table`]: which entries there are, where they lie, and in which state each is.
//!
//! Pure bookkeeping under the cache's lock; no memory is touched and no call of the kernel made
//! here. Positions are granules of the region. An item is in one [`Phase`] at a time:
//!
//! ```text
//! Building --> Safe --> Moving --> Marked --> Moving --> Safe
//!    |          |                    |           |
//!    +----------+--------------------+-----------+------> gone
//! ```
//!
//! Invariants: a key has at most one *listed* item; places do not overlap; a place that is free
//! was never used or is marked, so that free memory is the kernel's to take; only safe items are
//! pinned; safe items that nobody pins are *young*, in the queue once. A Moving item belongs to one
//! thread, which calls the kernel for it and does not wait for another meanwhile.
//! Cost: O(1) for a hit of a safe item, O(log n) for n items else.

use std::borrow::Borrow;
use std::collections::{BTreeMap, HashMap, VecDeque};
use std::hash::Hash;
use std::sync::Arc;
use std::thread::ThreadId;

use super::flight::Flight;
use super::Priority;
use crate::extent::Extent;
use crate::free_tree::FreeTree;

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

/// One entry, or one that is being made or given back.
#[derive(Debug)]
pub(super) struct Item<K, V> {
    pub(super) key: K,
    pub(super) phase: Phase,
    /// None where the value is in ordinary memory.
    pub(super) place: Option<Extent>,
    /// How many `V` it has.
    pub(super) count: usize,
    pub(super) priority: Priority,
    pub(super) pins: usize,
    /// Whether its key leads to it.
    pub(super) is_listed: bool,
    /// Whether it is in the queue of the young.
    pub(super) is_young: bool,
    /// Whether it was asked for since it came into the queue.
    pub(super) is_used: bool,
    pub(super) build_nanos: u64,
    /// Where others wait for it.
    pub(super) flight: Option<Arc<Flight<V>>>,
}

impl<K, V> Item<K, V> {
    fn pages(&self) -> u64 {
        self.place.map_or(0, Extent::len)
    }
}

/// All items of a cache.
#[derive(Debug)]
pub(super) struct Table<K, V> {
    ids: HashMap<K, Id>,
    items: Vec<Option<Item<K, V>>>,
    unused: Vec<Id>,
    free: FreeTree,
    /// Safe items, the one that came first in front; some may be pinned, or gone.
    young: VecDeque<Id>,
    /// Pages of the items in the queue.
    young_pages: u64,
    /// Marked items, the first to go in front.
    marked: BTreeMap<(Priority, u64), Id>,
    last_order: u64,
    kept_pages: u64,
    cap_pages: u64,
}

impl<K: Hash + Eq + Clone, V> Table<K, V> {
    /// No items in `pages` of free places, of which `cap_pages` may be used at a time.
    pub(super) fn new(free: FreeTree, cap_pages: u64) -> Self {
        Self {
            ids: HashMap::new(),
            items: Vec::new(),
            unused: Vec::new(),
            free,
            young: VecDeque::new(),
            young_pages: 0,
            marked: BTreeMap::new(),
            last_order: 0,
            kept_pages: 0,
            cap_pages,
        }
    }

    /// Keys that lead to an item.
    pub(super) fn len(&self) -> usize {
        self.ids.len()
    }

    /// Pages of items; of those that wait in the queue of the young.
    pub(super) fn pages(&self) -> (u64, u64) {
        (self.kept_pages, self.young_pages)
    }

    /// The item of a key.
    pub(super) fn find<Q: Hash + Eq + ?Sized>(&self, key: &Q) -> Option<Id>
    where
        K: Borrow<Q>,
    {
        self.ids.get(key).copied()
    }

    /// An item that lives.
    pub(super) fn item(&mut self, id: Id) -> &mut Item<K, V> {
        self.items[id].as_mut().expect("an id is that of an item that lives")
    }

    /// Adds an item that a thread builds, in `place`.
    pub(super) fn add(&mut self, key: K, count: usize, place: Option<Extent>, by: ThreadId) -> Id {
        let id = self.unused.pop().unwrap_or(self.items.len());
        if id == self.items.len() {
            self.items.push(None);
        }
        let listed = key.clone();
        self.kept_pages += place.map_or(0, Extent::len);
        self.items[id] = Some(Item {
            key,
            phase: Phase::Building(by),
            place,
            count,
            priority: Priority::NORMAL,
            pins: 0,
            is_listed: true,
            is_young: false,
            is_used: false,
            build_nanos: 0,
            flight: None,
        });
        self.ids.insert(listed, id);
        id
    }
}
