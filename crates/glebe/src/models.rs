//! Models for the model checker (`RUSTFLAGS="--cfg loom"`): the lending protocol, the index, the
//! stock, objects of a store, and pages of a region.
//!
//! They run the library's own source (the crate root lists the files) with [model
//! hardware](hardware) in place of the kernel and of mapped memory, fully or up to a number of
//! preemptions. Models that must fail leave out a part of a protocol, to show that it is needed.

pub(crate) mod hardware;
mod lending;
mod paged;
mod stock;
mod swapped;

pub(crate) use glebe_testing::model::{explore, explore_large, explore_orders};
