//! Parses bytes of a memcached client with the parser and with a plain model, and compares the
//! results.
#![no_main]

#[path = "../../crates/glebe-serve/tests/it/protocol/model.rs"]
mod model;

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| model::check(bytes));
