//! The page layer: which slices of a reservation are in use, and what happens to the free slices.
//!
//! A *slice* is 64 KiB, as in mimalloc; a *unit* is 2 MiB, a huge page. [`state`], [`mod@unit`] and
//! [`right`] are the protocol between threads; [`space`] is the memory and its table. [`mark`] and
//! [`give_back`] make system calls on slices that [`run`] claims. [`ration`] chooses huge pages.
//! Nothing here allocates.

pub mod counters;
#[cfg(not(loom))]
pub mod give_back;
#[cfg(not(loom))]
pub mod mark;
#[cfg(loom)]
mod models;
#[cfg(not(loom))]
pub mod ration;
pub mod right;
#[cfg(not(loom))]
pub mod run;
#[cfg(not(loom))]
pub mod space;
pub mod state;
pub mod unit;

/// Bytes of a slice.
pub const SLICE: usize = 64 << 10;

#[cfg(all(test, not(loom)))]
mod tests;
