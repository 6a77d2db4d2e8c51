//! [book]: ../../../docs/README.md
//! [c]: ../../../docs/c.md
//! [changes]: ../../../CHANGELOG.md
//! [gpu]: ../../../docs/gpu.md
//! [huge]: ../../../docs/huge-pages.md
//! [malloc]: ../../../docs/malloc.md
//! [python]: ../../../docs/python.md
//! [reclaim]: ../../../docs/reclaim.md
//! [results]: ../../../bench/results/README.md
//! [serve]: ../../../docs/serve.md
//! [start]: ../../../docs/start/README.md
//! [swap]: ../../../docs/swap.md
//!
#![doc = include_str!("../README.md")]
// The links above override the README's, because rustdoc takes the first definition.
#![deny(unsafe_code)]
#![cfg_attr(loom, allow(dead_code, unused_imports))]

#[doc(inline)]
pub use glebe_os::{error, extent, units};
#[cfg(not(loom))]
#[doc(no_inline)]
pub use {glebe_cache as cache, glebe_lease as lease};
#[cfg(not(loom))]
#[doc(inline)]
pub use {
    glebe_contig as contig,
    glebe_os::{page_size, probe, stats},
    glebe_vmap as vmap,
    glebe_vmap::free_tree,
    glebe_volatile as volatile, glebe_zpool as zpool,
};

// L0
#[cfg(not(loom))]
pub mod reserve;

// L1
#[cfg(all(feature = "cuda", not(loom)))]
pub mod cuda;
#[cfg(not(loom))]
pub mod swap;

// L2
#[cfg(not(loom))]
pub mod reclaim;

// L3
#[cfg(not(loom))]
#[doc(hidden)]
pub mod internal;

// L4: models
#[cfg(loom)]
mod models;
#[cfg(loom)]
mod reserve {
    pub(crate) mod index;
    pub(crate) mod lent;
    pub(crate) mod stock;
    pub(crate) mod words;

    pub(crate) use crate::models::hardware::{access, table};
}
#[cfg(loom)]
mod swap {
    pub(crate) mod word;
}

pub use units::{Bytes, Pages};
#[cfg(not(loom))]
pub use {contig::Contig, reserve::Reserve, volatile::Region, zpool::ObjectPool};
