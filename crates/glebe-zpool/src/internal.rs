//! Items for the crate `glebe` only, which change without notice.
#![allow(missing_docs, clippy::missing_errors_doc)]

use crate::error::Error;
use crate::{Handle, ObjectPool, Options};
use glebe_os::units::Pages;

pub use crate::codec::{same_filled, with_buffer, Coder};
pub use crate::entry::word::Kind;
pub use crate::objects::Pinned;
pub use crate::policy::shed;
pub use crate::staging::{Sealing, Staging};

/// Lets another owner take (seal) zspages, but keeps `keep` free pages for new zspages.
pub fn lend(options: Options, keep: Pages) -> Options {
    options.lend(keep)
}

/// Charges the codec's state.
#[inline]
pub fn count_codec(pool: &ObjectPool) {
    pool.count_codec();
}

/// Pins an object and marks its zspage as read.
#[inline]
pub fn pinned(pool: &ObjectPool, handle: Handle) -> Result<Pinned, Error> {
    pool.pinned(handle)
}

pub fn decode(
    pool: &ObjectPool,
    pinned: &Pinned,
    stored: &[u8],
    buf: &mut [u8],
) -> Result<usize, Error> {
    pool.coder.decode(pinned.entry, stored, buf)
}

pub fn len_of_stored(pool: &ObjectPool, pinned: &Pinned, stored: &[u8]) -> Result<usize, Error> {
    pool.coder.len(pinned.entry, stored)
}

#[inline]
pub fn handle_generation(handle: Handle) -> u32 {
    handle.generation()
}

#[inline]
pub fn handle_index(handle: Handle) -> u32 {
    handle.index()
}
