//! [`Entry`] keeps a value in memory. Dropping an entry takes the cache's lock, and may mark items.
//!
//! # Safety
//! An entry pins its item, so nobody marks or writes the item's place. Only `lookup` and `building`
//! make entries.
#![allow(unsafe_code)]

use std::fmt;
use std::hash::Hash;
use std::ops::Deref;

use bytemuck::Pod;

use super::bytes::values;
use super::flight::Handed;
use super::table::Id;
use super::Cache;
use crate::Priority;
use glebe_os::extent::Extent;

/// A value of a [`Cache`], which the kernel cannot free while the entry exists.
#[must_use = "the value may be taken once this is dropped"]
pub struct Entry<'a, K: Hash + Eq, V> {
    cache: &'a Cache<K, V>,
    value: Value<V>,
}

pub(super) enum Value<V> {
    Kept(Id, Extent, usize),
    Handed(Handed<V>),
}

impl<'a, K: Hash + Eq, V> Entry<'a, K, V> {
    pub(super) fn new(cache: &'a Cache<K, V>, value: Value<V>) -> Self {
        Self { cache, value }
    }

    /// Returns true if the value is in the cache's region. Otherwise its last entry frees it.
    #[must_use]
    pub fn is_kept(&self) -> bool {
        matches!(self.value, Value::Kept(..))
    }

    /// Sets a kept value's priority; default [`Priority::NORMAL`]. The cache evicts lower
    /// priorities first. The kernel ignores priorities.
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
            // SAFETY: this entry pins the item, which was built with `count` values.
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
