//! Object pools pack objects of up to a page across page borders, into a few pages at a time.
//!
//! An *object* occupies a *slot* of a *zspage*, a run of 1 to 16 pages. All slots of a zspage have
//! one *size class*. A [`Table`] is the set of classes in use. *Compaction* moves objects out of
//! sparse zspages and frees their pages; a [`Handle`] stays valid when its object moves. A
//! [`Codec`] compresses objects.
//!
//! ```
//! use glebe::zpool::{Error, ObjectPool};
//!
//! let pool = ObjectPool::options().build()?;
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
mod class;
mod codec;
mod entry;
mod error;
mod guard;
mod memory;
mod objects;
mod options;
mod policy;
mod pool;
mod shared;
mod sizes;
mod space;
mod staging;
mod stats;

pub use codec::{Codec, Zstd};
pub use entry::handle::Handle;
pub use error::{CodecError, Error};
pub use guard::Guard;
pub use options::{AtLimit, Budget, Compaction, Options, TableChoice};
pub use policy::compact::Compacted;
pub use pool::ObjectPool;
pub use sizes::table::{Rules, RulesError, SizeClass, Table};
pub use stats::{ClassStats, Stats};

pub(crate) use codec::{same_filled, with_buffer, Coder};
pub(crate) use entry::word::Kind;
pub(crate) use memory::words::Words;
pub(crate) use objects::Pinned;
pub(crate) use staging::{Sealing, Staging};

#[cfg(test)]
mod tests;
