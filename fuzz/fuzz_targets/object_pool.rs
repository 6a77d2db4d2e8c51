//! Runs a byte string as calls on a pool on lent pages, and compares the pool with a plain map.
#![no_main]

#[path = "../../crates/glebe/tests/object_pool_oracle/program.rs"]
mod program;

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| program::run(bytes));
