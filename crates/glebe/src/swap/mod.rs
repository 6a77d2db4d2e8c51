//! A [`Store`] holds objects that together may exceed its budget of memory. A program pins objects
//! to use them.
//!
//! ```
//! use glebe::swap::{SwapError, Store};
//! use glebe::units::Bytes;
//!
//! // 64 objects of 64 KiB, of which a quarter may be in memory.
//! let store = Store::with_budget(Bytes::mib(1))?;
//! let object = |n: u8| (0..16384).flat_map(move |i| (i / 64 * u32::from(n)).to_le_bytes());
//! let keys: Vec<_> = (0..64)
//!     .map(|n| store.insert(&object(n).collect::<Vec<u8>>()))
//!     .collect::<Result<_, _>>()?;
//! assert!(object(7).eq(store.pin(keys[7])?.iter().copied()));
//! store.pin_mut(keys[7])?[0] = 1;
//! assert_eq!(store.take(keys[7])?[0], 1);
//! assert!(matches!(store.pin(keys[7]), Err(SwapError::Stale)));
//! # Ok::<(), SwapError>(())
//! ```
//!
//! An object has 1 byte to 2 MiB, takes whole pages, keeps its address, and has memory only while
//! resident. A guard ([`Pin`], [`PinMut`]) is an ordinary slice, so an access needs no signal and
//! no privilege.
//!
//! The *budget* bounds the memory of resident objects. Compressed data, 32 bytes per object, and a
//! buffer of up to two objects per loading or evicting thread are extra. If pinned objects leave no
//! room, a call returns [`SwapError::Budget`]. Copies beyond [`SwapOptions::pool_limit`] move to a
//! file ([`SwapOptions::file_in`]); without a file, calls that need room may return
//! [`SwapError::Full`].
//!
//! CLOCK selects the objects to evict, in the thread that needs room. A forked child may use
//! inherited guards, on its own copy of the bytes; calls that can fail return
//! [`SwapError::Forked`].
//!
//! One word per object orders all access, so a pin of a resident object takes no lock. Source:
//! CLOCK (Corbató 1968); vmcache (Leis et al. 2023), without its page table.

pub mod cache;
mod cipher;
mod copies;
mod error;
mod file;
mod guard;
mod idle;
mod kept;
mod key;
mod load;
mod memory;
pub(crate) mod options;
mod patience;
mod places;
pub(crate) mod raw;
mod region;
mod room;
mod shelf;
mod slots;
mod spill;
mod stats;
mod store;
pub(crate) mod word;

pub use error::SwapError;
pub use guard::{Pin, PinMut};
pub use key::Key;
pub use options::SwapOptions;
pub use region::{Region, Resident};
pub use stats::Stats;
pub use store::Store;

#[cfg(test)]
mod tests;
