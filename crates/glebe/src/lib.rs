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
// The README is the front page; where its links go from here is said above it, since the first
// definition of a link counts. The modules form an ordered list; each uses only those above it.
#![deny(unsafe_code)]

// L0: vocabulary, no I/O.
pub mod error;
pub mod extent;
pub mod stats;
#[doc(hidden)]
pub mod sync;
pub mod units;

// L1: the only files that call the kernel.
#[doc(hidden)]
pub mod sys;

// L2: pure arithmetic.
pub mod free_tree;

// L3: mapped bytes.
#[doc(hidden)]
pub mod mapping;

// L4: parts usable alone.
pub mod contig;
pub mod vmap;
pub mod volatile;
pub mod zpool;

// L5
pub mod reserve;

pub use contig::Contig;
pub use reserve::Reserve;
#[doc(inline)]
pub use sys::{page_size, probe};
pub use units::{Bytes, Pages};
pub use volatile::Region;
pub use zpool::ObjectPool;
