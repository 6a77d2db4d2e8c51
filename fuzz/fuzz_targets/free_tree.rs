//! Runs a byte string as calls on a free tree, and compares the tree with an oracle after each.
#![no_main]

libfuzzer_sys::fuzz_target!(|program: &[u8]| glebe::free_tree::oracle::run(program));
