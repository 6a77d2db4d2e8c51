//! Keys as numbers, for language bindings.

use super::error::SwapError;
use super::key::Key;
use super::store::Store;
use super::word::{look, WordState};

impl Key {
    /// Returns the numbers of store and object.
    #[doc(hidden)]
    #[must_use]
    pub fn to_raw(self) -> (u32, u64) {
        (self.store, u64::from(self.generation) << u32::BITS | u64::from(self.index))
    }

    /// Makes a key, which a store refuses unless it names an object.
    #[doc(hidden)]
    #[must_use]
    pub fn from_raw(store: u32, object: u64) -> Self {
        Self { store, index: object as u32, generation: (object >> u32::BITS) as u32 }
    }
}

impl Store {
    /// Returns the length of an object in bytes.
    ///
    /// # Errors
    /// `Stale`, `Foreign`, `Forked`.
    #[doc(hidden)]
    pub fn object_len(&self, key: Key) -> Result<usize, SwapError> {
        self.alive()?;
        let slot = self.places.slot(key.index).filter(|_| key.store == self.number);
        let slot = slot.ok_or(SwapError::Foreign)?;
        // An object's place never changes, so the length is valid if the object exists before and
        // after the read.
        let is_there = || {
            let word = look(slot.word());
            word.generation() == key.generation && word.state() != WordState::Hole
        };
        let len = is_there().then(|| slot.place().len).filter(|_| is_there());
        len.ok_or(SwapError::Stale)
    }
}
