//! [demo]: ../../../docs/demo.svg
//! [examples]: ../../../crates/glebe/examples
//! [c-examples]: ../../../crates/glebe-c/examples
//! [design]: ../../../docs/design.md
//! [serve]: ../../../docs/serve.md
//! [kernel]: ../../../docs/kernel.md
//! [changes]: ../../../CHANGELOG.md
//! [results]: ../../../bench/results/README.md
//!
#![doc = include_str!("../README.md")]
// The README is the front page. The links above override its own: rustdoc takes the first
// definition. Each module uses only modules listed above it.
#![deny(unsafe_code)]
// Under `--cfg loom` the crate holds only the models and the parts that they run.
#![cfg_attr(loom, allow(dead_code, unused_imports))]

// L0: vocabulary, no I/O.
pub mod error;
pub mod extent;
#[cfg(not(loom))]
pub mod stats;
#[doc(hidden)]
pub mod sync;
pub mod units;

// L1: the only files that call the kernel.
#[cfg(not(loom))]
#[doc(hidden)]
pub mod sys;

// L2: pure arithmetic.
#[cfg(not(loom))]
pub mod free_tree;

// L3: mapped bytes.
#[cfg(not(loom))]
#[doc(hidden)]
pub mod mapping;

// L4: parts usable alone.
#[cfg(not(loom))]
pub mod contig;
#[cfg(not(loom))]
pub mod vmap;
#[cfg(not(loom))]
pub mod volatile;
#[cfg(not(loom))]
pub mod zpool;

// L5
#[cfg(not(loom))]
pub mod reserve;

// L6
#[cfg(not(loom))]
pub mod swap;

// L7
#[cfg(not(loom))]
pub mod reclaim;

// L8: the models and the parts of the modules above that they run.
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
#[cfg(loom)]
mod volatile {
    mod priority;
    pub(crate) mod shared {
        mod order;
        pub(crate) mod protocol;
        pub(crate) mod word;

        pub(crate) use crate::models::hardware::ledger;
        pub(crate) use order::Order;
    }

    pub(crate) use priority::Priority;
}
#[cfg(loom)]
mod zpool {
    pub(crate) mod class;
    pub(crate) mod entry;
    pub(crate) mod memory {
        pub(crate) mod account;
        pub(crate) mod bits;
        pub(crate) mod pages;
        pub(crate) mod pins;
        pub(crate) mod zspages;

        pub(crate) use crate::models::hardware::{slots as frames, words};
    }
    pub(crate) mod objects;
    pub(crate) mod shared;
}

#[cfg(not(loom))]
#[doc(inline)]
pub use sys::{page_size, probe};
pub use units::{Bytes, Pages};
#[cfg(not(loom))]
pub use {contig::Contig, reserve::Reserve, volatile::Region, zpool::ObjectPool};
