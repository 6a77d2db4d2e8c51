//! [`Classes`]: the classes of a pool by number, and which class a length goes to.
//!
//! A class keeps its number while it has zspages. When the table changes, classes that are in the
//! new one too stay as they are; the others are *retired*: nothing comes in any more, and
//! [`Objects::drain`](crate::zpool::objects::Objects::drain) moves what is there to where it
//! belongs. A retired class without zspages may become another class of the same number, so whoever
//! locks a class that a look-up gave asks [`Classes::fits`] before anything else.
//!
//! The look-up is a word for each 512th part of a page; it gives the class of the longest object
//! of that part. Lock: that of the table, taken before any class's, while the table is changed.
//! Cost of a look-up: two loads.

use std::sync::OnceLock;

use crate::sync::{AtomicU64, Ordering};
use crate::zpool::class::{Class, Shape, State};
use crate::zpool::shared::CLASSES_MAX;

/// Parts of a page, as a power of two, that lengths are looked up by.
const PARTS_SHIFT: u32 = if cfg!(loom) { 1 } else { 9 };

/// See the module.
#[derive(Debug)]
pub(crate) struct Classes {
    by_number: Box<[OnceLock<Box<Class>>]>,
    by_length: Box<[AtomicU64]>,
    /// Bytes of a part, as a power of two.
    part_shift: u32,
    /// Retired classes that may have zspages.
    draining: AtomicU64,
}

impl Classes {
    /// No classes yet, for pages of `1 << page_shift` bytes.
    pub(crate) fn new(page_shift: u32) -> Self {
        let part_shift = page_shift.saturating_sub(PARTS_SHIFT);
        let parts = 1 << (page_shift - part_shift);
        Self {
            by_number: (0..CLASSES_MAX).map(|_| OnceLock::new()).collect(),
            by_length: (0..parts).map(|_| AtomicU64::new(0)).collect(),
            part_shift,
            draining: AtomicU64::new(0),
        }
    }

    /// The class of a number that was given out.
    #[inline]
    pub(crate) fn get(&self, number: u32) -> Option<&Class> {
        self.by_number.get(number as usize)?.get().map(|class| &**class)
    }

    /// The number of the class for an object of `len` bytes, 1 to a page.
    #[inline]
    pub(crate) fn of(&self, len: usize) -> u32 {
        self.by_length[(len - 1) >> self.part_shift].load(Ordering::Acquire) as u32
    }

    /// Whether an object of `len` stored bytes goes to a smaller class than one of more, `than`.
    pub(crate) fn pays(&self, len: usize, than: usize) -> bool {
        len < than && self.of(len) != self.of(than)
    }

    /// Whether a class takes an object of `len` bytes, now that it is locked.
    #[inline]
    pub(crate) fn fits(state: &State, len: usize) -> bool {
        !state.is_retired && len <= state.shape().size as usize
    }

    /// All classes that were ever made.
    pub(crate) fn all(&self) -> impl Iterator<Item = &Class> {
        self.by_number.iter().map_while(|class| class.get()).map(|class| &**class)
    }

    /// Which part of a page a length is in.
    #[inline]
    pub(crate) fn part_of_len(&self, len: usize) -> usize {
        len.saturating_sub(1) >> self.part_shift
    }

    /// How many parts there are, and the longest length of each.
    pub(crate) fn part_lens(&self) -> impl ExactSizeIterator<Item = usize> + '_ {
        (0..self.by_length.len()).map(|part| (part + 1) << self.part_shift)
    }

    /// The longest length of such a part.
    pub(crate) fn len_of(&self, size: u32, parts: usize) -> usize {
        size as usize - (parts << self.part_shift)
    }

    /// Whether retired classes may have zspages.
    #[inline]
    pub(crate) fn is_draining(&self) -> bool {
        self.draining.load(Ordering::Relaxed) != 0
    }

    /// Looks which retired classes still have zspages; the first one's number.
    pub(crate) fn retired(&self) -> Option<u32> {
        let has = |class: &Class| {
            let state = class.lock();
            state.is_retired && state.zspages() > 0
        };
        let first = self.all().position(has);
        self.draining.store(first.is_some().into(), Ordering::Relaxed);
        first.map(|number| number as u32)
    }

    /// Changes the table to classes of these longest objects, which ascend and end with a page,
    /// and shapes. The caller is the only one that does so now. False, and nothing changed, if
    /// there are too many.
    pub(crate) fn change(&self, table: &[(u32, Shape)]) -> bool {
        let all: Vec<&Class> = self.all().collect();
        let mut kept = vec![false; all.len()];
        let mut numbers = vec![None; table.len()];
        for ((_, shape), number) in table.iter().zip(&mut numbers) {
            let same = |at: &usize| !kept[*at] && all[*at].lock().shape() == *shape;
            *number = (0..all.len()).find(same);
            number.iter().for_each(|same| kept[*same] = true);
        }
        // Numbers that nobody needs, then new ones.
        let is_empty = |class: &Class| {
            let state = class.lock();
            state.is_retired && state.zspages() == 0
        };
        let spare = (0..all.len()).filter(|at| !kept[*at] && is_empty(all[*at]));
        let mut free: Vec<usize> = spare.chain(all.len()..self.by_number.len()).collect();
        free.reverse();
        for number in numbers.iter_mut().filter(|number| number.is_none()) {
            *number = free.pop();
        }
        if numbers.iter().any(Option::is_none) {
            return false;
        }
        for ((longest, shape), number) in table.iter().zip(numbers.iter().flatten()) {
            let fresh = || Box::new(Class::new(*number as u32, *shape, self.part_shift));
            let class = self.by_number[*number].get_or_init(fresh);
            let mut state = class.lock();
            if state.shape() != *shape {
                class.reshape(&mut state, *shape);
            }
            state.longest = *longest;
            state.is_retired = false;
            kept.get_mut(*number).into_iter().for_each(|kept| *kept = true);
        }
        for (part, word) in self.by_length.iter().enumerate() {
            let len = (part + 1) << self.part_shift;
            let at = table.partition_point(|(longest, _)| (*longest as usize) < len);
            let number = numbers.get(at).copied().flatten().unwrap_or(0);
            word.store(number as u64, Ordering::Release);
        }
        for (class, _) in all.iter().zip(&kept).filter(|(_, kept)| !**kept) {
            class.lock().is_retired = true;
            self.draining.store(1, Ordering::Relaxed);
        }
        true
    }

    /// Bytes of tables and classes.
    pub(crate) fn held_bytes(&self) -> u64 {
        let tables = size_of_val(&*self.by_number) + size_of_val(&*self.by_length);
        (tables + self.all().count() * size_of::<Class>()) as u64
    }
}
