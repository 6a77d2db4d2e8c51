//! Runs a test's body in a child process inside a memory cgroup.
#![allow(dead_code)] // each program takes a part

use std::process::Stdio;

use glebe::units::Bytes;
use glebe_testing::process::child_of;

use crate::cgroup::{enter, Group};

/// Names the directory of the group, in the child.
pub const GROUP: &str = "GLEBE_TEST_CGROUP";

/// How a child ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum End {
    /// Its body returned.
    Well,
    /// The kernel killed it for want of memory.
    Killed,
    /// No memory cgroup can be made here.
    Skipped,
}

/// Does `body` in a child inside a group that may hold `limit`; `test` is the test that calls this.
/// In the child this does not return.
///
/// # Panics
/// If the body panics.
pub fn inside(limit: Bytes, test: &str, body: impl FnOnce()) -> End {
    if let Some(group) = std::env::var_os(GROUP) {
        enter(group.as_ref());
        body();
        std::process::exit(0);
    }
    let group = match Group::make(limit) {
        Ok(group) => group,
        Err(why) => {
            println!("skipped: {why}");
            return End::Skipped;
        }
    };
    let mut child = child_of(test);
    child.env(GROUP, group.dir());
    let output = child.stdout(Stdio::piped()).stderr(Stdio::piped()).output().unwrap();
    if group.kills() > 0 {
        return End::Killed;
    }
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{}: {said}", output.status);
    print!("{}", String::from_utf8_lossy(&output.stdout));
    End::Well
}

/// Whether this is such a child.
pub fn is_inside() -> bool {
    std::env::var_os(GROUP).is_some()
}
