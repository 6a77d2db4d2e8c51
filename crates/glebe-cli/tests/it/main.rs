//! The tests of the command `glebe`, as a person, a script or a service manager meets it.

mod contig;
mod man;
mod outputs;
mod probe;
mod reachable;
mod reclaim;
mod run;
#[cfg(feature = "serve")]
mod serve;
mod stats;
mod zpool;
