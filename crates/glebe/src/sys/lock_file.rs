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
use std::io::{self, Read, Write};
use std::os::fd::AsRawFd;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use crate::error::OsError;
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
            if unsafe { libc::flock(file.as_raw_fd(), libc::LOCK_EX) } == 0 {
                break;
            }
            let source = io::Error::last_os_error();
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
            unsafe { libc::flock(self.file.as_raw_fd(), libc::LOCK_UN) };
        }
    }
}

fn open_private(path: &Path, options: &mut OpenOptions) -> Result<File, OsError> {
    let refused = |call, source| OsError::new(call, path.display().to_string(), source);
    let file = options
        .mode(0o600)
        .custom_flags(libc::O_NOFOLLOW | libc::O_CLOEXEC | libc::O_NONBLOCK)
        .open(path)
        .map_err(|source| refused("open", source))?;
    let meta = file.metadata().map_err(|source| refused("fstat", source))?;
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
    let file = match open_private(path, OpenOptions::new().read(true)) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        other => other?,
    };
    let mut bytes = Vec::new();
    file.take(limit)
        .read_to_end(&mut bytes)
        .map_err(|source| OsError::new("read", path.display().to_string(), source))?;
    Ok(bytes)
}

/// Replaces a private file as a whole: a reader sees the old bytes or the new ones.
///
/// # Errors
/// If the new file cannot be made, written or put in the old one's place.
pub fn replace_private(path: &Path, bytes: &[u8]) -> Result<(), OsError> {
    let new = path.with_extension("new");
    let refused = |call, source| OsError::new(call, new.display().to_string(), source);
    match std::fs::remove_file(&new) {
        Err(source) if source.kind() != io::ErrorKind::NotFound => {
            return Err(refused("unlink", source));
        }
        _ => {}
    }
    let mut file = open_private(&new, OpenOptions::new().write(true).create_new(true))?;
    file.write_all(bytes).map_err(|source| refused("write", source))?;
    std::fs::rename(&new, path).map_err(|source| refused("rename", source))
}
