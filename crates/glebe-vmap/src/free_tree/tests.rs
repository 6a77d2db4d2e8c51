//! Tests of a free tree: its oracle, bounds and edge cases.

use std::cell::Cell;

use proptest::prelude::*;

use super::oracle::{run, Oracle};
use super::{Classes, FreeTree, FreeTreeError};
use glebe_os::extent::Extent;

thread_local! {
    static VISITS: Cell<u64> = const { Cell::new(0) };
}

pub(super) fn count_visit() {
    VISITS.with(|visits| visits.set(visits.get() + 1));
}

fn visits_of<T>(call: impl FnOnce() -> T) -> (T, u64) {
    let before = VISITS.with(Cell::get);
    let answer = call();
    (answer, VISITS.with(Cell::get) - before)
}

fn extent(start: u64, len: u64) -> Extent {
    Extent::new(start, len).unwrap()
}

fn tree_of(span: Extent, extents: impl IntoIterator<Item = Extent>) -> FreeTree {
    let mut tree = FreeTree::new(span, 1 << 16);
    for extent in extents {
        tree.free(extent).unwrap();
    }
    tree
}

const PROGRAM_MAX: usize = if cfg!(miri) { 150 } else { 1200 };

fn programs() -> u32 {
    match cfg!(miri) {
        true => 3,
        false if glebe_testing::time::is_long() => 2000,
        false => 500,
    }
}

proptest! {
    #![proptest_config(ProptestConfig {
        cases: programs(),
        failure_persistence: None,
        ..ProptestConfig::default()
    })]

    #[test]
    fn equals_the_oracle(program in prop::collection::vec(any::<u8>(), 0..PROGRAM_MAX)) {
        run(&program);
    }
}

struct Numbers(u64);

impl Numbers {
    fn below(&mut self, bound: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 >> 16) % bound
    }
}

/// Returns a bound on the nodes that a search visits: six paths from the root.
fn search_max(extents: usize, min: usize) -> u64 {
    6 * levels_max(extents, min)
}

/// Returns a bound on the nodes that a change visits, with splits and merges at every level.
fn change_max(extents: usize, min: usize, classes: u64) -> u64 {
    let levels = levels_max(extents, min);
    levels * (8 + levels + 6 * classes)
}

fn levels_max(extents: usize, min: usize) -> u64 {
    let (mut levels, mut extents_min) = (1, 2 * min);
    while extents_min <= extents {
        (levels, extents_min) = (levels + 1, extents_min * min);
    }
    levels
}

const MISLEADING_MAX: u64 = 16;

const MIN: usize = 12;
const DEEP_MIN: usize = 2;

#[test]
fn deep_trees_equal_the_oracle() {
    let (narrow, wide) = (extent(1 << 40, 1 << 17), extent((1 << 40) - 5, 1 << 17));
    deep_tree_equals_the_oracle(FreeTree::new(narrow, 1 << 16), narrow, MIN);
    deep_tree_equals_the_oracle(FreeTree::deep(narrow, 1 << 16, Classes::All), narrow, DEEP_MIN);
    deep_tree_equals_the_oracle(FreeTree::deep(wide, 1 << 16, Classes::All), wide, DEEP_MIN);
}

#[test]
fn answers_are_the_same_on_a_processor_without_wide_vectors() {
    let span = extent((1 << 40) - 5, 1 << 17);
    for (mut tree, min) in [
        (FreeTree::new(extent(1 << 40, 1 << 17), 1 << 16), MIN),
        (FreeTree::new(span, 1 << 16), MIN),
        (FreeTree::deep(span, 1 << 16, Classes::All), DEEP_MIN),
    ] {
        tree.use_plain_vectors();
        let span = tree.span;
        deep_tree_equals_the_oracle(tree, span, min);
    }
}

#[test]
fn answers_are_the_same_of_storage_on_huge_pages() {
    let (span, limit) = (extent(0, 1 << 23), 1 << 21);
    for mut tree in
        [FreeTree::new(span, limit), FreeTree::with_classes(span, limit, Classes::None).unwrap()]
    {
        let mut other = FreeTree::new(span, 1 << 13);
        let mut numbers = Numbers(3);
        for _ in 0..if cfg!(miri) { 100 } else { 20_000 } {
            let place = extent(numbers.below(1 << 12) * 3, 1 + numbers.below(4));
            if numbers.below(3) == 0 {
                assert_eq!(tree.take(place), other.take(place));
            } else {
                assert_eq!(tree.free(place), other.free(place));
            }
        }
        assert!(tree.extents() > if cfg!(miri) { 20 } else { 500 });
        assert!(tree.iter().eq(other.iter()));
        tree.check_invariants();
    }
}

fn deep_tree_equals_the_oracle(mut tree: FreeTree, span: Extent, min: usize) {
    let mut numbers = Numbers(0x9e37_79b9_7f4a_7c15);
    let mut oracle = Oracle::new(span, 1 << 16);
    let (holes, steps) = if cfg!(miri) { (40, 20) } else { (3000, 1500) };
    for _ in 0..holes {
        let hole = extent(span.start() + numbers.below(span.len() / 8) * 8, 1 + numbers.below(8));
        assert_eq!(tree.free(hole), oracle.free(hole));
    }
    oracle.check(&tree);
    for step in 0..steps {
        let at = span.start() + numbers.below(span.len());
        let (len, align) = (1 + numbers.below(20), 1 << numbers.below(10));
        let within = Extent::new(at, 1 + numbers.below(span.len() / 4));
        let place = Extent::new(at, 1 + numbers.below(16)).unwrap();
        let ((), visits) = visits_of(|| match numbers.below(4) {
            0 => assert_eq!(tree.alloc(len, align, within), oracle.alloc(len, align, within)),
            1 => assert_eq!(tree.alloc(len, align, None), oracle.alloc(len, align, None)),
            2 => assert_eq!(tree.take(place), oracle.take(place)),
            _ => assert_eq!(tree.free(place), oracle.free(place)),
        });
        assert!(visits <= change_max(tree.extents() + 1, min, 42), "step {step}: {visits} nodes");
        let ((), visits) = visits_of(|| {
            assert_eq!(tree.next_fit(at, len), oracle.next_fit(at, len));
        });
        assert!(visits <= search_max(tree.extents(), min), "step {step}: {visits} nodes");
        assert_eq!(tree.containing(at), oracle.containing(at));
        if is_looked_at(step) || step + 1 == steps {
            oracle.check(&tree);
        }
    }
}

/// Comparing the whole tree takes as long as a thousand steps.
fn is_looked_at(step: u32) -> bool {
    step % 64 == 0 || glebe_testing::time::is_long()
}

#[test]
fn aligned_search_never_scans() {
    let count: u64 = if cfg!(miri) { 64 } else { 8192 };
    let span = extent(0, 1 << 20);
    // All extents are long enough, but start one position past a multiple of 64.
    let misaligned = (0..count).map(|i| extent(i * 128 + 1, 64));
    let mut tree = tree_of(span, misaligned);
    let bound = search_max(tree.extents(), MIN);
    let within = Some(extent(64, count * 128 - 64));
    for window in [None, within] {
        let (found, visits) = visits_of(|| tree.find(64, 64, window));
        assert_eq!(found, Ok(None));
        assert!(visits <= bound, "{visits} nodes for nothing, {bound} allowed");
        assert!(tree.find(64, 1, window).unwrap().is_some());
    }
    let last = (count - 1) * 128;
    tree.free(extent(last, 1)).unwrap();
    for window in [None, within] {
        let (found, visits) = visits_of(|| tree.alloc(64, 64, window));
        assert_eq!(found, Ok(Extent::new(last, 64)));
        let bound = bound + change_max(tree.extents() + 1, MIN, 21);
        assert!(visits <= bound, "{visits} nodes for the last, {bound} allowed");
        tree.free(extent(last, 64)).unwrap();
    }
    for align in (0..20).map(|bit| 1 << bit) {
        for len in [1, 2, 31, 32, 33, 63, 64, 65] {
            let (_, visits) = visits_of(|| tree.find(len, align, within));
            assert!(visits <= bound, "{visits} nodes for {len} aligned to {align}");
        }
    }
}

#[test]
fn few_leaves_mislead_a_search_however_many_shrank() {
    let count: u64 = if cfg!(miri) { 24 } else { 4096 };
    let span = extent(0, 1 << 20);
    let mut tree = tree_of(span, (0..count).map(|i| extent(i * 128, 64)));
    let mut oracle = Oracle::new(span, 1 << 16);
    for i in 0..count {
        oracle.free(extent(i * 128, 64)).unwrap();
    }
    for i in 0..count {
        let taken = extent(i * 128, 1);
        assert_eq!((tree.take(taken), oracle.take(taken)), (Ok(()), Ok(())));
    }
    tree.check_invariants();
    let misled = MISLEADING_MAX * 2 * levels_max(tree.extents(), MIN);
    let bound = search_max(tree.extents(), MIN) + misled;
    for window in [None, Some(extent(64, count * 128 - 64))] {
        for (len, align) in [(64, 64), (63, 2), (62, 4), (63, 1), (56, 8)] {
            let (found, visits) = visits_of(|| tree.find(len, align, window));
            assert_eq!(found, oracle.find(len, align, window));
            assert!(visits <= bound, "{visits} nodes for {len} at {align}, {bound} allowed");
        }
    }
    for i in (0..count).rev().step_by(3) {
        let given = extent(i * 128, 1);
        assert_eq!((tree.free(given), oracle.free(given)), (Ok(()), Ok(())));
        assert_eq!(tree.find(64, 64, None), Ok(Extent::new(i * 128, 64)));
    }
    oracle.check(&tree);
}

#[test]
fn a_place_far_ahead_is_gone_to_without_a_class() {
    let count: u64 = if cfg!(miri) { 64 } else { 8192 };
    let span = extent(0, 1 << 20);
    let mut tree = FreeTree::with_classes(span, 1 << 16, Classes::None).unwrap();
    for i in 0..count {
        tree.free(extent(i * 128 + 1, 64)).unwrap();
    }
    for log in 12..20 {
        let (found, visits) = visits_of(|| tree.find(64, 1 << log, None));
        assert_eq!(found, Ok(None));
        // Each multiple of the alignment costs at most two searches.
        let places = (count * 128).div_ceil(1 << log) + 1;
        let bound = places * 2 * search_max(tree.extents(), MIN);
        assert!(visits <= bound, "{visits} nodes at {log}, {bound} allowed");
    }
    let last = count * 128 - 128;
    tree.free(extent(last, 1)).unwrap();
    let log = last.trailing_zeros();
    assert_eq!(tree.find(65, 1 << log, None), Ok(Extent::new(last, 65)));
}

#[test]
fn windows_clip_at_both_borders() {
    let mut tree = tree_of(extent(0, 1000), [extent(100, 100), extent(300, 100)]);
    let find = |tree: &FreeTree, len, align, start, end: u64| {
        tree.find(len, align, Extent::new(start, end - start)).unwrap().map(Extent::start)
    };
    assert_eq!(find(&tree, 50, 1, 150, 1000), Some(150));
    assert_eq!(find(&tree, 51, 1, 150, 1000), Some(300));
    assert_eq!(find(&tree, 51, 1, 150, 350), None);
    assert_eq!(find(&tree, 50, 1, 151, 350), Some(300));
    assert_eq!(find(&tree, 100, 1, 100, 200), Some(100));
    assert_eq!(find(&tree, 100, 1, 101, 200), None);
    assert_eq!(find(&tree, 8, 128, 100, 136), Some(128));
    assert_eq!(find(&tree, 8, 128, 100, 135), None);
    assert_eq!(find(&tree, 1, 1, 200, 300), None);
    assert_eq!(find(&tree, 1, 1, 2000, u64::MAX), None);
    assert_eq!(tree.alloc(10, 1, Some(extent(145, 10))), Ok(Extent::new(145, 10)));
    assert!(tree.iter().eq([extent(100, 45), extent(155, 45), extent(300, 100)]));
}

#[test]
fn every_alignment_at_both_ends_of_the_number_line() {
    let whole = extent(0, u64::MAX);
    let tree = tree_of(whole, [whole]);
    let upper = extent(1, u64::MAX - 1);
    for align in (0..64).map(|bit| 1_u64 << bit) {
        assert_eq!(tree.find(1, align, None), Ok(Extent::new(0, 1)));
        assert_eq!(tree.find(5, align, Some(upper)), Ok(Extent::new(align, 5)));
        assert_eq!(tree.find(u64::MAX - align, align, Some(upper)), Ok(Extent::new(align, !align)));
        assert_eq!(tree.find(u64::MAX - align + 1, align, Some(upper)), Ok(None));
    }
    let top = extent(u64::MAX - 10, 10);
    let tree = tree_of(top, [top]);
    assert_eq!(tree.find(10, 1, None), Ok(Some(top)));
    assert_eq!(tree.find(1, 8, None), Ok(Extent::new(u64::MAX - 7, 1)));
    assert_eq!(tree.find(8, 8, None), Ok(None));
    assert_eq!(tree.find(1, 16, None), Ok(None));
    assert_eq!(tree.next_fit(u64::MAX - 1, 10), Some(top));
    assert_eq!(tree.next_fit(u64::MAX, 0), None);
    assert_eq!(tree.containing(u64::MAX), None);
    let small = extent(0, 1);
    let mut tree = tree_of(small, [small]);
    assert_eq!(tree.alloc(1, 1 << 63, None), Ok(Some(small)));
    let tree = tree_of(extent(0, 8), [extent(1, 7)]);
    assert_eq!(tree.find(1, 8, None), Ok(None));
    assert_eq!(tree.find(1, 1 << 63, None), Ok(None));
}

#[test]
fn full_storage_refuses_and_changes_nothing() {
    let (span, limit) = (extent(0, 100), 4);
    let mut tree = FreeTree::new(span, limit);
    let capacity = tree.capacity();
    for start in [0, 20, 40, 60] {
        tree.free(extent(start, 10)).unwrap();
    }
    let before: Vec<_> = tree.iter().collect();
    let full = FreeTreeError::OutOfNodes { limit };
    assert_eq!(tree.extents(), limit);
    assert_eq!(tree.free(extent(80, 10)), Err(full));
    assert_eq!(tree.take(extent(45, 1)), Err(full));
    assert_eq!(tree.alloc(2, 1, Some(extent(1, 50))), Err(full));
    assert_eq!(tree.find(2, 1, Some(extent(1, 50))), Ok(Extent::new(1, 2)));
    assert!(tree.iter().eq(before));
    assert_eq!(tree.free_len(), 40);
    tree.check_invariants();
    tree.free(extent(70, 10)).unwrap();
    tree.free(extent(10, 10)).unwrap();
    tree.take(extent(45, 1)).unwrap();
    assert_eq!(tree.alloc(3, 1, None), Ok(Extent::new(0, 3)));
    assert!(tree.iter().eq([extent(3, 27), extent(40, 5), extent(46, 4), extent(60, 20)]));
    tree.check_invariants();
    assert_eq!(tree.capacity(), capacity);

    let mut tree = FreeTree::new(span, 0);
    assert_eq!(tree.free(span), Err(FreeTreeError::OutOfNodes { limit: 0 }));
    tree.check_invariants();
}

#[test]
fn holds_as_many_as_can_be() {
    let span = extent(3, 7);
    let mut tree = FreeTree::new(span, usize::MAX);
    for start in [3, 5, 7, 9] {
        tree.free(extent(start, 1)).unwrap();
    }
    assert_eq!(tree.extents(), 4);
    for start in [4, 6, 8] {
        tree.free(extent(start, 1)).unwrap();
        tree.check_invariants();
    }
    assert!(tree.iter().eq([span]));
}

#[test]
fn errors_say_what_and_where() {
    let span = extent(0x10, 0x90);
    let mut tree = tree_of(span, [extent(0x20, 0x10), extent(0x40, 0x10)]);
    let held = |tree: &mut FreeTree, start, len| match tree.take(extent(start, len)) {
        Err(FreeTreeError::NotFree { held, .. }) => (held.start(), held.len()),
        other => panic!("{other:?}"),
    };
    assert_eq!(held(&mut tree, 0x10, 0x8), (0x10, 0x8));
    assert_eq!(held(&mut tree, 0x18, 0x10), (0x18, 0x8));
    assert_eq!(held(&mut tree, 0x28, 0x10), (0x30, 0x8));
    assert_eq!(held(&mut tree, 0x28, 0x40), (0x30, 0x10));
    assert_eq!(held(&mut tree, 0x50, 0x10), (0x50, 0x10));
    assert_eq!(tree.find(0, 3, None), Err(FreeTreeError::ZeroLen));
    assert_eq!(tree.alloc(1, 0, None), Err(FreeTreeError::BadAlign { align: 0 }));
    assert_eq!(tree.alloc(1, 12, None), Err(FreeTreeError::BadAlign { align: 12 }));
    let given = extent(0x9f, 2);
    let outside = Err(FreeTreeError::OutsideSpan { given, span });
    assert_eq!(tree.free(given), outside);
    assert_eq!(tree.take(given), outside);

    let texts = [
        (tree.free(extent(0x28, 0x20)), "0x28..0x48 cannot be freed: 0x20..0x30 is free already"),
        (tree.free(extent(0x38, 0x10)), "0x38..0x48 cannot be freed: 0x40..0x50 is free already"),
        (tree.free(extent(0x42, 0x2)), "0x42..0x44 cannot be freed: 0x40..0x50 is free already"),
        (tree.take(extent(0x38, 0x10)), "0x38..0x48 cannot be taken: 0x38..0x40 is not free"),
        (tree.take(given), "0x9f..0xa1 is not wholly in the span 0x10..0xa0"),
    ];
    for (answer, text) in texts {
        assert_eq!(answer.unwrap_err().to_string(), text);
    }
    assert!(tree.iter().eq([extent(0x20, 0x10), extent(0x40, 0x10)]));
    tree.check_invariants();
}

#[test]
fn a_call_takes_few_nodes_however_the_tree_grew() {
    let count: u64 = if cfg!(miri) { 64 } else { 1 << 13 };
    let span = extent(0, count * 2);
    for (descending, deep) in [(false, false), (true, false), (false, true), (true, true)] {
        let (mut tree, min) = match deep {
            false => (FreeTree::new(span, 1 << 16), MIN),
            true => (FreeTree::deep(span, 1 << 16, Classes::All), DEEP_MIN),
        };
        let classes = u64::from(span.end().ilog2()) + 1;
        for i in 0..count {
            let at = if descending { count - 1 - i } else { i };
            let (answer, visits) = visits_of(|| tree.free(extent(at * 2, 1)));
            answer.unwrap();
            let bound = change_max(tree.extents(), min, classes);
            assert!(visits <= bound, "{visits} nodes at {i}, {bound} allowed");
        }
        tree.check_invariants();
        for i in 1..count {
            let (answer, visits) = visits_of(|| tree.free(extent(i * 2 - 1, 1)));
            answer.unwrap();
            let bound = change_max(tree.extents() + 1, min, classes);
            assert!(visits <= bound, "{visits} nodes at {i}, {bound} allowed");
        }
        tree.check_invariants();
        assert_eq!((tree.extents(), tree.largest()), (1, count * 2 - 1));
    }
}

#[test]
fn a_key_stays_below_its_leaf_when_the_extent_before_is_cut() {
    // A leaf's last extent can grow past the next leaf's key. If a cut then moves the extent's
    // start past that key, the tree must raise the key.
    let span = extent(0, 1 << 12);
    for classes in [Classes::All, Classes::None] {
        let mut tree = FreeTree::deep(span, 1 << 11, classes);
        let mut oracle = Oracle::new(span, 1 << 11);
        let mut numbers = Numbers(7);
        for step in 0..if cfg!(miri) { 60 } else { 6000 } {
            let place = extent(numbers.below(span.len() / 4) * 4, 1 + numbers.below(12));
            match step % 3 {
                0 => assert_eq!(tree.take(place), oracle.take(place)),
                _ => assert_eq!(tree.free(place), oracle.free(place)),
            }
            if is_looked_at(step) {
                oracle.check(&tree);
            }
        }
        oracle.check(&tree);
    }
}

#[test]
fn spans_at_the_border_of_32_bits() {
    let pages = 1_u64 << 32;
    for start in [0, pages, pages - 1, 1 << 40] {
        for len in [pages - 1, pages, pages + 1] {
            let span = extent(start, len);
            let mut tree = tree_of(span, [span]);
            assert_eq!(tree.largest(), len);
            let last = extent(span.end() - 1, 1);
            assert_eq!(tree.find(len + 1, 1, None), Ok(None));
            assert_eq!(tree.find(1, 1, Some(last)), Ok(Some(last)));
            let aligned = start.next_multiple_of(1 << 33);
            let expected = Extent::new(aligned, 1).filter(|&place| span.contains(place));
            assert_eq!(tree.find(1, 1 << 33, None), Ok(expected), "{span}");
            tree.take(last).unwrap();
            assert_eq!(tree.containing(last.start()), None);
            assert_eq!(tree.next_fit(span.end() - 1, 1), None);
            assert_eq!(tree.alloc(len - 1, 1, None), Ok(Extent::new(start, len - 1)));
            assert_eq!(tree.extents(), 0);
            tree.check_invariants();
        }
    }
}
