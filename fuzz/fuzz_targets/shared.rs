//! Uses a byte string as the state of a shared file of volatile memory, and as calls on it.
#![no_main]

#[path = "../../crates/glebe-volatile/tests/shared/program.rs"]
mod program;

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| program::run(bytes));
