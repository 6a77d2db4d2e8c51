//! Writing a result file whole or not at all.
//!
//! A regular file is written and synced under another name beside it, then renamed over the old
//! one, so that a reader or a crash sees the old text or the new. What is not a regular file (a
//! pipe, a terminal, `/dev/stdout`) is written in place: it must not be replaced by a file.

use std::ffi::OsString;
use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use glebe::error::OsError;

/// Replaces the contents of `path` by `bytes`; a symbolic link to a file is followed and stays.
///
/// # Errors
/// What the file system refuses; then no file is left behind and an old one is as it was.
pub fn write(path: &Path, bytes: &[u8]) -> Result<(), OsError> {
    let failed = |call, at: &Path, e| OsError::new(call, at.display().to_string(), e);
    if fs::metadata(path).is_ok_and(|meta| !meta.is_file()) {
        return OpenOptions::new()
            .write(true)
            .open(path)
            .and_then(|mut file| file.write_all(bytes))
            .map_err(|e| failed("write", path, e));
    }
    let path = &fs::canonicalize(path).unwrap_or_else(|_| path.to_path_buf());
    let (beside, mut file) = beside(path)?;
    let written = file
        .write_all(bytes)
        .and_then(|()| file.sync_all())
        .map_err(|e| failed("write", &beside, e))
        .and_then(|()| fs::rename(&beside, path).map_err(|e| failed("rename", path, e)));
    if written.is_err() {
        let _ = fs::remove_file(&beside);
    }
    written
}

/// Whether [`write()`] could write `path`; nothing is left there.
///
/// # Errors
/// What the file system would refuse.
pub fn check(path: &Path) -> Result<(), OsError> {
    let failed = |call, at: &Path, e| OsError::new(call, at.display().to_string(), e);
    if fs::metadata(path).is_ok_and(|meta| !meta.is_file()) {
        let opened = OpenOptions::new().write(true).open(path);
        return opened.map(drop).map_err(|e| failed("open", path, e));
    }
    let (beside, _) = beside(&fs::canonicalize(path).unwrap_or_else(|_| path.to_path_buf()))?;
    fs::remove_file(&beside).map_err(|e| failed("unlink", &beside, e))
}

/// A new file beside `path`, under another name.
fn beside(path: &Path) -> Result<(PathBuf, File), OsError> {
    let failed = |at: &Path, e| OsError::new("create", at.display().to_string(), e);
    let Some(name) = path.file_name() else {
        return Err(failed(path, io::ErrorKind::InvalidInput.into()));
    };
    let mut beside = OsString::from(".");
    beside.push(name);
    beside.push(format!(".{}", std::process::id()));
    let beside = path.with_file_name(beside);
    let mut options = OpenOptions::new();
    options.write(true).create(true).truncate(true).custom_flags(libc::O_NOFOLLOW);
    match options.open(&beside) {
        Ok(file) => Ok((beside, file)),
        Err(e) => Err(failed(&beside, e)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::scratch::Scratch;
    use std::os::unix::fs::FileTypeExt;

    fn names(dir: &Path) -> Vec<OsString> {
        let mut names: Vec<_> =
            fs::read_dir(dir).unwrap().map(|entry| entry.unwrap().file_name()).collect();
        names.sort();
        names
    }

    #[test]
    fn replaces_a_file_and_follows_a_link() {
        let dir = Scratch::new("whole");
        let (path, link) = (dir.path().join("out"), dir.path().join("link"));
        write(&path, b"first").unwrap();
        std::os::unix::fs::symlink("out", &link).unwrap();
        write(&link, b"second").unwrap();
        assert_eq!(fs::read(&path).unwrap(), b"second");
        assert!(fs::symlink_metadata(&link).unwrap().is_symlink());
        assert_eq!(names(dir.path()), ["link", "out"]);
    }

    #[test]
    fn failures_leave_nothing_behind() {
        let dir = Scratch::new("whole");
        for bad in [&dir.path().join("missing/out"), dir.path(), Path::new(""), Path::new("/")] {
            assert!(check(bad).is_err(), "{}", bad.display());
        }
        assert!(check(&dir.path().join("out")).is_ok());
        assert!(write(&dir.path().join("missing/out"), b"x").is_err());
        assert!(write(dir.path(), b"x").is_err());
        assert!(write(Path::new(""), b"x").is_err());
        assert!(write(Path::new("/"), b"x").is_err());
        assert!(names(dir.path()).is_empty());
    }

    /// A socket of the test's own: a device of the machine would be lost if this went wrong.
    #[test]
    fn what_is_no_file_is_not_replaced() {
        let dir = Scratch::new("whole");
        let path = dir.path().join("socket");
        let _socket = std::os::unix::net::UnixListener::bind(&path).unwrap();
        assert!(write(&path, b"x").is_err(), "a socket cannot be opened");
        assert!(fs::metadata(&path).unwrap().file_type().is_socket());
        assert_eq!(names(dir.path()), ["socket"]);
    }
}
