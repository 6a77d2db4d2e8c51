//! Runs the commands that tests need: compilers, make, readers of libraries.

use std::process::{Command, Output, Stdio};

/// Returns true if a tool is installed. If not, prints that the test is skipped.
#[must_use]
pub fn has(tool: &str) -> bool {
    let mut command = Command::new(tool);
    command.arg("--version").stdout(Stdio::null()).stderr(Stdio::null());
    let is_there = command.status().is_ok_and(|status| status.success());
    if !is_there {
        println!("skipped: no {tool} on this machine");
    }
    is_there
}

/// Runs a command that must succeed.
///
/// # Panics
/// If the command fails. The message contains its output.
pub fn run(command: &mut Command) -> Output {
    let output = command.output().unwrap_or_else(|error| panic!("{command:?}: {error}"));
    let (out, err) = (&output.stdout, &output.stderr);
    let printed = [out, err].map(|bytes| String::from_utf8_lossy(bytes)).concat();
    assert!(output.status.success(), "{command:?}: {}\n{printed}", output.status);
    output
}
