//! [`Classes`] holds the classes of a pool by number, and the class of each length.
//!
//! A change keeps a class whose shape the new table has, and *retires* other classes: they get no
//! new object, and `Objects::drain` moves their objects. The number of an empty retired class may
//! be reused, so a caller that has locked a class checks [`Classes::fits`].
//!
//! `by_length` divides the lengths up to a page into 512 parts, each with a class. Lock order:
//! `Refit`, which serializes changes, then a class.

use std::sync::OnceLock;

use crate::class::{Class, ClassState, Shape};
use crate::memory::account::Account;
use crate::shared::CLASSES_MAX;
use glebe_os::internal::sync::{AtomicU64, Ordering};

const PARTS_SHIFT: u32 = if cfg!(loom) { 1 } else { 9 };

#[derive(Debug)]
pub(crate) struct Classes {
    by_number: Box<[OnceLock<Box<Class>>]>,
    by_length: Box<[AtomicU64]>,
    part_shift: u32,
    draining: AtomicU64,
}

impl Classes {
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

    #[inline]
    pub(crate) fn get(&self, number: u32) -> Option<&Class> {
        self.by_number.get(number as usize)?.get().map(|class| &**class)
    }

    #[inline]
    pub(crate) fn of(&self, len: usize) -> u32 {
        self.by_length[(len - 1) >> self.part_shift].load(Ordering::Acquire) as u32
    }

    pub(crate) fn pays(&self, len: usize, than: usize) -> bool {
        len < than && self.of(len) != self.of(than)
    }

    #[inline]
    pub(crate) fn fits(state: &ClassState, len: usize) -> bool {
        !state.is_retired && len <= state.shape().size as usize
    }

    pub(crate) fn all(&self) -> impl Iterator<Item = &Class> {
        self.by_number.iter().map_while(|class| class.get()).map(|class| &**class)
    }

    #[inline]
    pub(crate) fn part_of_len(&self, len: usize) -> usize {
        len.saturating_sub(1) >> self.part_shift
    }

    pub(crate) fn part_lens(&self) -> impl ExactSizeIterator<Item = usize> + '_ {
        (0..self.by_length.len()).map(|part| (part + 1) << self.part_shift)
    }

    pub(crate) fn len_of(&self, size: u32, parts: usize) -> usize {
        size as usize - (parts << self.part_shift)
    }

    #[inline]
    pub(crate) fn is_draining(&self) -> bool {
        self.draining.load(Ordering::Relaxed) != 0
    }

    pub(crate) fn retired(&self) -> Option<u32> {
        let has = |class: &Class| {
            let state = class.lock();
            state.is_retired && state.zspages() > 0
        };
        let first = self.all().position(has);
        self.draining.store(first.is_some().into(), Ordering::Relaxed);
        first.map(|number| number as u32)
    }

    /// Changes the table to these classes, each with its longest object's length. The lengths
    /// ascend, and the last is a page. Returns false and changes nothing if class numbers run out.
    /// Calls must not overlap.
    pub(crate) fn change(&self, account: &Account, table: &[(u32, Shape)]) -> bool {
        let all: Vec<&Class> = self.all().collect();
        let mut kept = vec![false; all.len()];
        let mut numbers = vec![None; table.len()];
        for ((_, shape), number) in table.iter().zip(&mut numbers) {
            let same = |at: &usize| !kept[*at] && all[*at].lock().shape() == *shape;
            *number = (0..all.len()).find(same);
            number.iter().for_each(|same| kept[*same] = true);
        }
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
                class.reshape(account, &mut state, *shape);
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

    pub(crate) fn held_bytes(&self) -> u64 {
        let tables = size_of_val(&*self.by_number) + size_of_val(&*self.by_length);
        (tables + self.all().count() * size_of::<Class>()) as u64
    }
}
