//! The program where a user without privileges can run it.

use std::fs;
use std::io;
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;

/// An id with no privilege: the kernel's overflow uid.
pub const NOBODY: u32 = 65_534;

/// A copy of the program where everybody can reach it, removed when dropped.
pub struct Reachable(PathBuf);

impl Reachable {
    pub fn new(test: &str) -> io::Result<Self> {
        let dir = std::env::temp_dir().join(format!("glebe-cli-{}-{test}", std::process::id()));
        fs::create_dir(&dir)?;
        let this = Self(dir);
        fs::set_permissions(&this.0, PermissionsExt::from_mode(0o755))?;
        fs::copy(env!("CARGO_BIN_EXE_glebe"), this.program())?;
        fs::set_permissions(this.program(), PermissionsExt::from_mode(0o755))?;
        Ok(this)
    }

    pub fn program(&self) -> PathBuf {
        self.0.join("glebe")
    }
}

impl Drop for Reachable {
    fn drop(&mut self) {
        fs::remove_dir_all(&self.0).expect("the directory is ours");
    }
}
