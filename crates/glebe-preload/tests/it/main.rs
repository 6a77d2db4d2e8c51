//! The tests of the allocator for LD_PRELOAD: programs of C and C++ that run with it in front.

mod built;
mod calls;
#[path = "../../../glebe/tests/cgroup/mod.rs"]
mod cgroup;
mod days;
mod early;
mod fork;
mod names;
mod operators;
mod plugins;
mod report;
mod stress_malloc;
