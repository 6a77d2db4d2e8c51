//! [`Pin`] and [`PinMut`]: an object's bytes, which stay in memory while the guard lives.
//!
//! # Safety
//! A guard has a pin of its object from its making to its drop: a shared one, beside which nobody
//! writes, or the only one. Either way the object's pages stay.
#![allow(unsafe_code)]

use std::fmt;
use std::ops::{Deref, DerefMut};
use std::ptr::NonNull;

use super::key::Key;
use super::slots::Slot;
use super::store::Store;
use super::word::{must, unpin, Word};

/// An object's bytes, to read. Its object stays in memory, and counts against the budget, until
/// the guard is dropped.
pub struct Pin<'a> {
    store: &'a Store,
    slot: Slot<'a>,
    bytes: NonNull<[u8]>,
}

/// An object's bytes, to read and write. Nobody else has the object pinned meanwhile.
pub struct PinMut<'a> {
    store: &'a Store,
    slot: Slot<'a>,
    bytes: NonNull<[u8]>,
    key: Key,
}

// SAFETY: a guard is a shared reference to bytes and to a store that any thread may use.
unsafe impl Send for Pin<'_> {}
// SAFETY: as above; it has no interior that changes.
unsafe impl Sync for Pin<'_> {}
// SAFETY: a guard is the only reference to its bytes, as `&mut [u8]`, which is Send.
unsafe impl Send for PinMut<'_> {}
// SAFETY: a shared reference to the guard gives out `&[u8]` alone.
unsafe impl Sync for PinMut<'_> {}

impl<'a> Pin<'a> {
    /// Takes a pin over.
    ///
    /// # Safety
    /// The caller has pinned the object of `slot` just now, and unpins it no more.
    #[inline]
    pub(super) unsafe fn new(store: &'a Store, slot: Slot<'a>) -> Self {
        Self { store, slot, bytes: store.memory.bytes(slot.place()) }
    }
}

impl<'a> PinMut<'a> {
    /// Takes a pin over.
    ///
    /// # Safety
    /// The caller has pinned the object of `key` alone just now, and does not release it.
    #[inline]
    pub(super) unsafe fn new(store: &'a Store, slot: Slot<'a>, key: Key) -> Self {
        Self { store, slot, bytes: store.memory.bytes(slot.place()), key }
    }

    /// The object's key.
    #[must_use]
    pub fn key(&self) -> Key {
        self.key
    }
}

impl Deref for Pin<'_> {
    type Target = [u8];

    #[inline]
    fn deref(&self) -> &[u8] {
        // SAFETY: the pin keeps the pages and all writers away; the slice ends before it does.
        unsafe { self.bytes.as_ref() }
    }
}

impl Deref for PinMut<'_> {
    type Target = [u8];

    #[inline]
    fn deref(&self) -> &[u8] {
        // SAFETY: the only pin, which keeps the pages; the slice ends before it does.
        unsafe { self.bytes.as_ref() }
    }
}

impl DerefMut for PinMut<'_> {
    #[inline]
    fn deref_mut(&mut self) -> &mut [u8] {
        // SAFETY: the only pin, which keeps the pages; `&mut self` makes the slice the only one.
        unsafe { self.bytes.as_mut() }
    }
}

impl Drop for Pin<'_> {
    #[inline]
    fn drop(&mut self) {
        if unpin(self.slot.word()).is_dead() {
            self.store.reap(self.slot);
        }
    }
}

impl Drop for PinMut<'_> {
    #[inline]
    fn drop(&mut self) {
        if must(self.slot.word(), Word::released).is_dead() {
            self.store.reap(self.slot);
        }
    }
}

impl fmt::Debug for Pin<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Pin({} bytes)", self.len())
    }
}

impl fmt::Debug for PinMut<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "PinMut({} bytes of {:?})", self.len(), self.key)
    }
}
