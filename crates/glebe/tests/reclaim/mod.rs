//! Tests the reclaimer: under real limits in its own group, on fixture trees, and after forks.

mod bad_days;
mod caches;
mod exact;
mod files;
pub mod fixture;
mod forked;
mod margin;
mod order;
mod purgers;
