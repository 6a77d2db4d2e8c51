//! Tests the reclaimer.

mod bad_days;
mod caches;
mod exact;
mod files;
pub mod fixture;
mod forked;
mod margin;
mod order;
mod purgers;
