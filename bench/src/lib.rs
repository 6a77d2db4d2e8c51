//! Peers, workloads and measurements for glebe.
//!
//! The modules form an ordered list; each uses only those above it in this list.
#![deny(unsafe_code)]

// Measuring.
pub mod clock;
pub mod interrupt;
pub mod machine;
pub mod summary;

// What a run works on, and against whom.
pub mod corpus;
pub mod peers;

// What it tells people.
pub mod progress;
pub mod svg;
pub mod terminal;
pub mod whole_file;

pub mod report;

pub(crate) mod turns;

// Memory that runs short.
pub mod pressure;

// The reserve at work.
pub mod reserve;

// Volatile memory at work.
pub mod volatile;

// Free extents at work.
pub mod vmap;

// The compressed-object pool.
pub mod zpool;

// Contiguous memory, used and had.
pub mod contig;

// Host memory beside a GPU.
pub mod gpu;

#[cfg(test)]
mod scratch;
mod set_aside;
