//! Objects that together exceed their budget of memory; a program pins those that it uses.
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
//! A [`Store`] owns objects of 1 byte to 2 MiB, in whole pages. An object keeps its address for
//! life, and has memory while it is resident. A guard ([`Pin`], [`PinMut`]) is an ordinary slice
//! and the only way to the bytes: no signal, no fault handler, no privilege.
//!
//! The *budget* bounds the memory of resident objects. Compressed data, 32 bytes per object, and a
//! buffer of up to twice an object for each loading or evicting thread are extra. If pinned objects
//! leave no room, a call returns [`SwapError::Budget`] and nothing is lost.
//! [`SwapOptions::pool_limit`] bounds the compressed data. Beyond it, copies move to a file, 256
//! KiB at a time ([`SwapOptions::file_in`]); without a file, new objects are refused
//! ([`SwapError::Full`]). The file disappears with the process. Idle memory of a reserve can cache
//! it ([`SwapOptions::cached_in`]).
//!
//! CLOCK selects the objects to evict, in the thread that needs room. An object that was only read
//! since its load is not compressed again while the pool has room for kept copies. The program can
//! say which objects are [`cold`](Store::cold), which it [will need](Store::will_need), and which
//! are [dead](Store::dead) and never worth a copy.
//!
//! A forked child may use inherited guards, which are copies there. Every call on the store returns
//! [`SwapError::Forked`].
//!
//! One word per object orders all access: a pin of a resident object takes no lock. Other calls use
//! a mutex for the places of objects, and the pool's locks. Source: CLOCK (Corbató 1968); pins,
//! stable addresses and a budget as in vmcache (Leis et al. 2023), without its page table.

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
mod options;
mod patience;
mod places;
mod raw;
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
