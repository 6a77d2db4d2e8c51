//! Tests what a program sees of a daemon that does not answer, or is started anew.

use std::io::{BufRead, BufReader, Write};
use std::process::{Child, Stdio};

use glebed::Settings;

use crate::offering::{leased, settings, Offering, BRICKS};
use crate::running::Running;

/// Bricks for programs that offer nothing.
const MORE: u64 = 24;

/// Runs a case until it says a line, then `meanwhile`, then lets it go on to its end.
fn told(mut case: Child, line: &str, meanwhile: impl FnOnce()) {
    let mut said = BufReader::new(case.stdout.take().unwrap());
    let mut first = String::new();
    said.read_line(&mut first).unwrap();
    assert_eq!(first, line);
    meanwhile();
    case.stdin.take().unwrap().write_all(b"\n").unwrap();
    let rest = std::io::read_to_string(said).unwrap();
    assert!(case.wait().unwrap().success(), "{rest}");
}

fn start(running: &Running, case: &str) -> Child {
    let mut command = running.command(case, "");
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap()
}

#[test]
fn the_descriptor_of_an_ended_connection_is_the_programs_again() {
    let Some(mut running) = Running::new("traps.c", MORE, Settings::default()) else { return };
    let case = start(&running, "restarted");
    told(case, "mapped\n", || running.start(Settings::default()));
    running.wait_until_all_is_back();
}

#[test]
fn memory_that_is_granted_too_late_goes_back_before_the_programs_end() {
    glebe_testing::alone!();
    let Some(running) = Running::new("traps.c", MORE, Settings::default()) else { return };
    let case = start(&running, "silent_map");
    told(case, "refused\n", || running.wait_until_all_is_back());
}

#[test]
fn a_fork_beside_a_silent_daemon_waits_once_and_touches_nothing_that_was_taken() {
    // The case stops the daemon, which is in this process.
    glebe_testing::alone!();
    let Some(running) = Running::new("traps.c", BRICKS, settings()) else { return };
    let offering = Offering::of(&running, "silent_taken");
    let lease = leased(&running, 12).expect("some of what was offered");
    assert_eq!(offering.keep(), "lost: 2\n");
    drop(lease);
    running.wait_until_all_is_back();
}

#[test]
fn memory_offered_to_a_silent_daemon_may_be_taken_later() {
    glebe_testing::alone!();
    let Some(running) = Running::new("traps.c", BRICKS, settings()) else { return };
    let offering = Offering::of(&running, "silent_offer");
    let lease = leased(&running, 12).expect("what was offered");
    assert_eq!(offering.keep(), "kept: 1\n");
    drop(lease);
    running.wait_until_all_is_back();
}

#[test]
fn a_program_learns_of_what_was_taken_also_after_the_daemons_end() {
    let told = "kept: 1\n";
    let cases = [("offered", told), ("told_late", told), ("told_partly", told)];
    for (case, says) in cases.into_iter().chain([("offered_fork", "forked\n")]) {
        // Memory that is leased when a daemon ends leaves the reserve.
        let Some(mut running) = Running::new("traps.c", BRICKS, settings()) else { return };
        let offering = Offering::of(&running, case);
        let lease = leased(&running, 12).expect("what was offered");
        running.start(settings());
        assert_eq!(offering.keep(), says, "{case}");
        drop(lease);
        running.wait_until_all_is_back();
    }
}

#[test]
fn a_loss_that_the_program_zeroed_is_not_reported() {
    let Some(mut running) = Running::new("traps.c", BRICKS, settings()) else { return };
    for is_started_anew in [false, true] {
        let offering = Offering::of(&running, "told_dontneed");
        drop(leased(&running, 12).expect("what was offered"));
        running.wait_until_all_is_back();
        if is_started_anew {
            running.start(settings());
        }
        assert_eq!(offering.keep(), "kept: 1\n");
        running.wait_until_all_is_back();
    }
}
