//! Tests `glebe` as a user, a script or a service manager runs it.

mod contig;
#[cfg(feature = "serve")]
mod contig_run;
#[path = "../../../glebe-preload/tests/it/libraries.rs"]
mod libraries;
mod man;
mod outputs;
mod probe;
mod reachable;
mod reclaim;
mod run;
#[cfg(feature = "serve")]
mod serve;
mod sizes;
mod stats;
#[cfg(feature = "serve")]
mod supervised;
#[cfg(all(feature = "serve", feature = "top"))]
mod top;
mod zpool;
