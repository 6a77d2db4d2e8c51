//! [`Storage`]: nodes side by side, as many as there may ever be.
//!
//! Owns the memory, which is allocated once, touched when first used and never moved. In a tree of
//! very many extents a call fetches lines of nodes that no call before it fetched, and each from a
//! page of its own: there a look into page tables, which a virtual machine makes twice at each
//! level, costs as much as the fetch. So large storage begins at a huge page and asks for huge
//! pages, of which the last in use is the only one that may be partly unused.
//!
//! # Safety
//! The first `len` elements are initialised, `len` is no more than `capacity`, and `start` is what
//! the allocator gave for [`Storage::layout`] or, where that has no bytes, dangling.
#![allow(unsafe_code)]

use std::alloc::{alloc, dealloc, Layout};
use std::fmt;
use std::ops::{Deref, DerefMut};
use std::ptr::NonNull;
use std::slice;

use crate::sys::madvise;

/// Storage of fewer huge pages than so many has none: most of one could be unused.
const HUGE_PAGES_MIN: usize = 16;

/// Memory that could not be had.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::free_tree) struct NoRoom {
    pub bytes: u128,
}

impl NoRoom {
    fn of<T>(count: usize) -> Self {
        Self { bytes: count as u128 * size_of::<T>() as u128 }
    }
}

/// An empty vector with room for `count`, if that can be had.
pub(super) fn room<T>(count: usize) -> Result<Vec<T>, NoRoom> {
    let mut all = Vec::new();
    all.try_reserve_exact(count).map_err(|_| NoRoom::of::<T>(count))?;
    Ok(all)
}

/// Up to `capacity` elements, of a kind that needs no drop.
pub(super) struct Storage<T> {
    start: NonNull<T>,
    len: usize,
    capacity: usize,
    layout: Layout,
}

// SAFETY: it owns its elements, as a vector does.
unsafe impl<T: Send> Send for Storage<T> {}
// SAFETY: a shared one gives shared elements only.
unsafe impl<T: Sync> Sync for Storage<T> {}

impl<T: Copy> Storage<T> {
    /// Without room.
    pub(super) fn none() -> Self {
        Self { start: NonNull::dangling(), len: 0, capacity: 0, layout: Layout::new::<()>() }
    }

    /// Room for so many, if it can be had.
    pub(super) fn new(capacity: usize) -> Result<Self, NoRoom> {
        let refused = NoRoom::of::<T>(capacity);
        let plain = Layout::array::<T>(capacity).map_err(|_| refused)?;
        let huge = match plain.size() >> 20 {
            0 => None,
            _ => madvise::transparent_huge_page().ok().map(|page| page.bytes().as_usize()),
        };
        let huge = huge.filter(|&page| plain.size() / page >= HUGE_PAGES_MIN);
        let layout = huge.and_then(|page| plain.align_to(page).ok()).unwrap_or(plain);
        if layout.size() == 0 {
            return Ok(Self { start: NonNull::dangling(), len: 0, capacity, layout });
        }
        // SAFETY: the layout has bytes.
        let start = unsafe { alloc(layout) }.cast::<T>();
        let start = NonNull::new(start).ok_or(refused)?;
        let mut storage = Self { start, len: 0, capacity, layout };
        if huge.is_some() && !cfg!(miri) {
            madvise::prefer_huge(storage.spare());
        }
        Ok(storage)
    }

    pub(super) fn capacity(&self) -> usize {
        self.capacity
    }

    /// Adds an element.
    ///
    /// # Panics
    /// If there is no room.
    pub(super) fn push(&mut self, element: T) {
        let len = self.len;
        self.spare()[0].write(element);
        self.len = len + 1;
    }

    /// Adds many.
    pub(super) fn extend_from_slice(&mut self, elements: &[T]) {
        for &element in elements {
            self.push(element);
        }
    }

    /// Forgets all elements.
    pub(super) fn clear(&mut self) {
        self.len = 0;
    }

    fn spare(&mut self) -> &mut [std::mem::MaybeUninit<T>] {
        // SAFETY: `capacity` elements are allocated, of which `len` are used; uninitialised ones
        // are valid as what they are said to be.
        unsafe {
            let spare = self.start.add(self.len).cast();
            slice::from_raw_parts_mut(spare.as_ptr(), self.capacity - self.len)
        }
    }
}

impl<T> Drop for Storage<T> {
    fn drop(&mut self) {
        if self.layout.size() > 0 {
            // SAFETY: allocated with this layout; nobody has it after this.
            unsafe { dealloc(self.start.as_ptr().cast(), self.layout) };
        }
    }
}

impl<T> Deref for Storage<T> {
    type Target = [T];

    #[inline(always)]
    fn deref(&self) -> &[T] {
        // SAFETY: so many are initialised, and borrowed with the storage.
        unsafe { slice::from_raw_parts(self.start.as_ptr(), self.len) }
    }
}

impl<T> DerefMut for Storage<T> {
    #[inline(always)]
    fn deref_mut(&mut self) -> &mut [T] {
        // SAFETY: as above, and borrowed alone.
        unsafe { slice::from_raw_parts_mut(self.start.as_ptr(), self.len) }
    }
}

impl<T: fmt::Debug> fmt::Debug for Storage<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.iter()).finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn holds_what_it_was_made_for_and_no_more() {
        let mut storage = Storage::new(3).unwrap();
        storage.extend_from_slice(&[1_u32, 2]);
        storage.push(3);
        assert_eq!((&storage[..], storage.capacity()), (&[1, 2, 3][..], 3));
        storage[1] = 7;
        let more = std::panic::AssertUnwindSafe(|| storage.push(4));
        assert!(std::panic::catch_unwind(more).is_err());
        assert_eq!(storage[..], [1, 7, 3]);
        storage.clear();
        storage.push(5);
        assert_eq!(storage[..], [5]);
        let mut none = Storage::new(0).unwrap();
        assert!(none.is_empty());
        let one = std::panic::AssertUnwindSafe(|| none.push(1_u8));
        assert!(std::panic::catch_unwind(one).is_err());
    }

    #[test]
    fn what_is_large_begins_at_a_huge_page() {
        let Ok(huge) = madvise::transparent_huge_page() else {
            println!("skipped: no transparent huge pages");
            return;
        };
        let huge = huge.bytes().as_usize();
        let large = Storage::<[u64; 8]>::new(HUGE_PAGES_MIN * huge / 64).unwrap();
        assert_eq!(large.start.as_ptr().addr() % huge, 0);
        let small = Storage::<[u64; 8]>::new(HUGE_PAGES_MIN * huge / 64 - 1).unwrap();
        assert_eq!(small.layout.align(), align_of::<u64>());
    }

    #[test]
    fn what_cannot_be_had_is_told() {
        let too_many = usize::MAX;
        let refused = |count: usize| Some(NoRoom { bytes: count as u128 * 8 });
        assert_eq!(Storage::<u64>::new(too_many).err(), refused(too_many));
        assert_eq!(room::<u64>(too_many).err(), refused(too_many));
        assert_eq!(room::<u64>(3).map(|all| all.capacity()), Ok(3));
    }
}
