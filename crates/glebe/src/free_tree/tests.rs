//! A free tree against its oracle, its bounds in levels, and its edges.

use std::cell::Cell;

use proptest::prelude::*;

use super::oracle::{run, Oracle};
use super::{Error, FreeTree};
use crate::extent::Extent;

thread_local! {
    static VISITS: Cell<u64> = const { Cell::new(0) };
}

/// Counts a node that was looked at, in tests only.
pub(super) fn count_visit() {
    VISITS.with(|visits| visits.set(visits.get() + 1));
}

/// The nodes that `call` looks at.
fn visits_of<T>(call: impl FnOnce() -> T) -> (T, u64) {
    let before = VISITS.with(Cell::get);
    let answer = call();
    (answer, VISITS.with(Cell::get) - before)
}

fn extent(start: u64, len: u64) -> Extent {
    Extent::new(start, len).unwrap()
}

/// A tree with the given extents free.
fn tree_of(span: Extent, extents: impl IntoIterator<Item = Extent>) -> FreeTree {
    let mut tree = FreeTree::new(span, 1 << 16);
    for extent in extents {
        tree.free(extent).unwrap();
    }
    tree
}

proptest! {
    #![proptest_config(ProptestConfig {
        cases: if cfg!(miri) { 3 } else { 1500 },
        failure_persistence: None,
        ..ProptestConfig::default()
    })]

    #[test]
    fn equals_the_oracle(program in prop::collection::vec(any::<u8>(), 0..1200)) {
        run(&program);
    }
}
