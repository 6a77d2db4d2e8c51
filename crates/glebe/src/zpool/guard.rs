//! [`Guard`]: the bytes of an object where they lie.
//!
//! # Safety
//! A guard holds a pin, by which the bytes stay as they are, from its making to its drop.
#![allow(unsafe_code)]

use std::ops::Deref;

use crate::zpool::objects::{Objects, Pinned};

/// The bytes of an object: in place where they are stored as they are, otherwise a decoded copy.
///
/// While one in place is there, the object's place is not used anew, also where the object is
/// removed or replaced; and some other places are not, since guards are counted in few counters.
/// So keep it for the time of a look. A copy keeps nothing.
#[derive(Debug)]
pub struct Guard<'a>(Held<'a>);

#[derive(Debug)]
enum Held<'a> {
    InPlace { objects: &'a Objects, pinned: Pinned },
    Copy(Vec<u8>),
}

impl<'a> Guard<'a> {
    /// Takes a pin over.
    pub(crate) fn in_place(objects: &'a Objects, pinned: Pinned) -> Self {
        Self(Held::InPlace { objects, pinned })
    }

    /// Of bytes of its own.
    pub(crate) fn copy(bytes: Vec<u8>) -> Self {
        Self(Held::Copy(bytes))
    }

    /// Whether the bytes are where they are stored.
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
            // SAFETY: the slice cannot outlive this guard, whose drop alone unpins.
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
