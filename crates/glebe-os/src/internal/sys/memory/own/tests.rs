//! Tests notes that end, and notes lost by fork.
#![allow(unsafe_code)]

use super::*;

/// Nothing can be mapped at or above this address.
const BASE: usize = 1 << 60;
const MANY: usize = 64;

#[test]
fn what_is_noted_is_found_until_it_is_dropped() {
    let all = BASE..BASE + 0x10_000;
    assert_eq!(first_in(&all), None);
    let notes: Vec<Own> = (0..3 * MANY)
        .rev()
        .map(|nth| Own::note(BASE + nth * 0x20..BASE + nth * 0x20 + 0x10))
        .collect();
    assert_eq!(first_in(&all), Some(BASE));
    assert_eq!(first_in(&(BASE + 8..BASE + 9)), Some(BASE + 8));
    assert_eq!(first_in(&(BASE + 0x10..BASE + 0x20)), None);
    assert_eq!(first_in(&(BASE + 0x10..BASE + 0x21)), Some(BASE + 0x20));
    let used = SLOTS.iter().count();
    drop(notes);
    assert_eq!(first_in(&all), None);
    let again: Vec<Own> = (0..2 * MANY).map(|nth| Own::note(BASE + nth..BASE + nth + 1)).collect();
    assert!(SLOTS.iter().count() < used + MANY);
    drop(again);
}

#[test]
fn a_child_does_not_find_what_fork_did_not_pass_on() {
    let place = BASE + 0x20_0000;
    let (kept, lost) = (Own::note(place..place + 1), Own::note(place + 1..place + 2));
    lost.is_lost_by_fork(&ForkGuard::new());
    assert_eq!(first_in(&(place + 1..place + 2)), Some(place + 1));
    let check = || {
        first_in(&(place..place + 2)) == Some(place) && first_in(&(place + 1..place + 2)).is_none()
    };
    // SAFETY: the child only reads atomics.
    assert!(unsafe { glebe_testing::child::in_child(check) });
    drop((kept, lost));
}
