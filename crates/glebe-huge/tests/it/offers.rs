//! Tests that the daemon takes only memory that a program offers, and that the program learns it.

use std::io::{BufRead, BufReader};
use std::process::Stdio;

use glebe::units::Bytes;

use crate::offering::{leased, settings, Offering, BRICKS};
use crate::running::{Running, BRICK};

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
fn without_the_users_word_nothing_can_be_offered() {
    let Some(running) = Running::new("traps.c", BRICKS, settings()) else { return };
    let output = running.command("offered", "").output().unwrap();
    let said = String::from_utf8_lossy(&output.stdout).into_owned();
    assert_eq!(said, "refused: Operation not supported\n");
}
