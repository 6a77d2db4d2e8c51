//! [`Guard`] lends the bytes of an object.
//!
//! # Safety
//! A guard without a copy pins the object until its drop, so the bytes stay unchanged.
#![allow(unsafe_code)]

use std::ops::Deref;

use crate::objects::{Objects, Pinned};

/// Lends the bytes of an object: in place, or as a copy.
///
/// A guard without a copy delays the reuse of some slots, so keep it only briefly.
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

    /// Returns true if the bytes are in place.
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
