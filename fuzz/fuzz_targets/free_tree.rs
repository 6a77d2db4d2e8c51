//! A byte string as a program of calls on a free tree, compared with an oracle after every call.
#![no_main]

libfuzzer_sys::fuzz_target!(|program: &[u8]| glebe::free_tree::oracle::run(program));
