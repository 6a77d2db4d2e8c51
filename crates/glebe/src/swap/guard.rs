//! [`Pin`] and [`PinMut`] keep an object in memory and give access to its bytes.
//!
//! # Safety
//! A guard has a pin while it lives. Any pin keeps the object's pages; a shared pin excludes
//! writers.
#![allow(unsafe_code)]

use std::fmt;
use std::ops::{Deref, DerefMut};
use std::ptr::NonNull;

use super::key::Key;
use super::slots::SwapSlot;
use super::store::Store;
use super::word::{must, unpin, Word};

/// `Pin` keeps an object in memory and gives its bytes.
pub struct Pin<'a> {
    store: &'a Store,
    slot: SwapSlot<'a>,
    bytes: NonNull<[u8]>,
}

/// `PinMut` gives an object's writable bytes. The object has no other guard.
pub struct PinMut<'a> {
    store: &'a Store,
    slot: SwapSlot<'a>,
    bytes: NonNull<[u8]>,
    key: Key,
}

// SAFETY: a guard shares bytes and a store, which any thread may use.
unsafe impl Send for Pin<'_> {}
// SAFETY: a shared guard gives only `&[u8]`.
unsafe impl Sync for Pin<'_> {}
// SAFETY: a guard is the only reference to its bytes, like `&mut [u8]`.
unsafe impl Send for PinMut<'_> {}
// SAFETY: a shared reference gives only `&[u8]`.
unsafe impl Sync for PinMut<'_> {}

impl<'a> Pin<'a> {
    /// # Safety
    /// The caller has just pinned the object and does not unpin it.
    #[inline]
    pub(super) unsafe fn new(store: &'a Store, slot: SwapSlot<'a>) -> Self {
        Self { store, slot, bytes: store.memory.bytes(slot.place()) }
    }
}

impl<'a> PinMut<'a> {
    /// # Safety
    /// The caller has just pinned the object exclusively and does not release it.
    #[inline]
    pub(super) unsafe fn new(store: &'a Store, slot: SwapSlot<'a>, key: Key) -> Self {
        Self { store, slot, bytes: store.memory.bytes(slot.place()), key }
    }

    /// Returns the object's key.
    #[must_use]
    pub fn key(&self) -> Key {
        self.key
    }
}

impl Deref for Pin<'_> {
    type Target = [u8];

    #[inline]
    fn deref(&self) -> &[u8] {
        // SAFETY: the pin keeps pages present and writers away.
        unsafe { self.bytes.as_ref() }
    }
}

impl Deref for PinMut<'_> {
    type Target = [u8];

    #[inline]
    fn deref(&self) -> &[u8] {
        // SAFETY: the exclusive pin keeps the pages present.
        unsafe { self.bytes.as_ref() }
    }
}

impl DerefMut for PinMut<'_> {
    #[inline]
    fn deref_mut(&mut self) -> &mut [u8] {
        // SAFETY: the exclusive pin keeps the pages present; `&mut self` makes this slice the only
        // one.
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
