//! The tests of the benchmarks: what a quick run tells, and what an interrupted one leaves.

mod child;
mod interrupt;
mod keys;
