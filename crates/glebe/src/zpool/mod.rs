//! Objects of any size up to a page, packed across page borders into a few pages at a time.
//!
//! An *object* lies in a *slot* of a *zspage*, a run of 1 to 16 pages. A zspage has slots of one
//! *size class*; the *table* ([`Table`]) is the set of classes in use. A [`Handle`] stays the same
//! when objects are moved: *compaction* empties zspages, whose pages go back to the kernel. A
//! [`Codec`] makes objects smaller, and a stronger one those that are idle ([`Pool::recompress`]).
//!
//! ```
//! use glebe::zpool::{Error, Pool};
//!
//! let pool = Pool::options().build()?;
//! let handle = pool.insert(b"bytes, up to a page of them")?;
//! let mut buf = [0; 64];
//! let len = pool.read(handle, &mut buf)?;
//! assert_eq!(&buf[..len], b"bytes, up to a page of them");
//! assert_eq!(&*pool.get(handle)?, &buf[..len]);
//! pool.remove(handle)?;
//! assert!(matches!(pool.read(handle, &mut buf), Err(Error::Stale)));
//! # Ok::<_, Error>(())
//! ```

mod access;
mod account;
mod apart;
mod bits;
mod class;
mod classes;
mod codec;
mod coding;
mod compact;
mod counts;
mod entries;
mod entry;
mod error;
mod evict;
mod fitted;
mod frames;
mod groups;
mod guard;
mod handle;
mod histogram;
mod memory;
mod objects;
mod options;
mod pages;
mod pins;
mod pool;
mod recompress;
mod refit;
mod seal;
mod size_class;
mod space;
mod staging;
mod stats;
mod words;
mod zspage;

pub use codec::{Codec, CodecError, Dictionary, Zstd};
pub use compact::Compacted;
pub use error::Error;
pub use fitted::{Estimate, Metadata};
pub use guard::Guard;
pub use handle::Handle;
pub use histogram::Histogram;
pub use options::{AtLimit, Budget, Compaction, Options, TableChoice};
pub use pool::Pool;
pub use recompress::Recompressed;
pub use size_class::{Rules, RulesError, SizeClass, Table};
pub use stats::{ClassStats, Stats};

pub(crate) use codec::{same_filled, Coder, Form};
pub(crate) use objects::Pinned;
pub(crate) use seal::Sealing;
pub(crate) use staging::Staging;
pub(crate) use words::Words;

#[cfg(test)]
mod tests;
