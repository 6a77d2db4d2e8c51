//! What is measured and checked of [`glebe::zpool`].

pub mod model;
pub mod tables;
pub mod trace;
