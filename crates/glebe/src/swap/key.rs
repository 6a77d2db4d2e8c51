//! [`Key`] names an object.

use super::raw::key_to_raw;

/// `Key` names one object in one store. Keys of freed objects are refused and never used again.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Key {
    pub(super) store: u32,
    pub(super) index: u32,
    pub(super) generation: u32,
}

impl Key {
    pub(super) fn to_bytes(self) -> [u8; 8] {
        key_to_raw(self).1.to_le_bytes()
    }
}
