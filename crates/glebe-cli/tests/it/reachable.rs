//! [`Reachable`] makes the program executable for users without privileges.

use std::path::PathBuf;
use std::process::Command;

use glebe_testing::Scratch;

pub const NOBODY: u32 = 65_534;

pub struct Reachable(Scratch);

impl Reachable {
    pub fn new() -> Self {
        let this = Self(Scratch::readable("reachable"));
        // Another process copies the program, because a forked child of this process could hold the
        // file open for writing, and such a file cannot run.
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
