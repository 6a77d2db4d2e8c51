//! A free tree for many threads, over the real trees.
//!
//! Spans have two parts of eight positions.

use std::sync::Arc;

use loom::thread::{Builder, JoinHandle};

use crate::extent::Extent;
use crate::free_tree::Sharded;

const POSITIONS: u64 = 16;
/// Built without optimization, the trees need more stack than the checker gives a thread.
const STACK_WORDS: usize = 1 << 15;

fn spawn<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> JoinHandle<T> {
    Builder::new().stack_size(STACK_WORDS).spawn(work).expect("the checker has room for a thread")
}

fn explore(run: impl Fn() + Copy + Sync + Send + 'static) {
    super::explore(3, move || spawn(run).join().expect("the model holds"));
}

fn extent(start: u64, len: u64) -> Extent {
    Extent::new(start, len).expect("not empty")
}

fn between(start: u64, end: u64) -> Extent {
    extent(start, end - start)
}

fn tree() -> Arc<Sharded> {
    let span = extent(0, POSITIONS);
    let tree = Sharded::new(span, POSITIONS as usize);
    tree.free(span).expect("nothing is free yet");
    Arc::new(tree)
}

fn is_whole(tree: &Sharded) {
    assert_eq!((tree.free_len(), tree.largest()), (POSITIONS, POSITIONS));
}

/// Parts are asked by others too, and an extent goes back whoever frees it.
#[test]
fn two_threads_never_have_the_same_positions() {
    explore(|| {
        let tree = tree();
        let other = Arc::clone(&tree);
        let other = spawn(move || {
            let mine = other.alloc_on(1, 1, 1).unwrap().unwrap();
            let long = other.alloc_on(1, 3, 1).unwrap();
            (mine, long)
        });
        let mine = tree.alloc_on(0, 1, 1).unwrap().unwrap();
        let again = tree.alloc_on(0, 1, 1).unwrap().unwrap();
        let (theirs, long) = other.join().unwrap();
        let all: Vec<Extent> = [mine, again, theirs].into_iter().chain(long).collect();
        for (n, one) in all.iter().enumerate() {
            assert!(all[..n].iter().all(|before| !before.overlaps(*one)), "{all:?}");
        }
        all.iter().for_each(|one| tree.free(*one).unwrap());
        is_whole(&tree);
    });
}

/// Of two who free the same positions at once, one is told of it.
#[test]
fn a_second_free_at_the_same_time_is_an_error() {
    explore(|| {
        let tree = tree();
        let twice = tree.alloc_on(0, 1, 1).unwrap().unwrap();
        let other = Arc::clone(&tree);
        let other = spawn(move || other.free(twice));
        let mine = tree.free(twice);
        let theirs = other.join().unwrap();
        assert!(mine.is_ok() != theirs.is_ok(), "{mine:?}, {theirs:?}");
        is_whole(&tree);
    });
}

/// A request that needs both parts, while an extent of one is freed.
#[test]
fn what_lies_across_the_border_is_had_while_extents_are_freed() {
    explore(|| {
        let tree = tree();
        let held = [0, 1].map(|home| tree.alloc_on(home, 1, 1).unwrap().unwrap());
        let other = Arc::clone(&tree);
        let other = spawn(move || other.free(held[1]).unwrap());
        let long = tree.alloc_on(1, 10, 1).unwrap();
        other.join().unwrap();
        long.into_iter().chain([held[0]]).for_each(|one| tree.free(one).unwrap());
        is_whole(&tree);
    });
}

/// Of two who take what the other takes a part of, one has all of it and the other nothing.
#[test]
fn what_lies_across_the_border_is_taken_whole_or_not() {
    explore(|| {
        let tree = tree();
        let other = Arc::clone(&tree);
        let other = spawn(move || other.take(extent(9, 1)).is_ok());
        let mine = tree.take(extent(6, 4)).is_ok();
        assert!(mine != other.join().unwrap());
        assert_eq!(tree.free_len(), POSITIONS - if mine { 4 } else { 1 });
        tree.free(if mine { extent(6, 4) } else { extent(9, 1) }).unwrap();
        is_whole(&tree);
    });
}

/// What was not taken is freed, or is just being taken.
#[test]
fn a_wrong_free_is_an_error_or_of_the_taker() {
    explore(|| {
        let tree = tree();
        let other = Arc::clone(&tree);
        let other = spawn(move || other.free(extent(0, 1)).is_ok());
        let one = tree.alloc_on(0, 1, 1).unwrap().unwrap();
        let was_taken = other.join().unwrap();
        assert_eq!(tree.free(one).is_ok(), !was_taken);
        is_whole(&tree);
    });
}
