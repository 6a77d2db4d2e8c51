//! Tests of `glebe top`: once as text, and live in a terminal.

mod tmux;

use std::process::Command;

use glebe_testing::turn::{Turn, POOL};
use glebe_testing::Scratch;

use crate::serve::{patience, Serving};

const GLEBE: &str = env!("CARGO_BIN_EXE_glebe");

/// Starts a server whose reserve serves statistics in a directory of the test.
fn server(scratch: &Scratch) -> Serving {
    let mut command = Command::new(GLEBE);
    command.args(["serve", "-m", "16", "-s"]).arg(scratch.path().join("cache"));
    Serving::start(command.env("XDG_RUNTIME_DIR", scratch.path()), 2)
}

#[test]
fn one_picture_as_text_has_a_line_for_each_reserve() {
    let (_turn, scratch) = (Turn::alone(POOL), Scratch::new("top"));
    let mut server = server(&scratch);
    let mut command = Command::new(GLEBE);
    command.args(["top", "--once"]).env("XDG_RUNTIME_DIR", scratch.path()).env("COLUMNS", "100");
    let output = command.output().expect("the program starts");
    let text = String::from_utf8(output.stdout).expect("text");
    assert!(output.status.success(), "{text}");
    let pid = server.pid().to_string();
    assert!(text.lines().any(|line| line.split_whitespace().next() == Some(&pid)), "{text}");
    assert!(text.contains("# blocks ") && text.contains("longest free block"), "{text}");
    assert!(text.lines().all(|line| line.chars().count() <= 100), "{text}");
    server.signal("TERM");
    server.ends_well();
}

#[test]
fn a_live_picture_needs_a_terminal() {
    let output = Command::new(GLEBE).arg("top").output().expect("the program starts");
    assert_eq!(output.status.code(), Some(2));
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(said.contains("--once"), "{said}");
    let output = Command::new(GLEBE).args(["top", "--interval", "0"]).output().expect("it starts");
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(said.contains("give from 0.1 to 3600 seconds"), "{said}");
}

#[test]
fn keys_and_signals_end_it_and_leave_the_terminal_as_it_was() {
    let (_turn, scratch) = (Turn::alone(POOL), Scratch::new("top"));
    let mut server = server(&scratch);
    let program = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/top.py");
    let mut command = Command::new("python3");
    command.args([program, GLEBE, &server.pid().to_string()]);
    command.arg(patience().as_secs().to_string()).env("XDG_RUNTIME_DIR", scratch.path());
    let output = command.output().expect("python3");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    server.signal("TERM");
    server.ends_well();
}
