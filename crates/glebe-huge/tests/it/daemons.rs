//! Tests what a program sees of a daemon that does not answer, or is started anew.

use std::io::{BufRead, BufReader, Write};
use std::process::{Child, Stdio};

use glebed::Settings;

use crate::running::Running;

const BRICKS: u64 = 24;

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
    let Some(mut running) = Running::new("traps.c", BRICKS, Settings::default()) else { return };
    let case = start(&running, "restarted");
    told(case, "mapped\n", || running.start(Settings::default()));
    running.wait_until_all_is_back();
}

#[test]
fn a_fork_waits_only_once_for_a_silent_daemon() {
    // The case stops the daemon, which is in this process.
    glebe_testing::alone!();
    let Some(running) = Running::new("traps.c", BRICKS, Settings::default()) else { return };
    running.holds("silent_fork", "revocable");
}

#[test]
fn memory_that_is_granted_too_late_goes_back_before_the_programs_end() {
    glebe_testing::alone!();
    let Some(running) = Running::new("traps.c", BRICKS, Settings::default()) else { return };
    let case = start(&running, "silent_map");
    told(case, "refused\n", || running.wait_until_all_is_back());
}
