//! This test program, run again as another process that runs one test only.

use std::process::Command;

const MARK: &str = "GLEBE_TEST_CHILD";

/// Whether this process is such a child.
pub fn is_child() -> bool {
    std::env::var_os(MARK).is_some()
}

/// A child that runs `test`.
pub fn child_of(test: &str) -> Command {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args(["--exact", test, "--nocapture", "--test-threads=1"]).env(MARK, "1");
    command
}

/// Runs the child to its end.
pub fn passes(child: &mut Command) -> bool {
    child.status().unwrap().success()
}
