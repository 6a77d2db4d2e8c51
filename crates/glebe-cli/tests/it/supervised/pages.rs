//! Tests which calls get pages, and that the daemon has them again afterwards.

use std::io::Write;
use std::os::unix::process::CommandExt;

use glebe::contig::PoolLock;
use glebe_testing::time::is_long;

use super::{ran, started, Lender, Origin, LENT_MIB, NOBODY};

const ALL: [Origin; 3] = [Origin::Surplus, Origin::Pool(0), Origin::Pool(NOBODY)];

#[test]
fn maps_of_an_empty_pool_get_the_daemon_s_pages() {
    for origin in ALL {
        let Some(lender) = Lender::new(origin) else { return };
        let mut command = lender.run("", &["m4", "m3", "f8"]);
        if let Origin::Pool(user) = origin {
            command.uid(user).gid(user);
        }
        let (said, wrong, status) = ran(&mut command);
        assert_eq!((said.as_str(), status), ("m4\nm3\nf8\n", Some(7)), "{origin:?}: {wrong}");
        assert_eq!(wrong, "glebe: 16 MiB of huge pages leased in 3 calls\n", "{origin:?}");
        lender.has_all_back();
    }
}

#[test]
fn threads_that_ask_at_once_all_get_pages() {
    for origin in ALL {
        let Some(lender) = Lender::new(origin) else { return };
        let (said, wrong, status) = ran(&mut lender.run("", &["t6", "m2"]));
        assert_eq!((said.as_str(), status), ("t6\nm2\n", Some(7)), "{origin:?}: {wrong}");
        assert_eq!(wrong, "glebe: 26 MiB of huge pages leased in 5 calls\n", "{origin:?}");
        lender.has_all_back();
    }
}

#[test]
fn a_segment_gets_pages() {
    for origin in ALL {
        let Some(lender) = Lender::new(origin) else { return };
        let (said, wrong, status) = ran(&mut lender.run("verbose", &["s4"]));
        assert_eq!((said.as_str(), status), ("s4\n", Some(7)), "{origin:?}: {wrong}");
        let lines: Vec<&str> = wrong.lines().collect();
        assert!(lines[0].contains(": shmget of 4 MiB in huge pages: 4 MiB leased ("), "{wrong}");
        assert_eq!(lines[1..], ["glebe: 4 MiB of huge pages leased in 1 call"]);
        lender.has_all_back();
    }
}

#[test]
fn a_look_up_of_a_segment_leases_nothing() {
    let Some(lender) = Lender::new(Origin::Pool(NOBODY)) else { return };
    let (said, wrong, status) = ran(&mut lender.run("quota=8388608", &["k8"]));
    assert_eq!((said.as_str(), status), ("k8\n", Some(7)), "{wrong}");
    assert_eq!(wrong, "glebe: 8 MiB of huge pages leased in 1 call\n");
    lender.has_all_back();
}

/// Asserts what the program prints for `words`, and then the supervisor, in the daemon's own pool.
fn assert_told(words: &[&str], said: &str, told: &str) {
    let Some(lender) = Lender::new(Origin::Pool(NOBODY)) else { return };
    let (seen, wrong, status) = ran(&mut lender.run("", words));
    assert_eq!((seen.as_str(), status), (said, Some(7)), "{wrong}");
    assert_eq!(wrong, format!("glebe: {told}\n"));
    lender.has_all_back();
}

#[test]
fn free_pages_of_the_pool_are_used_first() {
    // Unmapped pages are free. The daemon lends two pages more for the last call.
    let told = "8 MiB of huge pages leased in 2 calls; 1 call found free pages in the pool";
    assert_told(&["u4", "u4", "m8"], "u4\nu4\nm8\n", told);
}

#[test]
fn a_call_after_a_refused_one_finds_its_pages() {
    let told = "4 MiB of huge pages leased in 1 call; 1 call found free pages in the pool";
    assert_told(&["x4", "m4"], "x4: Invalid argument\nm4\n", told);
}

#[test]
fn pages_of_refused_calls_are_free_once_their_threads_end() {
    let told = "4 MiB of huge pages leased in 1 call; 2 calls found free pages in the pool";
    assert_told(&["y4", "y4", "m4"], "y4\ny4\nm4\n", told);
}

#[test]
fn a_call_that_ended_while_it_waited_leases_nothing() {
    // After a refused call, the supervisor waits a second for its thread.
    let told = "4 MiB of huge pages leased in 1 call; 1 call found free pages in the pool";
    assert_told(&["x4", "d8", "m4"], "x4: Invalid argument\nd8\nm4\n", told);
}

#[test]
fn a_map_without_a_reservation_gets_pages_that_stay_in_the_pool() {
    let Some(lender) = Lender::new(Origin::Pool(NOBODY)) else { return };
    let (said, wrong, status) = ran(&mut lender.run("", &["n4", "m4"]));
    assert_eq!((said.as_str(), status), ("n4\nm4\n", Some(7)), "{wrong}");
    lender.has_all_back();
    drop(lender);
    let Some(lender) = Lender::new(Origin::Surplus) else { return };
    let (said, wrong, status) = ran(&mut lender.run("required", &["n4"]));
    assert_eq!((said.as_str(), status), ("", Some(125)), "{wrong}");
    assert!(wrong.contains(" surplus pages, so freed pages would leave it"), "{wrong}");
    lender.has_all_back();
}

#[test]
fn a_map_without_a_reservation_that_never_was_keeps_no_pages() {
    let Some(lender) = Lender::new(Origin::Pool(0)) else { return };
    let (mut child, mut lines) = started(&mut lender.run("", &["w", "e4", "m4"]));
    let mut line = || lines.next().unwrap().unwrap();
    assert_eq!(line(), "waits");
    // The daemon makes the file after the child's end.
    let lock = PoolLock::acquire().unwrap();
    drop(child.stdin.take());
    assert_eq!([line(), line()], ["w", "e4"]);
    drop(lock);
    assert_eq!(line(), "m4");
    let output = child.wait_with_output().unwrap();
    let wrong = String::from_utf8_lossy(&output.stderr);
    assert!(wrong.starts_with("glebe: 4 MiB of huge pages leased in 1 call"), "{wrong}");
    lender.has_all_back();
}

#[test]
fn a_call_that_waits_for_the_pools_in_vain_leaves_no_lease() {
    // Root's daemon is silent until the lock is free, for ten seconds. The other needs no lock, but
    // its lease ends when root's supervisor gets none.
    let both = [Origin::Pool(NOBODY), Origin::Surplus];
    for origin in both.into_iter().take(if is_long() { 2 } else { 1 }) {
        let Some(lender) = Lender::new(origin) else { return };
        let words = ["m2", "w", "m2", "w", "m2"];
        let (mut child, mut lines) = started(&mut lender.run("quota=4194304", &words));
        let mut line = || lines.next().unwrap().unwrap();
        assert_eq!([line(), line()], ["m2", "waits"]);
        let lock = PoolLock::acquire().unwrap();
        writeln!(child.stdin.as_mut().unwrap()).unwrap();
        assert_eq!(
            [line(), line(), line()],
            ["w", "m2: Cannot allocate memory", "waits"],
            "{origin:?}"
        );
        drop(lock);
        lender.can_lend(LENT_MIB - 2);
        drop(child.stdin.take());
        assert_eq!([line(), line()], ["w", "m2"]);
        let output = child.wait_with_output().unwrap();
        let wrong = String::from_utf8_lossy(&output.stderr);
        let told = "glebe: 4 MiB of huge pages leased in 2 calls; 1 call refused: ";
        assert!(wrong.starts_with(told), "{origin:?}: {wrong}");
        lender.has_all_back();
    }
}

#[test]
fn a_user_gets_no_surplus_pages_of_root_and_learns_why() {
    let Some(lender) = Lender::new(Origin::Surplus) else { return };
    lender.open_to_all();
    let mut command = lender.run("", &["m4"]);
    let (said, wrong, status) = ran(command.uid(NOBODY).gid(NOBODY));
    assert_eq!((said.as_str(), status), ("m4: Cannot allocate memory\n", Some(7)), "{wrong}");
    assert!(wrong.starts_with("glebe: 1 call refused: the pool has "), "{wrong}");
    assert!(wrong.contains(" surplus pages, so freed pages would leave it"), "{wrong}");
    lender.has_all_back();
}

#[test]
fn a_refused_call_goes_on_and_the_program_sees_the_kernel_s_answer() {
    let Some(lender) = Lender::new(Origin::Pool(NOBODY)) else { return };
    let (said, wrong, status) = ran(&mut lender.run("quota=8388608", &["m4", "m6", "m4"]));
    assert_eq!(said, "m4\nm6: Cannot allocate memory\nm4\n");
    let wanted = "8 MiB of huge pages leased in 2 calls; 1 call refused: beyond --quota 8 MiB";
    assert_eq!((wrong, status), (format!("glebe: {wanted}\n"), Some(7)));
    // On their way back, pages are free in the pool for a moment.
    lender.has_all_back();
    let (said, wrong, status) = ran(&mut lender.run("", &["m4096", "g1024", "m2"]));
    assert_eq!(said, "m4096: Cannot allocate memory\ng1024: Cannot allocate memory\nm2\n");
    assert!(wrong.contains("1 call refused: 4 GiB asked for") && status == Some(7), "{wrong}");
    assert!(wrong.contains("1 call refused: the daemon has pages of 2 MiB only"), "{wrong}");
    assert_eq!(wrong.lines().count(), 1);
    lender.has_all_back();
}

#[test]
fn a_program_that_requires_pages_is_killed_without_them() {
    let Some(lender) = Lender::new(Origin::Pool(NOBODY)) else { return };
    let (said, wrong, status) = ran(&mut lender.run("required,quota=4194304", &["m4", "m2", "m2"]));
    assert_eq!((said.as_str(), status), ("m4\n", Some(125)), "{wrong}");
    let lines: Vec<&str> = wrong.lines().collect();
    let counted = "4 MiB of huge pages leased in 1 call; 1 call refused: beyond --quota 4 MiB";
    let killed = "the program was killed: mmap of 2 MiB in huge pages: beyond --quota 4 MiB";
    assert_eq!(lines, [counted, killed].map(|line| format!("glebe: {line}")));
    lender.has_all_back();
}

#[test]
fn without_a_daemon_a_program_runs_unless_it_requires_pages() {
    let Some(lender) = Lender::new(Origin::Pool(NOBODY)) else { return };
    let absent = |wishes: &str| {
        ran(lender.run(wishes, &["m2", "w"]).env("GLEBE_LEASES", "/nonexistent/leases"))
    };
    let (said, wrong, status) = absent("");
    assert_eq!((said.as_str(), status), ("m2: Cannot allocate memory\nwaits\nw\n", Some(7)));
    let why = "no daemon answers at /nonexistent/leases";
    assert!(wrong.starts_with(&format!("glebe: 1 call refused: {why}")), "{wrong}");
    let (said, wrong, status) = absent("required");
    assert_eq!((said.as_str(), status), ("", Some(125)));
    assert!(wrong.starts_with(&format!("glebe: {why}")) && wrong.lines().count() == 1, "{wrong}");
}
