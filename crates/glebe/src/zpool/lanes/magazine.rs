//! [`Magazine`]: what a lane has of one class, in a few *places*.
//!
//! A place is empty, or has an entry that is *parked*, or one that is *owned*, of an object that
//! is there or being written. A word says which places are what:
//!
//! ```text
//!    63    62           24 23      16 15      8 7        0
//! +--------+--------------+----------+---------+----------+
//! | closed |   unowning   | unpinned |  owned  |  parked  |
//! +--------+--------------+----------+---------+----------+
//! ```
//!
//! *Unpinned* is a place whose last object was owned until it went: nobody has seen it there.
//! *Unowning* counts the objects to come that the lane is not to own, since what it owned was
//! wanted by others, or stayed. Whoever is in the lane changes all of it, by plain stores.

use super::super::entry::Entry;
use super::super::memory::CLASSES_MAX;
use super::{add, load, THREADS};
use crate::sync::{AtomicU64, Ordering};

/// Places; a magazine takes three cache lines.
pub(crate) const PLACES: usize = if cfg!(loom) { 2 } else { 6 };

const CLOSED: u64 = 1 << 63;
const OWNED_AT: u32 = 8;
const UNPINNED_AT: u32 = 16;
const UNOWNING_AT: u32 = 24;
const ALL: u64 = (1 << PLACES) - 1;
/// Objects that are not owned after one that stayed, or was wanted by its own thread.
const UNOWNING_FEW: u64 = if cfg!(test) { 4 } else { 256 };
/// After one that another thread wanted, at the cost of a barrier.
const UNOWNING_MANY: u64 = if cfg!(test) { 8 } else { 1 << 16 };

/// What a lane has of a class, and counted since the class was last told.
#[derive(Debug)]
#[repr(align(64))]
pub(crate) struct Magazine {
    state: AtomicU64,
    /// Bytes of a slot of the class, which keeps its shape as long as this is not closed.
    slot_bytes: AtomicU64,
    came: AtomicU64,
    went: AtomicU64,
    /// Stored bytes, with those of parked entries; modulo 2^64, as the next.
    bytes: AtomicU64,
    /// By how much objects were longer when they were given.
    extra: AtomicU64,
    places: [[AtomicU64; 3]; PLACES],
}

/// Where an owned object is said what it is, as its entry's word has it.
///
/// ```text
///  31     24 23           8 7      0
/// +---------+--------------+--------+
/// |  place  |    class     | thread |
/// +---------+--------------+--------+
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Owner(u32);

const CLASS_AT: u32 = 8;
const PLACE_AT: u32 = 24;
const _: () = assert!(THREADS <= 1 << CLASS_AT && PLACES <= 1 << (u32::BITS - PLACE_AT));
const _: () = assert!(CLASSES_MAX <= 1 << (PLACE_AT - CLASS_AT));

impl Owner {
    #[inline]
    pub(crate) fn new(thread: usize, class: u32, place: usize) -> Self {
        Self((place as u32) << PLACE_AT | class << CLASS_AT | thread as u32)
    }

    #[inline]
    pub(crate) const fn from_raw(word: u32) -> Self {
        Self(word)
    }

    #[inline]
    pub(crate) const fn raw(self) -> u32 {
        self.0
    }

    #[inline]
    pub(crate) const fn thread(self) -> usize {
        (self.0 & ((1 << CLASS_AT) - 1)) as usize
    }

    #[inline]
    pub(crate) const fn class(self) -> u32 {
        self.0 >> CLASS_AT & ((1 << (PLACE_AT - CLASS_AT)) - 1)
    }

    #[inline]
    pub(crate) const fn place(self) -> usize {
        (self.0 >> PLACE_AT) as usize
    }
}

/// What is at a place.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Kept {
    pub(crate) index: u32,
    /// The use of the entry that a handle names, or, where it is parked, is to name.
    pub(crate) named: u32,
    /// What the entry is where it is owned, and was where it is parked.
    pub(crate) entry: Entry,
    /// Where the bytes of the slot begin.
    pub(crate) at: usize,
}

/// What a magazine has counted.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Counted {
    pub(crate) came: u64,
    pub(crate) went: u64,
    pub(crate) bytes: u64,
    pub(crate) extra: u64,
}

/// Who wanted what was owned.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Wanted {
    /// Nobody but its own thread, or somebody all objects.
    Little,
    /// Another thread.
    Elsewhere,
}

impl Kept {
    #[inline]
    fn name(&self) -> u64 {
        u64::from(self.named) << u32::BITS | u64::from(self.index)
    }
}

#[inline]
const fn parked_bit(place: usize) -> u64 {
    1 << place
}

#[inline]
const fn owned_bit(place: usize) -> u64 {
    1 << OWNED_AT << place
}

#[inline]
const fn unpinned_bit(place: usize) -> u64 {
    1 << UNPINNED_AT << place
}

impl Magazine {
    pub(super) fn new() -> Self {
        let word = |n| AtomicU64::new(n);
        let places = std::array::from_fn(|_| [word(0), word(0), word(0)]);
        let (came, went, bytes, extra) = (word(0), word(0), word(0), word(0));
        Self { state: word(CLOSED), slot_bytes: word(0), came, went, bytes, extra, places }
    }

    #[inline]
    pub(crate) fn is_closed(&self) -> bool {
        load(&self.state) & CLOSED != 0
    }

    /// Takes what is parked from now on.
    pub(super) fn open(&self, slot_bytes: u32) {
        self.slot_bytes.store(slot_bytes.into(), Ordering::Relaxed);
        self.state.store(load(&self.state) & !CLOSED, Ordering::Relaxed);
    }

    /// Takes nothing any more; the lane is locked and nothing is parked.
    pub(crate) fn close(&self) {
        self.state.store(load(&self.state) | CLOSED, Ordering::Relaxed);
    }

    #[inline]
    pub(crate) fn slot_bytes(&self) -> usize {
        load(&self.slot_bytes) as usize
    }

    #[inline]
    fn kept(&self, place: usize) -> Option<Kept> {
        let [name, entry, at] = self.places.get(place)?;
        let (name, entry) = (load(name), Entry::from_raw(load(entry)));
        let (index, named) = (name as u32, (name >> u32::BITS) as u32);
        Some(Kept { index, named, entry, at: load(at) as usize })
    }

    /// The first place where something is parked, what, and whether somebody may have pinned it.
    #[inline]
    pub(crate) fn first(&self) -> Option<(usize, Kept, bool)> {
        let state = load(&self.state);
        let parked = state & ALL;
        let place = (parked != 0).then(|| parked.trailing_zeros() as usize)?;
        Some((place, self.kept(place)?, state & unpinned_bit(place) == 0))
    }

    /// Takes what is parked at a place, where something is.
    #[inline]
    pub(super) fn take(&self, place: usize) {
        let state = load(&self.state) & !parked_bit(place);
        let less = if state < 1 << UNOWNING_AT { 0 } else { 1 << UNOWNING_AT };
        self.state.store(state - less, Ordering::Relaxed);
    }

    /// As [`Magazine::take`], and owns what is about to be written there; false, and nothing done,
    /// if it may not.
    #[inline]
    pub(super) fn own(&self, place: usize, live: Entry) -> bool {
        let state = load(&self.state);
        let Some([_, entry, _]) = self.places.get(place).filter(|_| state >> UNOWNING_AT == 0)
        else {
            return false;
        };
        entry.store(live.raw(), Ordering::Relaxed);
        self.state.store(state ^ (parked_bit(place) | owned_bit(place)), Ordering::Relaxed);
        true
    }

    /// Parks an entry; false, and nothing done, if no place is empty.
    #[inline]
    pub(super) fn park(&self, kept: Kept) -> bool {
        let state = load(&self.state);
        let empty = !(state | state >> OWNED_AT) & ALL;
        let place = empty.trailing_zeros() as usize;
        let Some([name, entry, at]) = self.places.get(place) else { return false };
        name.store(kept.name(), Ordering::Relaxed);
        entry.store(kept.entry.raw(), Ordering::Relaxed);
        at.store(kept.at as u64, Ordering::Relaxed);
        let state = state & !unpinned_bit(place);
        self.state.store(state | parked_bit(place), Ordering::Relaxed);
        true
    }

    /// What is owned at a place, if anything is.
    #[inline]
    pub(crate) fn owned(&self, place: usize) -> Option<Kept> {
        let kept = self.kept(place)?;
        (load(&self.state) & owned_bit(place) != 0).then_some(kept)
    }

    /// Parks the entry of an object that is owned and gone, for its next use.
    #[inline]
    pub(super) fn park_owned(&self, place: usize) {
        if let Some([name, ..]) = self.places.get(place) {
            add(name, 1 << u32::BITS);
        }
        let state = load(&self.state) & !owned_bit(place);
        let bits = parked_bit(place) | unpinned_bit(place);
        self.state.store(state | bits, Ordering::Relaxed);
    }

    /// Whether places are wanting because of objects that are owned.
    pub(crate) fn is_full_of_owned(&self) -> bool {
        let state = load(&self.state);
        let owned = state >> OWNED_AT & ALL;
        owned != 0 && (state | owned) & ALL == ALL
    }

    /// Places where something is owned.
    pub(crate) fn all_owned(&self) -> impl Iterator<Item = (usize, Kept)> + '_ {
        (0..PLACES).filter_map(|place| Some((place, self.owned(place)?)))
    }

    /// Empties a place where something is owned.
    pub(crate) fn let_go(&self, place: usize) {
        self.state.store(load(&self.state) & !owned_bit(place), Ordering::Relaxed);
    }

    /// Owns nothing for a while.
    pub(crate) fn own_less(&self, wanted: Wanted) {
        let unowning = match wanted {
            Wanted::Little => UNOWNING_FEW,
            Wanted::Elsewhere => UNOWNING_MANY,
        };
        let state = load(&self.state);
        let (closed, before) = (state & CLOSED, (state & !CLOSED) >> UNOWNING_AT);
        let places = state & ((1 << UNOWNING_AT) - 1);
        let word = closed | unowning.max(before) << UNOWNING_AT | places;
        self.state.store(word, Ordering::Relaxed);
    }

    /// Takes out what is parked; the lane is locked.
    pub(crate) fn pop(&self) -> Option<Kept> {
        let (place, kept, _) = self.first()?;
        self.state.store(load(&self.state) & !parked_bit(place), Ordering::Relaxed);
        Some(kept)
    }

    /// Counts an object that came in place of a parked one: how much longer it is stored, and how
    /// much longer than stored it was given.
    #[inline]
    pub(crate) fn came(&self, longer: u64, extra: u64) {
        add(&self.came, 1);
        if longer != 0 {
            add(&self.bytes, longer);
        }
        if extra != 0 {
            add(&self.extra, extra);
        }
    }

    /// Counts an object that went and whose entry is parked.
    #[inline]
    pub(crate) fn went(&self, extra: u64) {
        add(&self.went, 1);
        if extra != 0 {
            add(&self.extra, extra.wrapping_neg());
        }
    }

    /// Takes out what was counted; the lane is locked.
    pub(crate) fn counted(&self) -> Counted {
        let take = |word: &AtomicU64| {
            let n = load(word);
            word.store(0, Ordering::Relaxed);
            n
        };
        let (came, went) = (take(&self.came), take(&self.went));
        Counted { came, went, bytes: take(&self.bytes), extra: take(&self.extra) }
    }
}
