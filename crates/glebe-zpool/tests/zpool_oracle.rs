//! Runs random byte strings as calls on a pool and a map, like the fuzz target.

mod program;

use glebe_testing::time::is_long;
use proptest::prelude::*;

proptest! {
    #![proptest_config(ProptestConfig::with_cases(if is_long() { 64 } else { 32 }))]
    #[test]
    fn a_pool_is_as_a_map(program in prop::collection::vec(any::<u8>(), 0..2000)) {
        program::run(&program);
    }
}
