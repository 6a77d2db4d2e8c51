//! Object pools store objects of 1 byte to a page, and pack them across page borders.
//!
//! An *object* usually occupies a *slot* of a *zspage*, a run of 1 to 16 pages with slots of one
//! *size class*. A [`Table`] is a set of classes. *Compaction* moves objects out of sparse zspages
//! to free their pages; a [`Handle`] stays valid. A [`Codec`] compresses objects.
//!
//! ```
//! use glebe_zpool::{Error, ObjectPool};
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
#![deny(unsafe_code)]
#![cfg_attr(loom, allow(dead_code, unused_imports))]

#[cfg(not(loom))]
mod access;
mod class;
#[cfg(not(loom))]
mod codec;
mod entry;
#[cfg(not(loom))]
mod error;
#[cfg(not(loom))]
mod guard;
#[cfg(not(loom))]
mod memory;
#[cfg(loom)]
mod memory {
    pub(crate) mod account;
    pub(crate) mod bits;
    pub(crate) mod pages;
    pub(crate) mod pins;
    pub(crate) mod zspages;

    pub(crate) use crate::models::{slots as frames, words};
}
#[cfg(loom)]
mod models;
mod objects;
#[cfg(not(loom))]
mod options;
#[cfg(not(loom))]
mod policy;
#[cfg(not(loom))]
mod pool;
mod shared;
#[cfg(not(loom))]
mod sizes;
#[cfg(not(loom))]
mod space;
#[cfg(not(loom))]
mod staging;
#[cfg(not(loom))]
mod stats;
#[cfg(all(test, not(loom)))]
mod tests;

#[cfg(not(loom))]
pub use {
    codec::{Codec, Zstd},
    entry::handle::Handle,
    error::{CodecError, Error},
    guard::Guard,
    options::{AtLimit, Budget, Compaction, Options, TableChoice},
    policy::compact::Compacted,
    pool::ObjectPool,
    sizes::table::{Rules, RulesError, SizeClass, Table},
    stats::{ClassStats, Stats},
};

#[cfg(not(loom))]
#[doc(no_inline)]
pub use glebe_os::{error::OsError, extent, page_size, units};

#[cfg(not(loom))]
#[doc(hidden)]
pub mod internal;

#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
