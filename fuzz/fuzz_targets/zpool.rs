//! Runs a byte string as calls on a pool of objects, and compares the pool with a plain map.
#![no_main]

#[path = "../../crates/glebe-zpool/tests/zpool_oracle/program.rs"]
mod program;

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| program::run(bytes));
