//! [`Guard`]: the bytes of an object.
//!
//! # Safety
//! A guard holds a pin from its creation to its drop, which keeps the bytes unchanged.
#![allow(unsafe_code)]

use std::ops::Deref;

use crate::objects::{Objects, Pinned};

/// The bytes of an object: in place if stored as given, otherwise a decompressed copy.
///
/// A guard in place keeps the object's slot from being reused, even after a remove or replace, and
/// some other slots, since zspages share pin counters. Keep it only briefly. A copy keeps nothing.
#[derive(Debug)]
pub struct Guard<'a>(Held<'a>);

#[derive(Debug)]
enum Held<'a> {
    InPlace { objects: &'a Objects, pinned: Pinned },
    Copy(Vec<u8>),
}

impl<'a> Guard<'a> {
    pub(crate) fn in_place(objects: &'a Objects, pinned: Pinned) -> Self {
        Self(Held::InPlace { objects, pinned })
    }

    pub(crate) fn copy(bytes: Vec<u8>) -> Self {
        Self(Held::Copy(bytes))
    }

    /// Returns true if these are the stored bytes in place.
    #[must_use]
    pub fn is_in_place(&self) -> bool {
        matches!(self.0, Held::InPlace { .. })
    }
}

impl Deref for Guard<'_> {
    type Target = [u8];

    #[inline]
    fn deref(&self) -> &[u8] {
        match &self.0 {
            // SAFETY: the slice cannot outlive this guard, and only the guard's drop unpins.
            Held::InPlace { objects, pinned } => unsafe { objects.bytes(pinned) },
            Held::Copy(bytes) => bytes,
        }
    }
}

impl Drop for Guard<'_> {
    #[inline]
    fn drop(&mut self) {
        if let Held::InPlace { objects, pinned } = &self.0 {
            objects.unpin(pinned);
        }
    }
}
