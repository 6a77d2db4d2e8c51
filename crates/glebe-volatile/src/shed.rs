//! [`Shed`] lets the reclaimer of the crate `glebe` free marked memory by priority.
#![allow(missing_docs, clippy::missing_errors_doc)]

use std::time::Instant;

use super::{Error, Priority};
use glebe_os::internal::sys::processes::claim::Holder;
use glebe_os::units::Bytes;

pub trait Shed {
    /// Returns false if another reclaimer has the memory.
    fn claim_for(&self, holder: Holder) -> Result<bool, Error>;

    fn release(&self, holder: Holder);

    /// Estimates the bytes that [`Shed::shed`] can free, by priority.
    fn sheddable(&self) -> [Bytes; Priority::COUNT];

    /// Returns the time of a priority's oldest mark, if known.
    fn oldest(&self, priority: Priority) -> Option<Instant>;

    /// Frees up to `most` bytes of a priority, rounded up, the oldest first. Stops at memory marked
    /// after `until`, but not at the oldest memory. Returns the bytes freed.
    fn shed(&self, priority: Priority, most: Bytes, until: Option<Instant>)
        -> Result<Bytes, Error>;
}
