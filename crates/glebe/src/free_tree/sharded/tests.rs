//! A sharded tree against an exact one of the same positions, and threads on one span.

use std::thread;

use proptest::prelude::*;

use super::*;

fn extent(start: u64, len: u64) -> Extent {
    Extent::new(start, len).unwrap()
}

/// Zones of 16 positions.
fn small(span: Extent, max_extents: usize) -> Sharded {
    Sharded::with_zones(span, max_extents, Classes::ALL, 4)
}

#[derive(Clone, Debug)]
enum Step {
    Alloc {
        home: usize,
        len: u64,
        log: u32,
    },
    Within {
        len: u64,
        log: u32,
        start: u64,
        window: u64,
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
    Trim,
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        6 => (0..SHARDS, 1..7_u64, 0..3_u32)
            .prop_map(|(home, len, log)| Step::Alloc { home, len, log }),
        1 => (1..30_u64, 0..5_u32, 0..200_u64, 1..60_u64)
            .prop_map(|(len, log, start, window)| Step::Within { len, log, start, window }),
        5 => (any::<usize>(), 0..3_u64, proptest::option::of(1..4_u64))
            .prop_map(|(index, skip, len)| Step::Free { index, skip, len }),
        1 => (0..200_u64, 1..40_u64).prop_map(|(start, len)| Step::Take { start, len }),
        1 => (0..200_u64, 1..40_u64).prop_map(|(start, len)| Step::FreeAny { start, len }),
        1 => Just(Step::Trim),
    ]
}

/// The exact tree beside it: whose errors and free positions the sharded one must have.
struct Pair {
    tree: Sharded,
    exact: FreeTree,
    held: Vec<Extent>,
}

impl Pair {
    fn took(&mut self, taken: Option<Extent>, len: u64, align: u64, within: Option<Extent>) {
        let Some(taken) = taken else {
            assert_eq!(self.exact.find(len, align, within), Ok(None), "{len}, {align}");
            return;
        };
        assert_eq!((taken.len(), taken.start() % align), (len, 0));
        assert!(within.is_none_or(|within| within.contains(taken)));
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
                self.took(taken, len, 1 << log, None);
            }
            Step::Within { len, log, start, window } => {
                let within = extent(start, window);
                let taken = self.tree.alloc_within(len, 1 << log, within).unwrap();
                self.took(taken, len, 1 << log, Some(within));
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
            Step::Trim => {
                self.tree.trim().unwrap();
                assert_eq!(
                    (self.tree.cached_len(), self.tree.largest()),
                    (0, self.exact.largest())
                );
            }
        }
        self.tree.check_invariants();
        assert_eq!(self.tree.free_len(), self.exact.free_len());
    }
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    /// Spans that begin and end within zones too.
    #[test]
    fn answers_and_errors_are_those_of_an_exact_tree(
        start in 0..20_u64,
        len in 1..200_u64,
        steps in proptest::collection::vec(step(), 1..200),
    ) {
        let span = extent(start, len);
        let mut pair =
            Pair { tree: small(span, 200), exact: FreeTree::new(span, 200), held: Vec::new() };
        pair.freed(span);
        steps.into_iter().for_each(|step| pair.run(step));
    }
}

#[test]
fn a_second_free_is_an_error_whoever_makes_it() {
    let tree = small(extent(0, 256), 64);
    tree.free(extent(0, 256)).unwrap();
    let [mine, yours] = [0, 1].map(|home| tree.alloc_on(home, 2, 1).unwrap().unwrap());
    assert_ne!(mine.start() >> 4, yours.start() >> 4);
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
fn what_other_shards_hold_is_had_before_a_request_fails() {
    let tree = small(extent(0, 64), 64);
    tree.free(extent(0, 64)).unwrap();
    let held: Vec<Extent> =
        (0..4).map(|home| tree.alloc_on(home, 1, 1).unwrap().unwrap()).collect();
    assert_eq!((tree.cached_len(), tree.free_len()), (60, 60));
    // From another shard, as it is; then what lies in two shards; then nothing.
    let one = tree.alloc_on(9, 2, 1).unwrap().unwrap();
    assert_eq!(tree.cached_len(), 58);
    tree.free(one).unwrap();
    tree.free(held[1]).unwrap();
    let long = tree.alloc_on(9, 31, 1).unwrap().unwrap();
    assert_eq!(long, extent(1, 31));
    assert_eq!(tree.alloc_on(0, 16, 1), Ok(None));
    tree.check_invariants();
    tree.free(long).unwrap();
    [0, 2, 3].into_iter().for_each(|n| tree.free(held[n]).unwrap());
    assert_eq!((tree.largest(), tree.cached_len()), (64, 0));
}

#[test]
fn a_shard_keeps_one_zone_that_is_free_and_returns_others() {
    let tree = small(extent(0, 16 * 16), 256);
    tree.free(extent(0, 16 * 16)).unwrap();
    let held: Vec<Extent> = (0..128).map(|_| tree.alloc_on(3, 1, 1).unwrap().unwrap()).collect();
    assert_eq!((tree.cached_len(), tree.free_len()), (0, 128));
    held.iter().for_each(|one| tree.free(*one).unwrap());
    assert!(tree.cached_len() <= 16 * 4, "{}", tree.cached_len());
    tree.check_invariants();
}

#[test]
fn a_shard_that_is_full_gives_its_zones_back_and_the_span_has_a_limit() {
    // 64 extents a shard, and 12 for all but its borders: every second position is too many.
    let tree = Sharded::with_zones(extent(0, 1024), 12, Classes::ALL, 8);
    tree.free(extent(0, 1024)).unwrap();
    let held: Vec<Extent> = (0..256).map(|_| tree.alloc_on(0, 1, 1).unwrap().unwrap()).collect();
    let mut freed = 0;
    let full = held.iter().step_by(2).find_map(|one| {
        tree.check_invariants();
        freed += 1;
        tree.free(*one).err()
    });
    assert!(matches!(full, Some(Error::OutOfNodes { .. })), "{full:?}");
    assert_eq!(tree.free_len(), 768 + freed - 1);
    // Nothing was lost: what touches a free extent can be freed, and then the rest.
    for one in held.iter().skip(1).step_by(2).chain(&held) {
        let _ = tree.free(*one);
    }
    tree.check_invariants();
    assert_eq!(tree.free_len(), 1024);
    assert_eq!(tree.largest(), 1024);
}

#[test]
fn wide_spans_have_zones_too() {
    for span in [extent(u64::MAX - (1 << 40), 1 << 40), extent(1 << 33, 1 << 50)] {
        let tree = Sharded::new(span, 100);
        tree.free(span).unwrap();
        let one = tree.alloc(4096, 4096).unwrap().unwrap();
        assert!(span.contains(one) && tree.cached_len() > 0);
        tree.free(one).unwrap();
        assert!(tree.free(one).is_err());
        tree.check_invariants();
        assert_eq!(tree.largest(), span.len());
    }
}

/// Threads that take, give each other and free, with a word for each position.
#[test]
fn no_position_is_given_twice_to_threads() {
    use crate::sync::MappedWord as Word;
    const POSITIONS: u64 = 1 << 12;
    const ROUNDS: u64 = if cfg!(miri) { 50 } else { 20_000 };
    let tree = Sharded::with_zones(extent(0, POSITIONS), 4096, Classes::ALL, 6);
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
                for round in 0..ROUNDS {
                    random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
                    let (dice, len) = (random >> 60, 1 + (random >> 40) % 12);
                    if dice < 7 || held.is_empty() {
                        let within = extent(random % (POSITIONS - 64), 64);
                        let taken = match dice {
                            6 => tree.alloc_within(len, 1, within),
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
                    if round % 512 == me {
                        tree.trim().unwrap();
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
