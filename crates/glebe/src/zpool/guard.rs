//! [`Guard`]: the bytes of an object where they lie.
//!
//! # Safety
//! A guard holds a pin, by which the bytes stay as they are, from its making to its drop.
#![allow(unsafe_code)]

use std::ops::Deref;

use super::objects::{Objects, Pinned};

/// The stored bytes of an object, in place.
///
/// While it is there, the object's place is not used anew, also where the object is removed or
/// replaced; and some other places are not, since guards are counted in few counters. So keep it
/// for the time of a look.
#[derive(Debug)]
pub struct Guard<'a> {
    objects: &'a Objects,
    pinned: Pinned,
}

impl<'a> Guard<'a> {
    /// Takes a pin over.
    pub(crate) fn new(objects: &'a Objects, pinned: Pinned) -> Self {
        Self { objects, pinned }
    }
}

impl Deref for Guard<'_> {
    type Target = [u8];

    #[inline]
    fn deref(&self) -> &[u8] {
        // SAFETY: the slice cannot outlive this guard, whose drop alone unpins.
        unsafe { self.objects.bytes(&self.pinned) }
    }
}

impl Drop for Guard<'_> {
    #[inline]
    fn drop(&mut self) {
        self.objects.unpin(&self.pinned);
    }
}
