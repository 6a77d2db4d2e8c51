//! One test as a process of its own: this program, run again.

use std::os::unix::process::ExitStatusExt;
use std::process::{Command, ExitStatus, Stdio};

const MARK: &str = "GLEBE_TEST_CHILD";

/// Runs `body` in a process that runs `test` alone, and says how that ended; in that process,
/// none. The body leaves a process that passed by its end, one that did not by a panic.
pub fn alone(test: &str, body: fn()) -> Option<ExitStatus> {
    if std::env::var_os(MARK).is_some() {
        no_core();
        body();
        return None;
    }
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args(["--exact", test, "--nocapture", "--test-threads=1"]).env(MARK, "1");
    Some(command.stdout(Stdio::null()).status().unwrap())
}

/// As [`alone`], for a body that comes to its end.
pub fn passes_alone(test: &str, body: fn()) {
    if let Some(status) = alone(test, body) {
        assert!(status.success(), "{status}");
    }
}

/// As [`alone`], for a body that dies of SIGBUS.
pub fn dies_alone(test: &str, body: fn()) {
    let status = alone(test, body).expect("the body came to its end");
    assert_eq!(status.signal(), Some(libc::SIGBUS), "{status}");
}

/// What is to die leaves no file behind.
fn no_core() {
    let none = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: reads the structure.
    unsafe { libc::setrlimit(libc::RLIMIT_CORE, &none) };
}
