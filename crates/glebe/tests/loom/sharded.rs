//! A free tree for many threads: its own source, over the real trees, with model locks and words.
//!
//! Spans have two zones of eight positions, shards are two.

pub(crate) use glebe::free_tree::{Classes, Error, FreeTree};

#[allow(dead_code)]
#[path = "../../src/free_tree/sharded.rs"]
mod whole;

use std::sync::Arc;

use loom::thread;

use crate::explore;
use crate::extent::Extent;
use whole::Sharded;

const POSITIONS: u64 = 16;

fn extent(start: u64, len: u64) -> Extent {
    Extent::new(start, len).expect("not empty")
}

fn tree() -> Arc<Sharded> {
    let span = extent(0, POSITIONS);
    let tree = Sharded::with_zones(span, POSITIONS as usize, Classes::ALL, 3);
    tree.free(span).expect("nothing is free yet");
    Arc::new(tree)
}

fn is_whole(tree: &Sharded) {
    tree.check_invariants();
    assert_eq!((tree.free_len(), tree.largest()), (POSITIONS, POSITIONS));
}

/// Zones are taken over while others are asked for, and an extent goes back whoever frees it.
#[test]
fn two_threads_never_have_the_same_positions() {
    explore(3, || {
        let tree = tree();
        let other = Arc::clone(&tree);
        let other = thread::spawn(move || {
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
        tree.check_invariants();
        all.iter().for_each(|one| tree.free(*one).unwrap());
        is_whole(&tree);
    });
}

/// Of two who free the same positions at once, one is told of it.
#[test]
fn a_second_free_at_the_same_time_is_an_error() {
    explore(3, || {
        let tree = tree();
        let twice = tree.alloc_on(0, 1, 1).unwrap().unwrap();
        let other = Arc::clone(&tree);
        let other = thread::spawn(move || other.free(twice));
        let mine = tree.free(twice);
        let theirs = other.join().unwrap();
        assert!(mine.is_ok() != theirs.is_ok(), "{mine:?}, {theirs:?}");
        is_whole(&tree);
    });
}

/// Zones leave their shards, for a request that needs both, while an extent of one is freed.
#[test]
fn a_free_finds_the_owner_while_zones_change_hands() {
    explore(3, || {
        let tree = tree();
        let held = [0, 1].map(|home| tree.alloc_on(home, 1, 1).unwrap().unwrap());
        let other = Arc::clone(&tree);
        let other = thread::spawn(move || other.free(held[0]).unwrap());
        let long = tree.alloc_on(1, 10, 1).unwrap();
        other.join().unwrap();
        tree.check_invariants();
        long.into_iter().chain([held[1]]).for_each(|one| tree.free(one).unwrap());
        is_whole(&tree);
    });
}

/// What was not taken is freed, or is just being taken: either way in its owner's tree.
#[test]
fn a_wrong_free_finds_the_owner_too() {
    explore(3, || {
        let tree = tree();
        let other = Arc::clone(&tree);
        let other = thread::spawn(move || other.free(extent(0, 1)).is_ok());
        let one = tree.alloc_on(0, 1, 1).unwrap().unwrap();
        let was_taken = other.join().unwrap();
        tree.check_invariants();
        assert_eq!(tree.free(one).is_ok(), !was_taken);
        is_whole(&tree);
    });
}

/// A shard with two zones returns one while another thread asks for one.
#[test]
fn a_zone_that_is_returned_is_had() {
    explore(3, || {
        let tree = tree();
        let held: Vec<Extent> = (0..9).map(|_| tree.alloc_on(0, 1, 1).unwrap().unwrap()).collect();
        let other = Arc::clone(&tree);
        let other = thread::spawn(move || other.alloc_on(1, 1, 1).unwrap().unwrap());
        held.iter().for_each(|one| tree.free(*one).unwrap());
        let one = other.join().unwrap();
        tree.check_invariants();
        tree.free(one).unwrap();
        is_whole(&tree);
    });
}
