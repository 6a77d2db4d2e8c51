//! Tests that a handle never names another object.

use super::*;
use crate::entry::word::GENERATION_BITS;

#[test]
fn a_handle_kept_over_all_generations_stays_stale() {
    let mut pool = plain().build().unwrap();
    pool.objects.memory.entries.epoch_last = 1;
    let first = pool.insert(b"first").unwrap();
    pool.remove(first).unwrap();
    let mut entry_was_left = false;
    for n in 0..3_u32 << GENERATION_BITS {
        let handle = pool.insert(b"other").unwrap();
        assert_ne!(handle, first);
        // In another epoch, the entry's word may equal the first word.
        if handle.index() == first.index() && n % 64 == 63 || n >> GENERATION_BITS >= 2 {
            assert!(matches!(pool.get(first), Err(Error::Stale)), "after {n}");
        }
        entry_was_left |= handle.index() != first.index();
        assert_eq!(*pool.get(handle).unwrap(), *b"other");
        assert!(matches!(pool.get(first), Err(Error::Stale)), "after {n}");
        assert!(matches!(pool.remove(first), Err(Error::Stale)));
        assert!(matches!(pool.replace(first, b"x"), Err(Error::Stale)));
        pool.remove(handle).unwrap();
    }
    assert!(entry_was_left, "an entry is used no more when its last epoch is over");
    pool.stats().check().unwrap();
}

#[test]
fn no_handle_is_given_twice() {
    let mut pool = plain().build().unwrap();
    pool.objects.memory.entries.epoch_last = 0;
    let mut given = std::collections::HashSet::new();
    for round in 0..40_u32 {
        let count = if round % 4 == 0 { 3000 } else { 40 };
        for _ in 0..200_000 / count / 10 {
            let handles: Vec<Handle> = (0..count).map(|_| pool.insert(b"x").unwrap()).collect();
            for handle in handles {
                assert!(given.insert(handle), "{handle:?} twice");
                pool.remove(handle).unwrap();
            }
        }
    }
}

#[test]
fn entries_that_are_used_up_leave_with_their_page() {
    let mut pool = plain().build().unwrap();
    pool.objects.memory.entries.epoch_last = 0;
    let held = |pool: &ObjectPool| pool.objects.memory.entries.held().0.get() / page() as u64;
    let mut most = 0;
    for n in 0..(page() as u32 / 8 * 3) << GENERATION_BITS {
        let handle = pool.insert(b"x").unwrap();
        pool.remove(handle).unwrap();
        if n % 4096 == 0 {
            most = most.max(held(&pool));
        }
    }
    assert!(most <= 3, "{most} pages of entries");
}
