//! Memory larger than its budget: objects that the program pins while it uses them.
//!
//! ```
//! use glebe::swap::{Error, Store};
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
//! assert!(matches!(store.pin(keys[7]), Err(Error::Stale)));
//! # Ok::<(), Error>(())
//! ```
//!
//! A [`Store`] has objects of 1 byte to 2 MiB, in whole pages. An object has one address for life.
//! Its memory comes when it is pinned, and may go when it is not. What goes is compressed into a
//! pool of the store's own. A guard ([`Pin`], [`PinMut`]) is an ordinary slice, and there is no
//! other way to the bytes: no signal, no fault handler, no privilege.
//!
//! The *budget* is what objects may take of memory; what is compressed, tables of 32 bytes an
//! object, and a buffer of up to twice an object for each thread that loads or evicts come on top.
//! What is pinned counts and cannot leave: where it leaves no room, a call is refused
//! ([`Error::Budget`]) and nothing is lost. [`Options::pool_limit`] bounds what is compressed. At
//! that limit copies go to a file ([`Options::file_in`]), 256 KiB at a time; without one, new
//! objects are refused ([`Error::Full`]). Nothing in the file outlives the process. What is in the
//! file may be in the idle part of a reserve too ([`Options::cached_in`]): loads read the file only
//! where first class took that memory.
//!
//! Objects leave by CLOCK: one that was pinned lately is passed once. Whoever needs room makes it;
//! there is no thread. An object that was only read since it was loaded leaves without being
//! compressed again, as long as the pool has room for kept copies. The program knows more: what is
//! [`cold`](Store::cold), what it [will need](Store::will_need), and what is [dead](Store::dead)
//! and never worth a copy.
//!
//! A forked child may read and write through guards that it inherited, which are copies there;
//! every call on the store is [`Error::Forked`].
//!
//! One word an object orders all: to pin what is in memory takes no lock. Below the words are
//! the places of objects (a mutex, for a search) and the pool. Source: CLOCK (Corbató 1968); pins,
//! stable addresses and a budget as vmcache (Leis et al. 2023) has them, without its page table.

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

pub use error::Error;
pub use guard::{Pin, PinMut};
pub use key::Key;
pub use options::Options;
pub use region::{Region, Resident};
pub use stats::Stats;
pub use store::Store;

#[cfg(test)]
mod tests;
