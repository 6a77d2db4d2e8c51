//! A sharded tree against an exact one of the same positions, and threads on one span.

use std::thread;

use proptest::prelude::*;

use super::*;

fn extent(start: u64, len: u64) -> Extent {
    Extent::new(start, len).unwrap()
}

#[derive(Clone, Debug)]
enum Step {
    Alloc {
        home: usize,
        len: u64,
        log: u32,
    },
    /// What is held at this place of the list, the whole or a part of it, or what is not held.
    Free {
        index: usize,
        skip: u64,
        len: Option<u64>,
    },
    Take {
        start: u64,
        len: u64,
    },
    /// Whatever lies there.
    FreeAny {
        start: u64,
        len: u64,
    },
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        6 => (0..PARTS, 1..30_u64, 0..4_u32)
            .prop_map(|(home, len, log)| Step::Alloc { home, len, log }),
        5 => (any::<usize>(), 0..3_u64, proptest::option::of(1..4_u64))
            .prop_map(|(index, skip, len)| Step::Free { index, skip, len }),
        1 => (0..200_u64, 1..40_u64).prop_map(|(start, len)| Step::Take { start, len }),
        1 => (0..200_u64, 1..40_u64).prop_map(|(start, len)| Step::FreeAny { start, len }),
    ]
}

/// The exact tree beside it: whose errors and free positions the sharded one must have.
struct Pair {
    tree: Sharded,
    exact: FreeTree,
    held: Vec<Extent>,
}

impl Pair {
    fn took(&mut self, taken: Option<Extent>, len: u64, align: u64) {
        let Some(taken) = taken else {
            assert_eq!(self.exact.find(len, align, None), Ok(None), "{len}, {align}");
            return;
        };
        assert_eq!((taken.len(), taken.start() % align), (len, 0));
        self.exact.take(taken).unwrap();
        self.held.push(taken);
    }

    /// The same answer by both, but for what of an extent is named in an error.
    fn freed(&mut self, given: Extent) {
        match (self.tree.free(given), self.exact.free(given)) {
            (Ok(()), Ok(())) => {}
            (
                Err(Error::AlreadyFree { given: a, overlaps }),
                Err(Error::AlreadyFree { given: b, .. }),
            ) => assert!(a == b && overlaps.overlaps(given)),
            (one, other) => assert_eq!(one, other),
        }
    }

    fn run(&mut self, step: Step) {
        match step {
            Step::Alloc { home, len, log } => {
                let taken = self.tree.alloc_on(home, len, 1 << log).unwrap();
                self.took(taken, len, 1 << log);
            }
            Step::Free { index, skip, len } => {
                if self.held.is_empty() {
                    return;
                }
                let whole = self.held[index % self.held.len()];
                let start = whole.start() + skip.min(whole.len() - 1);
                let part = extent(start, len.unwrap_or(whole.end() - start));
                self.freed(part);
            }
            Step::Take { start, len } => {
                let given = extent(start, len);
                match (self.tree.take(given), self.exact.take(given)) {
                    (Ok(()), Ok(())) => self.held.push(given),
                    (
                        Err(Error::NotFree { given: a, .. }),
                        Err(Error::NotFree { given: b, .. }),
                    ) => assert_eq!(a, b),
                    (one, other) => assert_eq!(one, other),
                }
            }
            Step::FreeAny { start, len } => self.freed(extent(start, len)),
        }
        self.tree.check_invariants();
        assert_eq!(self.tree.free_len(), self.exact.free_len());
        assert_eq!(self.tree.largest(), self.exact.largest());
    }
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    /// Spans that begin and end within parts too.
    #[test]
    fn answers_and_errors_are_those_of_an_exact_tree(
        start in 0..20_u64,
        len in 1..200_u64,
        steps in proptest::collection::vec(step(), 1..200),
    ) {
        let span = extent(start, len);
        let (tree, exact) = (Sharded::new(span, 200), FreeTree::new(span, 200));
        let mut pair = Pair { tree, exact, held: Vec::new() };
        pair.freed(span);
        steps.into_iter().for_each(|step| pair.run(step));
    }
}

#[test]
fn a_second_free_is_an_error_whoever_makes_it() {
    let tree = Sharded::new(extent(0, 256), 64);
    tree.free(extent(0, 256)).unwrap();
    let [mine, yours] = [0, 1].map(|home| tree.alloc_on(home, 2, 1).unwrap().unwrap());
    assert_eq!((mine, yours), (extent(0, 2), extent(16, 2)));
    tree.free(mine).unwrap();
    let refused = tree.free(mine).unwrap_err();
    assert!(matches!(refused, Error::AlreadyFree { given, .. } if given == mine), "{refused}");
    assert!(thread::scope(|scope| scope.spawn(|| tree.free(mine)).join().unwrap()).is_err());
    tree.free(yours).unwrap();
    assert!(tree.free(extent(yours.start() + 1, 3)).is_err());
    assert!(matches!(tree.free(extent(250, 8)), Err(Error::OutsideSpan { .. })));
    assert_eq!(tree.alloc(0, 1), Err(Error::ZeroLen));
    assert_eq!(tree.alloc(1, 3), Err(Error::BadAlign { align: 3 }));
    assert_eq!(tree.alloc(1, 1 << 9), Ok(Some(extent(0, 1))));
    assert_eq!(tree.alloc(257, 1), Ok(None));
    assert_eq!(tree.free_len(), 255);
    tree.check_invariants();
}

#[test]
fn what_lies_in_other_parts_is_had_before_a_request_fails() {
    let tree = Sharded::new(extent(0, 64), 64);
    tree.free(extent(0, 64)).unwrap();
    let held: Vec<Extent> =
        (0..16).map(|home| tree.alloc_on(home, 1, 1).unwrap().unwrap()).collect();
    assert!(held.iter().zip(0..).all(|(one, n)| *one == extent(4 * n, 1)));
    // From another part, as it is; then across a border; then nothing.
    let three = tree.alloc_on(0, 3, 1).unwrap().unwrap();
    assert_eq!((three, tree.alloc_on(0, 3, 1)), (extent(1, 3), Ok(Some(extent(5, 3)))));
    tree.free(held[3]).unwrap();
    assert_eq!(tree.largest(), 7);
    assert_eq!(tree.alloc_on(9, 8, 1), Ok(None));
    let long = tree.alloc_on(9, 6, 2).unwrap().unwrap();
    assert_eq!(long, extent(10, 6));
    tree.check_invariants();
    for one in [three, extent(5, 3), long].iter().chain(&held[..3]).chain(&held[4..]) {
        tree.free(*one).unwrap();
    }
    assert_eq!((tree.largest(), tree.free_len()), (64, 64));
}

#[test]
fn what_one_part_refuses_no_part_has_done() {
    let tree = Sharded::new(extent(0, 64), 64);
    tree.free(extent(0, 24)).unwrap();
    let refused = tree.take(extent(2, 30)).unwrap_err();
    assert_eq!(refused, Error::NotFree { given: extent(2, 30), held: extent(24, 4) });
    let refused = tree.free(extent(20, 30)).unwrap_err();
    let overlaps = extent(20, 4);
    assert_eq!(refused, Error::AlreadyFree { given: extent(20, 30), overlaps });
    tree.free(extent(40, 10)).unwrap();
    assert!(tree.free(extent(26, 20)).is_err());
    tree.check_invariants();
    assert_eq!((tree.free_len(), tree.largest()), (34, 24));
}

#[test]
fn a_part_that_is_full_leaves_it_to_others_and_the_span_has_a_limit() {
    // 64 extents a part: every second position is too many.
    let tree = Sharded::new(extent(0, 16 << 8), 12);
    let mut places = (0..1 << 7).map(|n| extent(2 * n, 1));
    let full = places.find_map(|one| tree.free(one).err());
    assert_eq!(full, Some(Error::OutOfNodes { limit: 64 }));
    assert_eq!(tree.free_len(), 64);
    // What would split an extent of a full part lies in another.
    tree.free(extent(1 << 8, 1 << 8)).unwrap();
    tree.take(extent(0, 1)).unwrap();
    tree.free(extent(200, 20)).unwrap();
    assert_eq!(tree.alloc_on(0, 4, 8), Ok(Some(extent(200, 4))));
    assert_eq!(tree.alloc_on(0, 4, 64), Ok(Some(extent(256, 4))));
    tree.check_invariants();
}

#[test]
fn wide_spans_have_parts_too() {
    for span in [extent(u64::MAX - (1 << 40), 1 << 40), extent(1 << 33, 1 << 50)] {
        let tree = Sharded::new(span, 100);
        tree.free(span).unwrap();
        assert_eq!(tree.largest(), span.len());
        let one = tree.alloc(4096, 4096).unwrap().unwrap();
        assert!(span.contains(one));
        tree.free(one).unwrap();
        assert!(tree.free(one).is_err());
        tree.check_invariants();
        assert_eq!(tree.alloc(span.len(), 1), Ok(Some(span)));
    }
}

/// Threads that take, give each other and free, with a word for each position.
#[test]
fn no_position_is_given_twice_to_threads() {
    use crate::sync::{MappedWord as Word, Ordering};
    const POSITIONS: u64 = 1 << 12;
    const ROUNDS: u64 = if cfg!(miri) { 50 } else { 20_000 };
    let tree = Sharded::new(extent(0, POSITIONS), 4096);
    tree.free(extent(0, POSITIONS)).unwrap();
    let owners: Vec<Word> = (0..POSITIONS).map(|_| Word::new(0)).collect();
    let passed = Mutex::new(Vec::new());
    let change = |at: Extent, from: u64, to: u64| {
        for position in at.start()..at.end() {
            let was = owners[position as usize].swap(to, Ordering::AcqRel);
            assert_eq!(was, from, "position {position}");
        }
    };
    thread::scope(|scope| {
        for me in 1..=4_u64 {
            let (tree, passed, change) = (&tree, &passed, &change);
            scope.spawn(move || {
                let mut held: Vec<Extent> = Vec::new();
                let mut random = me;
                for _ in 0..ROUNDS {
                    random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
                    let (dice, len) = (random >> 60, 1 + (random >> 40) % 12);
                    if dice < 7 || held.is_empty() {
                        let taken = match dice {
                            6 => tree.alloc(len * 40, 1),
                            5 => tree.alloc(len * 10, 4),
                            _ => tree.alloc(len, 1 << (dice % 3)),
                        };
                        if let Some(at) = taken.unwrap() {
                            change(at, 0, me);
                            held.push(at);
                        }
                    } else {
                        let at = held.swap_remove((random >> 20) as usize % held.len());
                        change(at, me, 5);
                        // Freed here, or by whoever comes next.
                        let mut passed = lock(passed);
                        passed.push(at);
                        let next = (random >> 10) as usize % passed.len();
                        let at = passed.swap_remove(next);
                        drop(passed);
                        change(at, 5, 0);
                        tree.free(at).unwrap();
                    }
                }
                for at in held {
                    change(at, me, 0);
                    tree.free(at).unwrap();
                }
            });
        }
    });
    lock(&passed).drain(..).for_each(|at| tree.free(at).unwrap());
    tree.check_invariants();
    assert_eq!((tree.free_len(), tree.largest()), (POSITIONS, POSITIONS));
}
