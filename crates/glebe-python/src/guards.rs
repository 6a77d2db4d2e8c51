//! Each type here owns a library guard and the object that the guard borrows, so that Python can
//! own the guard.
//!
//! # Safety
//! The `Arc` beside a guard keeps the borrowed object alive in place. The guard is the first field,
//! so it is dropped first. The guard's false `'static` lifetime never leaves this module.
#![allow(unsafe_code)]

use std::mem::transmute;
use std::sync::Arc;

use glebe::swap::{self, Key, Pin, PinMut, Store};
use glebe::volatile::{Cache, Entry};

use crate::exports::Bytes;

pub(crate) type Values = Cache<u64, u8>;

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
    /// The errors of [`Store::pin`].
    pub(crate) fn read(store: &Arc<Store>, key: Key) -> Result<Self, swap::SwapError> {
        let guard = store.pin(key)?;
        // SAFETY: the `Arc` keeps the store alive, and the guard is dropped first.
        let guard = Pinned::Read(unsafe { transmute::<Pin<'_>, Pin<'static>>(guard) });
        Ok(Self { guard, _store: Arc::clone(store) })
    }

    /// # Errors
    /// The errors of [`Store::pin_mut`].
    pub(crate) fn write(store: &Arc<Store>, key: Key) -> Result<Self, swap::SwapError> {
        let guard = store.pin_mut(key)?;
        // SAFETY: the `Arc` keeps the store alive, and the guard is dropped first.
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

pub(crate) struct PinnedValue {
    entry: Entry<'static, u64, u8>,
    _values: Arc<Values>,
}

impl PinnedValue {
    pub(crate) fn found<E>(
        values: &Arc<Values>,
        find: impl for<'a> FnOnce(&'a Values) -> Result<Option<Entry<'a, u64, u8>>, E>,
    ) -> Result<Option<Self>, E> {
        let Some(entry) = find(values)? else { return Ok(None) };
        // SAFETY: the `Arc` keeps the cache alive, and the entry is dropped first.
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

fn exported(bytes: &[u8]) -> Bytes {
    Bytes { start: bytes.as_ptr().cast_mut(), len: bytes.len(), readonly: true }
}
