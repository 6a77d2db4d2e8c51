//! [`UsageThreshold`] is a descriptor that becomes readable when the usage of a version 1 memory
//! cgroup crosses a level in either direction.
//!
//! The kernel checks every 128 pages that a processor charges. Arming needs write access to
//! `cgroup.event_control`. Source: admin-guide/cgroup-v1/memory, section 9.

use std::fs::OpenOptions;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};
use std::path::Path;

use crate::error::OsError;
use crate::internal::sys::files::event_fd::EventFd;
use crate::internal::sys::files::file;
use crate::units::Bytes;

#[derive(Debug)]
pub struct UsageThreshold {
    event: EventFd,
    level: Bytes,
}

impl UsageThreshold {
    pub fn arm(dir: &Path, level: Bytes) -> Result<Self, OsError> {
        let path = dir.join("memory.usage_in_bytes");
        let refused = |source| OsError::new("open", path.display().to_string(), source);
        // The kernel keeps what it needs, so the file may be closed.
        let usage = file::open(&path, OpenOptions::new().read(true)).map_err(refused)?;
        let event = EventFd::new()?;
        let fds = (event.as_fd().as_raw_fd(), usage.as_raw_fd());
        let line = format!("{} {} {}", fds.0, fds.1, level.get());
        let path = dir.join("cgroup.event_control");
        let refused = |call, source| OsError::new(call, path.display().to_string(), source);
        let mut control = file::open(&path, OpenOptions::new().write(true))
            .map_err(|source| refused("open", source))?;
        file::write(&mut control, line.as_bytes()).map_err(|source| refused("write", source))?;
        Ok(Self { event, level })
    }

    pub fn level(&self) -> Bytes {
        self.level
    }

    /// Returns true if the usage crossed the level since the last call.
    pub fn was_crossed(&self) -> bool {
        self.event.clear()
    }
}

impl AsFd for UsageThreshold {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.event.as_fd()
    }
}
