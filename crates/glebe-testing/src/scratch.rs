//! [`Scratch`]: a folder that is removed when the test ends, even by a panic.

use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process;
use std::sync::atomic::{AtomicU32, Ordering};

pub struct Scratch(PathBuf);

impl Scratch {
    /// Makes a folder that only this user can enter. Its name contains `what`.
    pub fn new(what: &str) -> Self {
        Self::with_mode(what, 0o700)
    }

    pub fn readable(what: &str) -> Self {
        Self::with_mode(what, 0o755)
    }

    /// Makes a folder in memory (tmpfs), for this user alone.
    pub fn in_memory(what: &str) -> Self {
        Self::within(Path::new("/dev/shm"), what, 0o700)
    }

    fn with_mode(what: &str, mode: u32) -> Self {
        Self::within(&std::env::temp_dir(), what, mode)
    }

    fn within(folder: &Path, what: &str, mode: u32) -> Self {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let nth = NEXT.fetch_add(1, Ordering::Relaxed);
        let dir = folder.join(format!("glebe-test-{}-{nth}-{what}", process::id()));
        fs::create_dir(&dir).unwrap_or_else(|error| panic!("{}: {error}", dir.display()));
        fs::set_permissions(&dir, Permissions::from_mode(mode)).expect("the folder is ours");
        Self(dir)
    }

    pub fn path(&self) -> &Path {
        &self.0
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0); // a child of the test may have removed it
    }
}
