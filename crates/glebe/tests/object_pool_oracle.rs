//! Runs random programs of calls on a pool on lent pages, with recalls in between.

mod program;

use glebe_testing::time::is_long;
use proptest::prelude::*;

proptest! {
    #![proptest_config(ProptestConfig::with_cases(if is_long() { 48 } else { 24 }))]
    #[test]
    fn a_pool_on_lent_pages_is_as_a_map(program in prop::collection::vec(any::<u8>(), 0..1500)) {
        program::run(&program);
    }
}
