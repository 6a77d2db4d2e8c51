//! [`Key`]: the name of an object in a store.

/// The name of one object in one store. Every call refuses the key of a freed object, and no other
/// object gets it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Key {
    /// The store's number, unique in the process.
    pub(super) store: u32,
    pub(super) index: u32,
    pub(super) generation: u32,
}

impl Key {
    /// Returns the bytes that a copy's checksum covers before the block.
    pub(super) fn to_bytes(self) -> [u8; 8] {
        self.to_raw().1.to_le_bytes()
    }
}
