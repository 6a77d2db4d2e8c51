//! Files whose state somebody has filled with anything: no call dies, none goes beyond its file,
//! and each ends.

use proptest::prelude::*;

#[path = "program.rs"]
mod program;

proptest! {
    #![proptest_config(ProptestConfig {
        cases: 300,
        failure_persistence: None,
        ..ProptestConfig::default()
    })]

    #[test]
    fn calls_on_a_file_of_anything_end(program in prop::collection::vec(any::<u8>(), 0..600)) {
        program::run(&program);
    }
}

/// Every word of the state has every bit set, or the same few.
#[test]
fn words_of_one_kind_are_survived() {
    for byte in [0x00, 0x01, 0x04, 0x05, 0x0C, 0x0D, 0x0F, 0x55, 0xAA, 0xFF] {
        program::run(&vec![byte; 4096]);
    }
}
