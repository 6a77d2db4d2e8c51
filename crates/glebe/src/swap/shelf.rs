//! [`Shelf`]: whoever has slots with copies, a store or a region, and how copies find room there.
//!
//! A copy goes to the pool. Where that is full, kept copies of what is in memory go first, then
//! copies of what is not go to the file, some at a time; what still finds no room goes to the file
//! itself. Cost: the codec, a pool's insert, one write for many copies. No lock of its own.

use super::copies::{Copies, Copy};
use super::error::Error;
use super::key::Key;
use super::slots::Slot;
use super::spill::spill;
use super::stats::{Counter, Counts};
use super::word::{change, look, must, Word};
use crate::sync::{MappedWord, Ordering};
use crate::zpool;

/// Kept copies that go in one go.
const COPIES: usize = 16;

/// Where kept copies are to make room.
#[derive(Clone, Copy, Debug)]
pub(super) enum Home {
    Pool,
    File,
}

/// Where the searches for copies have come to, round all slots.
#[derive(Debug)]
pub(super) struct Hands {
    /// The hand that looks for kept copies.
    kept: MappedWord,
    /// The hand that looks for copies to write to the file.
    spill: MappedWord,
}

impl Hands {
    pub(super) fn new() -> Self {
        Self { kept: MappedWord::new(0), spill: MappedWord::new(0) }
    }

    /// The next slot of which a copy may be written, of so many.
    pub(super) fn next_spill(&self, slots: u64) -> u32 {
        (self.spill.fetch_add(1, Ordering::Relaxed) % slots) as u32
    }
}

/// See the module.
pub(super) trait Shelf {
    fn copies(&self) -> &Copies;
    fn counts(&self) -> &Counts;
    fn hands(&self) -> &Hands;
    /// How many slots, from the first on, may have a copy.
    fn used(&self) -> u32;
    fn slot(&self, index: u32) -> Option<Slot<'_>>;
    /// Called when a slot is no more this call's own.
    fn settle(&self, slot: Slot<'_>);
}

/// Stores a copy, and leaves one part of so many of the pool free.
///
/// # Errors
/// [`Error::Full`] and [`Error::FileFull`]; what pool and device refuse.
pub(super) fn store_copy<S: Shelf>(
    shelf: &S,
    key: Key,
    object: &[u8],
    free: u64,
) -> Result<Copy, Error> {
    let copy = loop {
        match shelf.copies().store(key, object, free) {
            Err(zpool::Error::Full { .. }) if drop_kept(shelf, Home::Pool) => {}
            Err(zpool::Error::Full { .. }) if spill(shelf)? => {}
            // An object too long for the pool, or others have all of its room.
            Err(zpool::Error::Full { held, limit, .. }) => {
                let copy = shelf.copies().store_in_file(key, object)?;
                break copy.ok_or(Error::Full { held, limit })?;
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

/// Drops some copies of what is in memory; false if there are none of that home.
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
