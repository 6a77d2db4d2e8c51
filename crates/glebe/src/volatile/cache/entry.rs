//! [`Entry`]: a value that stays as long as this lives.
//!
//! Pins an item of the cache, or shares a value that the cache did not keep. Dropping it costs the
//! lock, and a system call where another entry stops being hot for it.
//!
//! # Safety
//! Whoever makes an entry has pinned the item for it: until the drop its place is not marked and
//! not written. The module makes them where it pins, and nowhere else.
#![allow(unsafe_code)]

use std::fmt;
use std::hash::Hash;
use std::ops::Deref;

use bytemuck::Pod;

use super::bytes::values;
use super::flight::Handed;
use super::table::Id;
use super::Cache;
use crate::extent::Extent;
use crate::volatile::Priority;

/// A value of a [`Cache`], which the kernel cannot take while this lives; derefs to the slice.
#[must_use = "the value may be taken once this is dropped"]
pub struct Entry<'a, K: Hash + Eq, V> {
    cache: &'a Cache<K, V>,
    value: Value<V>,
}

pub(super) enum Value<V> {
    /// The item, pinned, its place, and how many values it has.
    Kept(Id, Extent, usize),
    Handed(Handed<V>),
}

impl<'a, K: Hash + Eq, V> Entry<'a, K, V> {
    /// Of an item that is pinned for this entry, built in that place with so many `V`.
    pub(super) fn new(cache: &'a Cache<K, V>, value: Value<V>) -> Self {
        Self { cache, value }
    }

    /// Whether the cache keeps the value; else its memory is freed with the last such entry.
    #[must_use]
    pub fn is_kept(&self) -> bool {
        matches!(self.value, Value::Kept(..))
    }

    /// Gives the entry a priority, instead of [`Priority::NORMAL`]: where the cache itself needs
    /// room, entries of a lower one go first. The kernel knows of none.
    pub fn set_priority(&self, priority: Priority) {
        let Value::Kept(id, ..) = self.value else { return };
        if let Some(mut table) = self.cache.lock() {
            table.item(id).priority = priority;
        }
    }
}

impl<K: Hash + Eq, V: Pod> Deref for Entry<'_, K, V> {
    type Target = [V];

    #[inline]
    fn deref(&self) -> &[V] {
        match &self.value {
            // SAFETY: as the file's head says.
            Value::Kept(_, place, count) => unsafe { values(&self.cache.region, *place, *count) },
            Value::Handed(values) => values,
        }
    }
}

impl<K: Hash + Eq, V> Drop for Entry<'_, K, V> {
    #[inline]
    fn drop(&mut self) {
        if let Value::Kept(id, ..) = self.value {
            self.cache.unpin(id);
        }
    }
}

impl<K: Hash + Eq, V: Pod + fmt::Debug> fmt::Debug for Entry<'_, K, V> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.iter()).finish()
    }
}
