//! Tests that a leased mapping does what the kernel's own would do.

use glebed::Settings;

use crate::running::Running;

const BRICKS: u64 = 48;

fn running() -> Option<Running> {
    Running::new("traps.c", BRICKS, Settings::default())
}

macro_rules! cases {
    ($($name:ident,)*) => {$(
        #[test]
        fn $name() {
            let Some(running) = running() else { return };
            let said = running.holds(stringify!($name), "verbose");
            assert!(said.contains(": leased "), "{said}");
        }
    )*};
}

cases! {
    zeroed, private_fork, shared_fork, own_no_fork, vforked, dontneed, fixed, executable, parts,
    moved, protect, signals, threads, smaps, descriptors, few_files, executed, sizes, local_failure,
    crowded_fork,
}

#[test]
fn what_is_wrong_is_refused_and_ends_no_program_that_requires_pages() {
    let Some(running) = running() else { return };
    running.holds("wrong", "required,show-pages");
}

#[test]
fn children_do_not_get_what_is_left_out() {
    let Some(running) = running() else { return };
    running.holds("no_fork", "leave-out");
}

#[test]
fn another_user_gets_leases_of_roots_daemon() {
    let Some(running) = running() else { return };
    for case in ["zeroed", "private_fork", "shared_fork", "fixed", "protect", "descriptors"] {
        let Some(said) = running.holds_as_nobody(case) else {
            return println!("skipped: only root can become another user");
        };
        assert!(said.contains(": leased "), "{case}: {said}");
    }
}
