//! The reclaimer: under real limits, in a memory cgroup of its own; on fixture trees of limits that
//! the machine does not have; and after forks.

mod bad_days;
mod caches;
mod exact;
mod files;
pub mod fixture;
mod forked;
pub mod inside;
mod margin;
mod order;
mod purgers;
