//! Free extents measured: [`glebe::free_tree`] beside other ways to keep them, over pure positions.
//!
//! Every contestant is a `space::Space`, filled from the same `state::State` and asked the same
//! requests (`case::Case`), so that answers can be compared and not times alone. What many threads
//! share is a `shared::Shared`; `kernel_test` runs the kernel test's own cases on one.

mod case;
mod crates;
pub mod kernel_test;
mod list;
pub mod measure;
mod rbtree;
mod shared;
mod space;
mod splits;
mod state;
mod threads;
mod tlsf;
mod view;
