//! Forks: the child has no reclaimer, no thread of it, and none of its caps.
#![allow(unsafe_code)] // Safety: children call the library, and leave by _exit.

use std::sync::Arc;

use glebe::reclaim::{Budget, Error, Policy, Reclaimer};
use glebe::units::Bytes;
use glebe::volatile::{Engine, Priority, Region};

use crate::fixture::Tree;

/// Whether `check` says yes in a child, which must end within some seconds.
fn child_says(check: impl FnOnce() -> bool) -> bool {
    // SAFETY: the child ends by _exit, and the parent waits for it.
    unsafe {
        let pid = libc::fork();
        assert!(pid >= 0);
        if pid == 0 {
            libc::alarm(20);
            libc::_exit(i32::from(!check()));
        }
        let mut status = 0;
        assert_eq!(libc::waitpid(pid, &mut status, 0), pid);
        libc::WIFEXITED(status) && libc::WEXITSTATUS(status) == 0
    }
}

#[test]
fn in_a_child_every_call_says_so_and_caps_are_gone() {
    let region = Arc::new(Region::options().engine(Engine::Tag).build(Bytes::mib(4)).unwrap());
    let budget = Budget::new(Bytes::mib(9));
    let tree = Tree::v2("forked", Bytes::mib(160), Bytes::mib(160));
    let reclaimer = Reclaimer::below(tree.root(), Policy::default()).unwrap();
    reclaimer.add(&region).unwrap();
    reclaimer.add(&budget).unwrap();
    budget.set_held(Bytes::mib(9));
    reclaimer.start().unwrap();
    while budget.allowed() == Bytes::mib(9) {
        std::thread::sleep(std::time::Duration::from_millis(1));
    }
    let marked = || {
        region.mark(Bytes::ZERO..region.len(), Priority::NORMAL).unwrap();
        region.stats().dropped_by_cap > 0
    };
    // Many: at whatever the thread is about.
    for _ in 0..50 {
        let mut inherited = Some(Reclaimer::below(tree.root(), Policy::default()).unwrap());
        inherited.as_ref().unwrap().start().unwrap();
        assert!(child_says(|| {
            let inherited = inherited.take().unwrap();
            let forked = |result: Result<(), Error>| matches!(result, Err(Error::Forked));
            let all = forked(reclaimer.poll().map(drop))
                && forked(reclaimer.add(&budget))
                && forked(reclaimer.start())
                && forked(reclaimer.wait(std::time::Duration::MAX))
                && forked(reclaimer.watched().map(drop));
            drop(inherited);
            let own = Reclaimer::below(tree.root(), Policy::default()).unwrap();
            all && reclaimer.stats().polls == 0
                && !marked()
                && budget.allowed() == Bytes::mib(9)
                && own.add(&region).is_ok()
                && own.add(&budget).is_ok()
                && own.poll().is_ok()
        }));
        drop(inherited);
    }
    assert!(marked(), "the parent's caps stay");
}
