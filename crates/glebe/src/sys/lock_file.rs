//! A file that one holder at a time has locked, and private files beside it.
//!
//! `flock` belongs to the open file, which a forked child shares: the lock is taken off by name
//! when it is dropped, so a child that was forked meanwhile does not prolong it, and a child that
//! drops its copy does not take it off. Files are made with mode 0600, never through a symbolic
//! link, and refused if somebody else owns them. Source: flock(2), open(2).
//!
//! # Safety
//! The calls take a descriptor that is open for their length.
#![allow(unsafe_code)]

use std::fs::{File, OpenOptions};
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use crate::error::OsError;
use crate::sys::fault::point;
use crate::sys::file;
use crate::sys::fork::ForkGuard;
use crate::sys::process::effective_user;

/// An exclusive lock on a file.
#[derive(Debug)]
pub struct LockFile {
    file: File,
    path: PathBuf,
    guard: ForkGuard,
}

impl LockFile {
    /// Waits for the lock on `path`, which is made if it is not there.
    ///
    /// # Errors
    /// If the file cannot be opened, is a symbolic link, or is somebody else's.
    pub fn acquire(path: &Path) -> Result<Self, OsError> {
        let file = open_private(path, OpenOptions::new().read(true).write(true).create(true))?;
        loop {
            // SAFETY: the descriptor is open.
            let taken = point("flock").and_then(|()| unsafe {
                match libc::flock(file.as_raw_fd(), libc::LOCK_EX) {
                    0 => Ok(()),
                    _ => Err(io::Error::last_os_error()),
                }
            });
            let Err(source) = taken else { break };
            if source.kind() != io::ErrorKind::Interrupted {
                return Err(OsError::new("flock", path.display().to_string(), source));
            }
        }
        Ok(Self { file, path: path.to_owned(), guard: ForkGuard::new() })
    }

    /// The file.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }
}

impl Drop for LockFile {
    fn drop(&mut self) {
        if !self.guard.is_child() {
            // SAFETY: the descriptor is open. Closing takes the lock off too if this fails.
            let _ = point("flock")
                .map(|()| unsafe { libc::flock(self.file.as_raw_fd(), libc::LOCK_UN) });
        }
    }
}

fn open_private(path: &Path, options: &mut OpenOptions) -> Result<File, OsError> {
    let refused = |call, source| OsError::new(call, path.display().to_string(), source);
    let options =
        options.mode(0o600).custom_flags(libc::O_NOFOLLOW | libc::O_CLOEXEC | libc::O_NONBLOCK);
    let file = file::open(path, options).map_err(|source| refused("open", source))?;
    let meta = file::metadata(&file).map_err(|source| refused("fstat", source))?;
    let user = effective_user();
    if !meta.is_file() || meta.uid() != user || meta.nlink() > 1 {
        let what = format!(
            "not a plain file of user {user}: owner {}, mode {:o}, {} links",
            meta.uid(),
            meta.mode(),
            meta.nlink()
        );
        return Err(refused("open", io::Error::new(io::ErrorKind::PermissionDenied, what)));
    }
    Ok(file)
}

/// Reads at most `limit` bytes of a private file; empty where there is none.
///
/// # Errors
/// If it cannot be opened or read, is a symbolic link, or is somebody else's.
pub fn read_private(path: &Path, limit: u64) -> Result<Vec<u8>, OsError> {
    let opened = match open_private(path, OpenOptions::new().read(true)) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        other => other?,
    };
    file::read_some(opened, limit)
        .map_err(|source| OsError::new("read", path.display().to_string(), source))
}

/// Replaces a private file as a whole: a reader sees the old bytes or the new ones.
///
/// # Errors
/// If the new file cannot be made, written or put in the old one's place.
pub fn replace_private(path: &Path, bytes: &[u8]) -> Result<(), OsError> {
    let new = path.with_extension("new");
    let refused = |call, source| OsError::new(call, new.display().to_string(), source);
    file::remove(&new).map_err(|source| refused("unlink", source))?;
    let mut opened = open_private(&new, OpenOptions::new().write(true).create_new(true))?;
    let written = file::write(&mut opened, bytes)
        .map_err(|source| refused("write", source))
        .and_then(|()| file::rename(&new, path).map_err(|source| refused("rename", source)));
    if written.is_err() {
        // Where that fails too the next replacement removes it.
        let _ = file::remove(&new);
    }
    written
}
