//! A directory of a test's own; several test programs share this file.

use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;

/// A new directory that only this user enters, removed with what is in it when dropped.
pub struct Scratch(pub PathBuf);

impl Scratch {
    /// `test` is one of a kind in its process.
    pub fn new(test: &str) -> Self {
        let dir = std::env::temp_dir().join(format!("glebe-test-{}-{test}", std::process::id()));
        fs::create_dir(&dir).unwrap();
        fs::set_permissions(&dir, Permissions::from_mode(0o700)).unwrap();
        Self(dir)
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        fs::remove_dir_all(&self.0).expect("the directory is ours");
    }
}
