//! [`Shelf`] is a store or region, which owns slots with copies.
//!
//! If the pool is full, `store_copy` drops kept copies of resident objects, or else moves stored
//! copies to the file, or else stores the new copy in the file. No lock.

use super::copies::{Copies, Copy};
use super::error::SwapError;
use super::key::Key;
use super::slots::SwapSlot;
use super::spill::spill;
use super::stats::{Counter, Counts};
use super::word::{change, look, must, Word};
use crate::zpool;
use glebe_os::internal::sync::{MappedWord, Ordering};

const COPIES: usize = 16;

#[derive(Clone, Copy, Debug)]
pub(super) enum Home {
    Pool,
    File,
}

#[derive(Debug)]
pub(super) struct Hands {
    kept: MappedWord,
    spill: MappedWord,
}

impl Hands {
    pub(super) fn new() -> Self {
        Self { kept: MappedWord::new(0), spill: MappedWord::new(0) }
    }

    pub(super) fn next_spill(&self, slots: u64) -> u32 {
        (self.spill.fetch_add(1, Ordering::Relaxed) % slots) as u32
    }
}

pub(super) trait Shelf {
    fn copies(&self) -> &Copies;
    fn counts(&self) -> &Counts;
    fn hands(&self) -> &Hands;
    fn used(&self) -> u32;
    fn slot(&self, index: u32) -> Option<SwapSlot<'_>>;
    /// Frees an object that was declared dead while the caller owned `slot`.
    fn settle(&self, slot: SwapSlot<'_>);
}

pub(super) fn store_copy<S: Shelf>(
    shelf: &S,
    key: Key,
    object: &[u8],
    free: u64,
) -> Result<Copy, SwapError> {
    let copy = loop {
        match shelf.copies().store(key, object, free) {
            Err(zpool::Error::Full { .. }) if drop_kept(shelf, Home::Pool) => {}
            Err(zpool::Error::Full { .. }) if spill(shelf)? => {}
            Err(zpool::Error::Full { held, limit, .. }) => {
                let copy = shelf.copies().store_in_file(key, object)?;
                break copy.ok_or(SwapError::Full { held, limit })?;
            }
            done => break done?,
        }
    };
    count_copy(shelf.counts(), object.len(), copy);
    Ok(copy)
}

fn count_copy(counts: &Counts, len: usize, copy: Copy) {
    let counter = match copy {
        Copy::Filled(_) => Counter::Filled,
        Copy::Block(block) if block.is_coded => {
            counts.add(Counter::CodedBytes, len as u64);
            counts.add(Counter::BlockBytes, block.len as u64);
            Counter::Coded
        }
        Copy::Block(_) => Counter::Raw,
    };
    counts.add(counter, 1);
}

pub(super) fn drop_kept<S: Shelf>(shelf: &S, home: Home) -> bool {
    let slots = u64::from(shelf.used());
    let mut dropped = 0;
    for _ in 0..slots {
        let at = shelf.hands().kept.fetch_add(1, Ordering::Relaxed) % slots;
        let Some(slot) = shelf.slot(at as u32) else { continue };
        let is_kept = look(slot.word()).has_copy();
        if !is_kept || change(slot.word(), Word::uncopying).is_err() {
            continue;
        }
        let copy = slot.copy();
        let is_meant = match home {
            Home::Pool => copy.in_pool().is_some(),
            Home::File => copy.is_in_file(),
        };
        if is_meant {
            shelf.copies().drop_copy(copy);
            shelf.counts().add(Counter::KeptDropped, 1);
            dropped += 1;
        }
        must(slot.word(), |word| word.idle(!is_meant));
        shelf.settle(slot);
        if dropped == COPIES {
            break;
        }
    }
    dropped > 0
}
