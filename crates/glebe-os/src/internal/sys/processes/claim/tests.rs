//! Tests a claim in a process and its forked child.
#![allow(unsafe_code)]

use super::*;
use glebe_testing::child::in_child;

#[test]
fn one_holder_has_it_and_a_child_finds_it_free() {
    let (claim, one, other) = (Claim::default(), Holder::new(), Holder::new());
    assert!(!claim.is_held() && claim.take(one) && claim.take(one) && !claim.take(other));
    claim.release(other);
    assert!(claim.is_held());
    let is_free = || !claim.is_held() && claim.take(Holder::new()) && claim.is_held();
    // SAFETY: the child only loads and stores words.
    assert!(unsafe { in_child(is_free) });
    assert!(claim.is_held());
    claim.release(one);
    assert!(!claim.is_held() && claim.take(other));
}
