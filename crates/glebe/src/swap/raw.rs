//! What bindings need of keys: their numbers, and how long an object is before it is taken.

use super::error::Error;
use super::key::Key;
use super::store::Store;
use super::word::{look, State};

impl Key {
    /// The number of the store, and that of the object in it.
    #[doc(hidden)]
    #[must_use]
    pub fn to_raw(self) -> (u32, u64) {
        (self.store, u64::from(self.generation) << u32::BITS | u64::from(self.index))
    }

    /// The key of these numbers; one that was made up is refused where it is used.
    #[doc(hidden)]
    #[must_use]
    pub fn from_raw(store: u32, object: u64) -> Self {
        Self { store, index: object as u32, generation: (object >> u32::BITS) as u32 }
    }
}

impl Store {
    /// The bytes of an object.
    ///
    /// # Errors
    /// [`Error::Stale`], [`Error::Foreign`], [`Error::Forked`].
    #[doc(hidden)]
    pub fn object_len(&self, key: Key) -> Result<usize, Error> {
        self.alive()?;
        let slot = self.places.slot(key.index).filter(|_| key.store == self.number);
        let slot = slot.ok_or(Error::Foreign)?;
        // The place is the object's for its life: it is asked for between two looks.
        let is_there = || {
            let word = look(slot.word());
            word.generation() == key.generation && word.state() != State::Hole
        };
        let len = is_there().then(|| slot.place().len).filter(|_| is_there());
        len.ok_or(Error::Stale)
    }
}
