//! [`Chunks`]: the magazines of a lane by class, made some at a time and given back together.
//!
//! # Safety
//! A chunk is freed by [`Chunks::give_back`] alone, whose caller sees to it that nobody has a
//! magazine: the lane's thread is out of it, and so is whoever else had it locked.
#![allow(unsafe_code)]

use std::ptr;

use super::super::memory::CLASSES_MAX;
use super::magazine::Magazine;
use crate::sync::{AtomicPtr, Ordering};

/// Magazines that are made together.
const CHUNK: usize = if cfg!(loom) { 2 } else { 8 };
const CHUNKS: usize = CLASSES_MAX as usize / CHUNK;

type Chunk = [Magazine; CHUNK];

/// See the module. Null where there is none.
#[derive(Debug)]
pub(super) struct Chunks([AtomicPtr<Chunk>; CHUNKS]);

impl Chunks {
    /// Bytes of a chunk.
    pub(super) const BYTES: u64 = size_of::<Chunk>() as u64;

    pub(super) fn new() -> Self {
        Self(std::array::from_fn(|_| AtomicPtr::new(ptr::null_mut())))
    }

    #[inline]
    fn get(&self, nth: usize) -> Option<&Chunk> {
        let at = self.0.get(nth)?.load(Ordering::Acquire);
        // SAFETY: null, or from a box, whole before it was stored; as long as the caller has what
        // it gets nothing is given back.
        unsafe { at.as_ref() }
    }

    /// The magazine of a class, if there is one.
    #[inline]
    pub(super) fn magazine(&self, class: u32) -> Option<&Magazine> {
        self.get(class as usize / CHUNK)?.get(class as usize % CHUNK)
    }

    /// Makes the chunk with the magazine of a class, which has none; by the lane's thread, in it.
    pub(super) fn make(&self, class: u32) {
        if let Some(at) = self.0.get(class as usize / CHUNK) {
            let chunk = Box::new(std::array::from_fn(|_| Magazine::new()));
            at.store(Box::into_raw(chunk), Ordering::Release);
        }
    }

    /// All magazines by class.
    pub(super) fn all(&self) -> impl Iterator<Item = (u32, &Magazine)> {
        let made = (0..CHUNKS).filter_map(|nth| Some((nth * CHUNK, self.get(nth)?)));
        made.flat_map(|(first, chunk)| (first as u32..).zip(chunk))
    }

    /// Frees all chunks; how many bytes that were.
    ///
    /// # Safety
    /// Nobody has a magazine, and nobody else asks for one meanwhile.
    pub(super) unsafe fn give_back(&self) -> u64 {
        let mut bytes = 0;
        for at in &self.0 {
            let chunk = at.swap(ptr::null_mut(), Ordering::AcqRel);
            if !chunk.is_null() {
                // SAFETY: from a box, and nobody else's since the swap.
                drop(unsafe { Box::from_raw(chunk) });
                bytes += Self::BYTES;
            }
        }
        bytes
    }
}

impl Drop for Chunks {
    fn drop(&mut self) {
        // SAFETY: it is this call's alone.
        unsafe { self.give_back() };
    }
}
