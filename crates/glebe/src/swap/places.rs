//! [`Places`] assigns slots and addresses to objects.
//!
//! Unit: pages. Freed slots form a linked list, so a free needs no memory. Cost: O(log objects).
//! The lock is also held during the system call that populates a new slot.

use super::error::SwapError;
use super::slots::{Place, Slots, SwapSlot};
use crate::free_tree::{Classes, FreeTree};
use glebe_os::extent::Extent;
use glebe_os::internal::sync::{lock, MappedWord, Mutex, Ordering};
use glebe_os::internal::sys::page_size;
use glebe_os::units::{Bytes, Pages};

#[derive(Debug)]
pub(super) struct Places {
    slots: Slots,
    used: MappedWord,
    free: Mutex<Free>,
}

#[derive(Debug)]
struct Free {
    tree: FreeTree,
    hole: Option<u32>,
    capacity: Pages,
}

impl Places {
    pub(super) fn new(capacity: Pages) -> Result<Self, SwapError> {
        let span = Extent::new(0, capacity.get()).expect("checked by the options");
        let extents = (capacity.get() / 2 + 1) as usize;
        let mut tree = FreeTree::with_classes(span, extents, Classes::None)?;
        tree.free(span).expect("nothing of it is free yet");
        let slots = Slots::new(capacity.get() as u32)?;
        let free = Mutex::new(Free { tree, hole: None, capacity });
        Ok(Self { slots, used: MappedWord::new(0), free })
    }

    #[inline]
    pub(super) fn slot(&self, index: u32) -> Option<SwapSlot<'_>> {
        self.slots.get(index)
    }

    pub(super) fn used(&self) -> u32 {
        self.used.load(Ordering::Acquire) as u32
    }

    pub(super) fn all(&self) -> impl Iterator<Item = SwapSlot<'_>> {
        (0..self.used()).filter_map(|index| self.slot(index))
    }

    pub(super) fn take(&self, len: usize) -> Result<(u32, SwapSlot<'_>), SwapError> {
        let pages = Bytes::new(len as u64).pages_up(page_size());
        let mut free = lock(&self.free);
        let at = free.tree.find(pages.get(), 1, None).ok().flatten();
        let at = at.ok_or_else(|| free.too_few(pages))?;
        let (index, slot) = match free.hole {
            Some(index) => {
                let slot = self.slot(index).ok_or_else(|| free.too_few(pages))?;
                free.hole = slot.next_hole();
                (index, slot)
            }
            None => self.new_slot().transpose()?.ok_or_else(|| free.too_few(pages))?,
        };
        free.tree.take(at).expect("found free, at the start of what is free");
        slot.set_place(Place { first: at.start(), len });
        Ok((index, slot))
    }

    /// The caller holds the lock.
    fn new_slot(&self) -> Option<Result<(u32, SwapSlot<'_>), SwapError>> {
        let index = self.used();
        let slot = self.slot(index).filter(|_| index < self.slots.len())?;
        if let Err(error) = self.slots.populate(index) {
            return Some(Err(error.into()));
        }
        self.used.store(u64::from(index) + 1, Ordering::Release);
        Some(Ok((index, slot)))
    }

    /// A worn slot has no generation left, so it is not reused.
    pub(super) fn put_back(&self, index: u32, slot: SwapSlot<'_>, is_worn: bool) {
        let place = slot.place();
        let at = Extent::new(place.first, place.pages()).expect("an object is not empty");
        let mut free = lock(&self.free);
        free.tree.free(at).expect("was taken, and there is storage for every extent");
        if !is_worn {
            slot.set_next_hole(free.hole);
            free.hole = Some(index);
        }
    }
}

impl Free {
    #[cold]
    fn too_few(&self, pages: Pages) -> SwapError {
        let bytes = |pages: u64| Pages::new(pages).bytes(page_size());
        SwapError::Addresses {
            len: bytes(pages.get()),
            largest: bytes(self.tree.largest()),
            capacity: bytes(self.capacity.get()),
        }
    }
}
