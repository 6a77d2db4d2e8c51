//! [`Key`] names an object.

/// `Key` names one object in one store. Keys of freed objects are refused and never used again.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Key {
    pub(super) store: u32,
    pub(super) index: u32,
    pub(super) generation: u32,
}

impl Key {
    pub(super) fn to_bytes(self) -> [u8; 8] {
        self.object().to_le_bytes()
    }

    pub(super) fn object(self) -> u64 {
        u64::from(self.generation) << u32::BITS | u64::from(self.index)
    }
}
