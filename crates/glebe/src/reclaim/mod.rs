//! Reclaim: decides, from limits and pressure, what of a program's memory goes back, and how much.
//!
//! Three steps, the second of them pure. A look reads how much room the tightest limit leaves
//! ([`Pressure`]). [`plan`] says what each [`Class`] is to give up ([`Targets`]): nothing while the
//! room is beyond a margin, which grows with the speed that usage rises at; else what is missing,
//! and no more. The third sheds it in a fixed order: volatile memory by priority and age, waste of
//! object pools, their objects, budgets of the program's own caches, and last what a reserve can
//! spare. What lies in a reserve's page cache is not on the list: dropping it gives the machine
//! nothing.
//!
//! A [`Reclaimer`] holds [`Part`]s by weak handles and no callback. Beside shedding it keeps marked
//! memory of a group within what is free there, so that the kernel drops no file for it; lowers and
//! raises [`Budget`]s; and says by [`Refills`](crate::volatile::Refills) whether caches may fill up
//! again. Each process sheds by itself: two of them in one group may each meet the whole shortage.
//! A [`Gauge`] tells an allocator how much to shed, by the same rules, and allocates nothing.
//!
//! The clock decides when to look: so often that usage cannot pass the margin unseen at half a GiB
//! a second, or twice the speed that was measured. Thresholds of usage (cgroup version 1) and
//! stalls (PSI) bring a look forward; alone they are too late, or not allowed. One lock, taken
//! before all others. Cost of a look: some tens of µs, and what it sheds.

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
pub use error::Error;
/// For the allocator of this project, which cannot use a `Reclaimer`.
#[doc(hidden)]
pub use gauge::{Free, Gauge, Reading};
pub use part::Part;
pub use plan::plan;
// What a plan is made of and comes to.
#[doc(hidden)]
pub use plan::{PartStats, Targets};
pub use policy::Policy;
pub use pressure::{Pressure, Scope};
pub use reclaimer::Reclaimer;
pub use stats::Stats;
pub use watch::Watched;
