//! Tests that a forked child has no reclaimer, reclaimer's thread or memory limit of its parent.

use std::sync::Arc;
use std::time::Duration;

use glebe::internal::reclaimer_below;
use glebe::reclaim::{Budget, Policy, ReclaimError};
use glebe::units::Bytes;
use glebe::volatile::{Engine, Priority, Region};
use glebe_testing::time::wait_until;

use super::fixture::Tree;
use glebe_testing::stressed::{in_child, ChildEnd};

#[test]
fn in_a_child_every_call_says_so_and_caps_are_gone() {
    glebe_testing::alone!();
    let region = Arc::new(Region::options().engine(Engine::Tag).build(Bytes::mib(4)).unwrap());
    let budget = Budget::new(Bytes::mib(9));
    let tree = Tree::v2("forked", Bytes::mib(160), Bytes::mib(160));
    let reclaimer = reclaimer_below(tree.root(), Policy::default()).unwrap();
    reclaimer.add(&region).unwrap();
    reclaimer.add(&budget).unwrap();
    budget.set_held(Bytes::mib(9));
    reclaimer.start().unwrap();
    wait_until("the reclaimer asks", Duration::from_secs(20), || budget.allowed() < Bytes::mib(9));
    let marked = || {
        region.mark(Bytes::ZERO..region.len(), Priority::NORMAL).unwrap();
        region.stats().dropped_by_cap > 0
    };
    // Forks meet the thread at different steps.
    for _ in 0..50 {
        let mut inherited = Some(reclaimer_below(tree.root(), Policy::default()).unwrap());
        inherited.as_ref().unwrap().start().unwrap();
        let said = in_child(|| {
            let inherited = inherited.take().unwrap();
            let forked =
                |result: Result<(), ReclaimError>| matches!(result, Err(ReclaimError::Forked));
            let all = forked(reclaimer.poll().map(drop))
                && forked(reclaimer.add(&budget))
                && forked(reclaimer.start())
                && forked(reclaimer.wait(Duration::MAX))
                && forked(reclaimer.watched().map(drop));
            drop(inherited);
            let own = reclaimer_below(tree.root(), Policy::default()).unwrap();
            let ends_well = all
                && reclaimer.stats().polls == 0
                && !marked()
                && budget.allowed() == Bytes::mib(9)
                && own.add(&region).is_ok()
                && own.add(&budget).is_ok()
                && own.poll().is_ok();
            u8::from(!ends_well)
        });
        assert_eq!(said, ChildEnd::Exit(0));
        drop(inherited);
    }
    assert!(marked(), "the parent's caps stay");
}
