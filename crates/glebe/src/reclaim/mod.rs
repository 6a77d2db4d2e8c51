//! Reclaim decides how much memory the program gives back to the system, from where, and when.
//!
//! A look reads the room that the tightest limit leaves ([`Pressure`]). [`plan`], a pure function,
//! computes how much each [`Class`] gives up ([`Targets`]): nothing while the room is at least a
//! margin, which grows with the speed of a rise; otherwise what is missing. The parts then shed in
//! the order of the classes. A reserve's page cache is in no class: dropping it gives the machine
//! nothing.
//!
//! A [`Reclaimer`] holds [`Part`]s by weak handles, without callbacks. It also keeps a group's
//! marked memory within what is free, so that the kernel drops no file for it, moves [`Budget`]s,
//! and sets [`Refills`](crate::volatile::Refills). Processes do not coordinate: two in a group may
//! each make up the whole shortage. A [`Gauge`] applies the same rules for an allocator.
//!
//! The clock sets the time of a look: before usage can pass the margin at 512 MiB/s, or twice the
//! measured speed. Thresholds and stalls bring a look forward; they may be late or not allowed. One
//! lock, taken before all others. A look costs some tens of µs, plus the shedding.

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
/// For this project's allocator, which cannot use a `Reclaimer`.
#[doc(hidden)]
pub use gauge::{Free, Gauge, Reading};
pub use part::Part;
pub use plan::plan;
// The input and the output of a plan.
#[doc(hidden)]
pub use plan::{PartStats, Targets};
pub use policy::Policy;
pub use pressure::{Pressure, Scope};
pub use reclaimer::Reclaimer;
pub use stats::Stats;
pub use watch::Watched;
