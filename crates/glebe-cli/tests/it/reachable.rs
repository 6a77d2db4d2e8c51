//! The program where a user without privileges can run it.

use std::path::PathBuf;
use std::process::Command;

use glebe_testing::Scratch;

/// An id with no privilege: the kernel's overflow uid.
pub const NOBODY: u32 = 65_534;

/// A copy of the program where everybody can reach it, removed when dropped.
pub struct Reachable(Scratch);

impl Reachable {
    pub fn new() -> Self {
        let this = Self(Scratch::readable("reachable"));
        // A process of its own copies it. Another thread's child could have a file of this process
        // open for writing, and nobody can execute it meanwhile.
        let program = env!("CARGO_BIN_EXE_glebe");
        let mut install = Command::new("install");
        let copied = install.args(["-m", "755", program]).arg(this.program()).status();
        assert!(copied.expect("install starts").success());
        this
    }

    pub fn program(&self) -> PathBuf {
        self.0.path().join("glebe")
    }
}
