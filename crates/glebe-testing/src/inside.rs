//! Runs a test's body in a child inside a memory cgroup.

use std::process::Stdio;

use glebe_os::units::Bytes;

use crate::cgroup::{enter, Group};
use crate::process::child_of;

pub const GROUP: &str = "GLEBE_TEST_CGROUP";

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum InsideEnd {
    Well,
    Killed,
    Skipped,
}

/// Runs the test `test` again as a child process in a cgroup with this limit. In the child, runs
/// `body` and exits.
///
/// # Panics
/// If the body panics.
pub fn inside(limit: Bytes, test: &str, body: impl FnOnce()) -> InsideEnd {
    if let Some(group) = std::env::var_os(GROUP) {
        enter(group.as_ref());
        body();
        std::process::exit(0);
    }
    let group = match Group::make(limit) {
        Ok(group) => group,
        Err(why) => {
            println!("skipped: {why}");
            return InsideEnd::Skipped;
        }
    };
    let mut child = child_of(test);
    child.env(GROUP, group.dir());
    let output = child.stdout(Stdio::piped()).stderr(Stdio::piped()).output().unwrap();
    if group.kills() > 0 {
        return InsideEnd::Killed;
    }
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{}: {said}", output.status);
    print!("{}", String::from_utf8_lossy(&output.stdout));
    InsideEnd::Well
}

pub fn is_inside() -> bool {
    std::env::var_os(GROUP).is_some()
}
