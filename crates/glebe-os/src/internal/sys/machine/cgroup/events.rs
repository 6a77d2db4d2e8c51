//! [`Events`] notices that a version 2 memory cgroup hit the limit *high* or *max*.
//!
//! After a change, `memory.events` has an urgent event (EPOLLPRI) until the file is read. Source:
//! kernfs_generic_poll in fs/kernfs/file.c.

use std::fs::{File, OpenOptions};
use std::os::fd::{AsFd, BorrowedFd};
use std::path::{Path, PathBuf};

use super::value_of;
use crate::error::OsError;
use crate::internal::sys::files::file;

const KEYS: [&str; 2] = ["high", "max"];

#[derive(Debug)]
pub struct Events {
    path: PathBuf,
    file: File,
    seen: u64,
}

impl Events {
    pub fn open(dir: &Path) -> Result<Self, OsError> {
        let path = dir.join("memory.events");
        let file = file::open(&path, OpenOptions::new().read(true))
            .map_err(|source| OsError::new("open", path.display().to_string(), source))?;
        let mut events = Self { path, file, seen: 0 };
        events.has_more()?;
        Ok(events)
    }

    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Returns true if usage hit a limit since `open` or the last call.
    pub fn has_more(&mut self) -> Result<bool, OsError> {
        let mut buf = [0; 1 << 10];
        let failed = |source| OsError::new("read", self.path.display().to_string(), source);
        let len = file::read_some_at(&self.file, &mut buf, 0).map_err(failed)?;
        let text = std::str::from_utf8(&buf[..len]).unwrap_or_default();
        let met = KEYS.iter().filter_map(|key| value_of(text, key)).fold(0, u64::saturating_add);
        Ok(std::mem::replace(&mut self.seen, met) < met)
    }
}

impl AsFd for Events {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.file.as_fd()
    }
}
