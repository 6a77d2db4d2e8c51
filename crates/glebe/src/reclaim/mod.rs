//! Reclaim decides how much memory the program gives back to the system, from where, and when.
//!
//! A look reads the room below the tightest limit ([`Pressure`]). [`plan`], a pure function,
//! computes the bytes that each [`Class`] gives up ([`Targets`]): none while the room is at least a
//! margin, which grows with the speed of a rise.
//!
//! A [`Reclaimer`] holds [`Part`]s by weak handles. It also keeps marked memory small, so that the
//! kernel drops no file for it, moves [`Budget`]s, and sets [`Refills`](crate::volatile::Refills).
//! Two processes of a group do not coordinate: each may make up the whole shortage.
//!
//! A look is due before usage can pass the margin at 512 MiB/s or twice the measured speed. Notices
//! of the kernel only bring a look forward. Lock: one, taken before all others. Cost: some tens of
//! µs a look, plus shedding.

mod apply;
mod budget;
mod class;
mod clock;
mod error;
mod gauge;
mod keeper;
mod part;
mod plan;
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
/// `Gauge` serves the allocator, which cannot use a `Reclaimer`.
#[doc(hidden)]
pub use gauge::{Free, Gauge, Reading};
pub use part::Part;
pub use plan::plan;
#[doc(hidden)]
pub use plan::{PartStats, Targets};
pub use policy::Policy;
pub use pressure::{Pressure, Scope};
pub use reclaimer::Reclaimer;
pub use stats::Stats;
pub use watch::Watched;
