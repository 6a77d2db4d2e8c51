//! Tests of the benchmarks: results of quick runs, and what interrupted runs leave.

mod child;
mod interrupt;
mod keys;
