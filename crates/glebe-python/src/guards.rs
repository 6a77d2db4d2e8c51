//! Guards of the library beside what they borrow from, so that Python may keep them.
//!
//! # Safety
//! Each guard borrows from what the `Arc` beside it keeps alive at one address, and is dropped
//! before it, being the first field. Nothing gives the guard out with its false lifetime.
#![allow(unsafe_code)]

use std::mem::transmute;
use std::sync::Arc;

use glebe::swap::{self, Key, Pin, PinMut, Store};
use glebe::volatile::{Cache, Entry};

use crate::lease::Bytes;

/// Values in volatile memory, by number.
pub(crate) type Values = Cache<u64, u8>;

/// A pinned object of a store.
pub(crate) struct PinnedObject {
    guard: Pinned,
    _store: Arc<Store>,
}

enum Pinned {
    Read(Pin<'static>),
    Write(PinMut<'static>),
}

impl PinnedObject {
    /// # Errors
    /// As [`Store::pin`].
    pub(crate) fn read(store: &Arc<Store>, key: Key) -> Result<Self, swap::Error> {
        let guard = store.pin(key)?;
        // SAFETY: as the file's head says.
        let guard = Pinned::Read(unsafe { transmute::<Pin<'_>, Pin<'static>>(guard) });
        Ok(Self { guard, _store: Arc::clone(store) })
    }

    /// # Errors
    /// As [`Store::pin_mut`].
    pub(crate) fn write(store: &Arc<Store>, key: Key) -> Result<Self, swap::Error> {
        let guard = store.pin_mut(key)?;
        // SAFETY: as the file's head says.
        let guard = Pinned::Write(unsafe { transmute::<PinMut<'_>, PinMut<'static>>(guard) });
        Ok(Self { guard, _store: Arc::clone(store) })
    }

    pub(crate) fn bytes(&mut self) -> Bytes {
        match &mut self.guard {
            Pinned::Read(pin) => exported(pin),
            Pinned::Write(pin) => {
                Bytes { start: pin.as_mut_ptr(), len: pin.len(), readonly: false }
            }
        }
    }
}

/// A value of a volatile cache, pinned.
pub(crate) struct PinnedValue {
    entry: Entry<'static, u64, u8>,
    _values: Arc<Values>,
}

impl PinnedValue {
    /// The value of a number, pinned, if `find` has it.
    pub(crate) fn found<E>(
        values: &Arc<Values>,
        find: impl for<'a> FnOnce(&'a Values) -> Result<Option<Entry<'a, u64, u8>>, E>,
    ) -> Result<Option<Self>, E> {
        let Some(entry) = find(values)? else { return Ok(None) };
        // SAFETY: as the file's head says.
        let entry = unsafe { transmute::<Entry<'_, u64, u8>, Entry<'static, u64, u8>>(entry) };
        Ok(Some(Self { entry, _values: Arc::clone(values) }))
    }

    pub(crate) fn is_kept(&self) -> bool {
        self.entry.is_kept()
    }

    pub(crate) fn bytes(&self) -> Bytes {
        exported(&self.entry)
    }
}

/// Bytes that are only read.
fn exported(bytes: &[u8]) -> Bytes {
    Bytes { start: bytes.as_ptr().cast_mut(), len: bytes.len(), readonly: true }
}
