//! Private files: made with mode 0600, never opened through a symbolic link, refused if another
//! user owns them or they have a second name. Source: open(2).

use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::Path;

use crate::error::OsError;
use crate::sys::file;
use crate::sys::process::effective_user;

/// Opens a private file as `options` say.
///
/// # Errors
/// If it cannot be opened, is a symbolic link, or is somebody else's.
pub(crate) fn open(path: &Path, options: &mut OpenOptions) -> Result<File, OsError> {
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

/// Makes a directory that only this user can use, or accepts the one that is there.
///
/// # Errors
/// If it cannot be made, or what is there is no directory of this user's that others cannot write.
pub(crate) fn make_dir(path: &Path) -> Result<(), OsError> {
    let refused = |call, source| OsError::new(call, path.display().to_string(), source);
    match file::make_dir(path, 0o700) {
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
        made => return made.map_err(|source| refused("mkdir", source)),
    }
    let meta = file::link_metadata(path).map_err(|source| refused("stat", source))?;
    let user = effective_user();
    if !meta.is_dir() || meta.uid() != user || meta.mode() & 0o022 != 0 {
        let what = format!(
            "not a directory of user {user} alone: owner {}, mode {:o}",
            meta.uid(),
            meta.mode()
        );
        return Err(refused("mkdir", io::Error::new(io::ErrorKind::PermissionDenied, what)));
    }
    Ok(())
}

/// Replaces a private file as a whole: a reader sees the old bytes or the new ones.
///
/// # Errors
/// If the new file cannot be made, written or put in the old one's place.
pub fn replace(path: &Path, bytes: &[u8]) -> Result<(), OsError> {
    let new = path.with_extension("new");
    let refused = |call, source| OsError::new(call, new.display().to_string(), source);
    file::remove(&new).map_err(|source| refused("unlink", source))?;
    let mut opened = open(&new, OpenOptions::new().write(true).create_new(true))?;
    let written = file::write(&mut opened, bytes)
        .map_err(|source| refused("write", source))
        .and_then(|()| file::rename(&new, path).map_err(|source| refused("rename", source)));
    if written.is_err() {
        // Where that fails too the next replacement removes it.
        let _ = file::remove(&new);
    }
    written
}
