//! [`open`] refuses symbolic links, special files, other users' files and files with several hard
//! links. New files have mode 0600. Source: open(2), mkdir(2).

use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::Path;

use crate::error::OsError;
use crate::internal::sys::files::file;
use crate::internal::sys::processes::process::effective_user;

pub fn open(path: &Path, options: &mut OpenOptions) -> Result<File, OsError> {
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

const DIR_MODE: u32 = 0o700;

/// Creates `dir`, and checks that only this user can enter it. So no other user can open a file
/// there before the file's mode is set.
pub fn own_dir(dir: &Path) -> Result<(), OsError> {
    let refused = |call, source| OsError::new(call, dir.display().to_string(), source);
    match file::make_dir(dir, DIR_MODE) {
        Err(e) if e.kind() != io::ErrorKind::AlreadyExists => return Err(refused("mkdir", e)),
        _ => {}
    }
    let meta = file::link_metadata(dir).map_err(|e| refused("lstat", e))?;
    let (user, owner, mode) = (effective_user(), meta.uid(), meta.mode());
    if !meta.is_dir() || owner != user || mode & 0o077 != 0 {
        let what = format!("not a directory of user {user} alone: owner {owner}, mode {mode:o}");
        let source = io::Error::new(io::ErrorKind::PermissionDenied, what);
        return Err(refused("mkdir", source));
    }
    Ok(())
}

/// Replaces a file atomically by a private one.
pub fn replace(path: &Path, bytes: &[u8]) -> Result<(), OsError> {
    let new = path.with_extension("new");
    let refused = |call, source| OsError::new(call, new.display().to_string(), source);
    file::remove(&new).map_err(|source| refused("unlink", source))?;
    let mut opened = open(&new, OpenOptions::new().write(true).create_new(true))?;
    let written = file::write(&mut opened, bytes)
        .map_err(|source| refused("write", source))
        .and_then(|()| file::rename(&new, path).map_err(|source| refused("rename", source)));
    if written.is_err() {
        // If this fails too, the next call removes the file.
        let _ = file::remove(&new);
    }
    written
}
