//! [`Key`]: the name of an object in a store.

/// The name of one object in one store, for as long as the object is there. A key that was freed
/// is an error wherever it is used, and never names another object.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Key {
    /// The store's number, unlike that of every other of the process.
    pub(super) store: u32,
    /// The object's slot.
    pub(super) index: u32,
    /// Which use of the slot.
    pub(super) generation: u32,
}

impl Key {
    /// What a checksum of the object's copy begins with.
    pub(super) fn to_bytes(self) -> [u8; 8] {
        self.to_raw().1.to_le_bytes()
    }
}
