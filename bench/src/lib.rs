//! Peers, workloads and measurements for glebe: the program `glebe-bench`.
//!
//! The modules form an ordered list; each uses only those above it in this list.
#![deny(unsafe_code)]

// Measuring.
mod clock;
mod interrupt;
mod machine;
mod summary;

// What a run works on, and against whom.
mod child;
mod corpus;
mod frames;
mod peers;
mod pressure;
mod set_aside;

// What it tells people.
mod progress;
mod report;
mod samples;

// The benchmarks.
mod contig;
mod gpu;
mod reserve;
mod vmap;
mod volatile;
mod zpool;

pub mod cli;
