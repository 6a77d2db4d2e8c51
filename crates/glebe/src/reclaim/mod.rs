//! Reclaim decides how much memory the program gives back to the system, from where, and when.
//!
//! A look reads the room below the tightest limit ([`Pressure`]). A plan computes the bytes that
//! each [`Class`] gives up. While the room is at least a margin, only marked memory is shed, and
//! only to spare file pages in use.
//!
//! A [`Reclaimer`] holds [`Part`]s by weak handles. It also limits marked memory, adjusts
//! [`Budget`]s, and sets [`Refills`](crate::volatile::Refills). Each of two processes of a group
//! may shed the whole shortage.
//!
//! A look is due roughly before usage can pass the margin at 512 MiB/s, or at twice the measured
//! speed if that is more. Notices of the kernel bring a look forward. Lock: the reclaimer's, taken
//! before those of parts. Cost: some tens of µs a look, plus shedding.

mod apply;
mod budget;
mod class;
mod clock;
mod error;
pub(crate) mod gauge;
mod keeper;
mod part;
pub(crate) mod plan;
mod policy;
mod pressure;
mod reclaimer;
mod sensor;
mod stats;
mod watch;

pub use apply::Reclaimed;
pub use budget::Budget;
pub use class::Class;
pub use error::ReclaimError;
pub use part::Part;
pub use policy::Policy;
pub use pressure::{Pressure, Scope};
pub use reclaimer::Reclaimer;
pub use stats::Stats;
pub use watch::Watched;
