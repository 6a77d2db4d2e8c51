//! Free extents measured: [`glebe::free_tree`] beside other ways to keep them, over pure positions.
//!
//! Every contestant is a `space::Space`, filled from the same `state::State` and asked the same
//! requests (`case::Case`), so that answers can be compared and not times alone.

mod case;
mod list;
pub mod measure;
mod rbtree;
mod space;
mod state;
