//! Tests the allocator for LD_PRELOAD with C and C++ programs.

mod built;
mod calls;
mod days;
mod early;
mod fork;
mod marked;
mod names;
mod operators;
mod plugins;
mod report;
mod stress_malloc;
