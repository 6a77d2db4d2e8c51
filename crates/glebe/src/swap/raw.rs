//! Keys as numbers, for language bindings.

use super::error::SwapError;
use super::key::Key;
use super::store::Store;
use super::word::{look, WordState};

/// Returns the numbers of store and object.
#[must_use]
pub fn key_to_raw(key: Key) -> (u32, u64) {
    (key.store, key.object())
}

/// Makes a key, which a store refuses unless it names an object.
#[must_use]
pub fn key_from_raw(store: u32, object: u64) -> Key {
    Key { store, index: object as u32, generation: (object >> u32::BITS) as u32 }
}

/// Returns the length of an object in bytes.
///
/// # Errors
/// `Stale`, `Foreign`, `Forked`.
pub fn object_len(store: &Store, key: Key) -> Result<usize, SwapError> {
    store.alive()?;
    let slot = store.places.slot(key.index).filter(|_| key.store == store.number);
    let slot = slot.ok_or(SwapError::Foreign)?;
    // An object's place never changes, so the length is valid if the object exists before and after
    // the read.
    let is_there = || {
        let word = look(slot.word());
        word.generation() == key.generation && word.state() != WordState::Hole
    };
    let len = is_there().then(|| slot.place().len).filter(|_| is_there());
    len.ok_or(SwapError::Stale)
}
