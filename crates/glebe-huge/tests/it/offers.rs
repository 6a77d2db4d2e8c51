//! Tests that the daemon takes only memory that a program offers, and that the program learns it.

use std::io::{BufRead, BufReader, Write};
use std::process::{Child, ChildStdout, Stdio};
use std::time::Duration;

use glebe::units::Bytes;
use glebe_lease::{Client, Lease};
use glebed::Settings;

use crate::running::{Running, BRICK};

const BRICKS: u64 = 16;

struct Offering {
    child: Child,
    said: BufReader<ChildStdout>,
}

impl Offering {
    fn start(running: &Running) -> Self {
        Self::of(running, "offered")
    }

    fn of(running: &Running, case: &str) -> Self {
        let mut command = running.command(case, "revocable");
        let piped = command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::null());
        let mut child = piped.spawn().unwrap();
        let said = BufReader::new(child.stdout.take().unwrap());
        let mut offering = Self { child, said };
        assert_eq!(offering.line(), "offered\n");
        offering
    }

    fn line(&mut self) -> String {
        let mut line = String::new();
        self.said.read_line(&mut line).unwrap();
        line
    }

    /// Lets the program keep its memory. Returns what it says.
    fn keep(mut self) -> String {
        self.child.stdin.take().unwrap().write_all(b"\n").unwrap();
        let line = self.line();
        assert!(self.child.wait().unwrap().success(), "{line}");
        line
    }
}

fn settings() -> Settings {
    Settings { notice: Duration::from_millis(20), ..Settings::default() }
}

fn leased(running: &Running, bricks: u64) -> Option<Lease> {
    let client: Client = running.client().patience(Duration::from_secs(5));
    client.lease(Bytes::new(bricks * BRICK)).ok()
}

#[test]
fn offered_memory_that_nobody_needs_is_kept() {
    let Some(running) = Running::new("traps.c", BRICKS, settings()) else { return };
    assert_eq!(Offering::start(&running).keep(), "kept: 0\n");
    running.wait_until_all_is_back();
}

#[test]
fn offered_memory_goes_to_others_and_comes_back_zeroed() {
    let Some(running) = Running::new("traps.c", BRICKS, settings()) else { return };
    let offering = Offering::start(&running);
    let lease = leased(&running, 12).expect("what was offered");
    // Ordinary memory takes the place, since there are no huge pages.
    assert_eq!(offering.keep(), "kept: 1\n");
    drop(lease);
    running.wait_until_all_is_back();
    let offering = Offering::start(&running);
    drop(leased(&running, 12).expect("what was offered"));
    running.wait_until_all_is_back_but(BRICK);
    assert_eq!(offering.keep(), "kept: 1\n");
    running.wait_until_all_is_back();
}

#[test]
fn memory_that_is_kept_again_or_was_never_offered_is_not_taken() {
    let Some(running) = Running::new("traps.c", BRICKS, settings()) else { return };
    let mut command = running.command("held", "revocable");
    let mut held = command.stdout(Stdio::piped()).spawn().unwrap();
    let mut line = String::new();
    BufReader::new(held.stdout.take().unwrap()).read_line(&mut line).unwrap();
    assert_eq!(line, "held\n");
    assert!(running.client().lease(Bytes::new(4 * BRICK)).is_err());
    assert!(held.try_wait().unwrap().is_none());
    held.kill().unwrap();
    held.wait().unwrap();
}

#[test]
fn a_fork_does_not_touch_memory_that_was_taken() {
    let Some(running) = Running::new("traps.c", BRICKS, settings()) else { return };
    let offering = Offering::of(&running, "offered_fork");
    let lease = leased(&running, 12).expect("what was offered");
    assert_eq!(offering.keep(), "forked\n");
    drop(lease);
    running.wait_until_all_is_back();
}

#[test]
fn a_program_learns_of_what_was_taken_also_after_a_fork() {
    let Some(running) = Running::new("traps.c", BRICKS, settings()) else { return };
    let offering = Offering::of(&running, "told_late");
    let lease = leased(&running, 12).expect("what was offered");
    // Ordinary memory takes the place, since there are no huge pages.
    assert_eq!(offering.keep(), "kept: 1\n");
    drop(lease);
    running.wait_until_all_is_back();
    for (case, others) in [("told_late", BRICK), ("told_elsewhere", 0)] {
        let offering = Offering::of(&running, case);
        drop(leased(&running, 12).expect("what was offered"));
        running.wait_until_all_is_back_but(others);
        assert_eq!(offering.keep(), "kept: 1\n", "{case}");
        running.wait_until_all_is_back();
    }
}

#[test]
fn a_fork_beside_a_silent_daemon_does_not_touch_memory_that_was_taken() {
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
fn an_offer_that_a_silent_daemon_obeys_later_is_an_offer() {
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
fn a_loss_that_the_program_has_zeroed_since_is_none() {
    for is_started_anew in [false, true] {
        let Some(mut running) = Running::new("traps.c", BRICKS, settings()) else { return };
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

#[test]
fn without_the_users_word_nothing_can_be_offered() {
    let Some(running) = Running::new("traps.c", BRICKS, settings()) else { return };
    let output = running.command("offered", "").output().unwrap();
    let said = String::from_utf8_lossy(&output.stdout).into_owned();
    assert_eq!(said, "refused: Operation not supported\n");
}
