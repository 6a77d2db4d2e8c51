//! Models of the loom checker run the library's own source on [model hardware](hardware).
//!
//! A model that must fail leaves out a part of a protocol, which shows that the part is needed.

pub(crate) mod hardware;
mod lending;
mod paged;
mod stock;
mod swapped;

pub(crate) use glebe_testing::model::{explore, explore_large, explore_orders};
