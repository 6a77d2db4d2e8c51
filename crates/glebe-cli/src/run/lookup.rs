//! [`find`] maps a program's name to a file as execvp(3) does, except that it ignores folders of
//! PATH that may not be searched.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use rustix::fs::{accessat, Access, AtFlags, CWD};

use super::NotRun;

const DEFAULT: &str = "/bin:/usr/bin";

/// Returns `name` if it contains a slash, otherwise the first executable file of that name in the
/// folders of `path`.
///
/// # Errors
/// If no file has the name, or this process may execute none.
pub fn find(name: &OsStr, path: Option<&OsStr>) -> Result<PathBuf, NotRun> {
    if name.is_empty() {
        return Err(NotRun::missing("the name of the program is empty"));
    }
    if name.as_bytes().contains(&b'/') {
        return Ok(name.into());
    }
    let path = path.unwrap_or(OsStr::new(DEFAULT));
    let mut not_executable = None;
    for folder in path.as_bytes().split(|&byte| byte == b':') {
        let here: &[u8] = if folder.is_empty() { b"." } else { folder };
        let candidate = Path::new(OsStr::from_bytes(here)).join(name);
        if is_executable(&candidate) {
            return Ok(candidate);
        }
        if candidate.exists() {
            not_executable.get_or_insert(candidate);
        }
    }
    Err(match not_executable {
        Some(file) => {
            NotRun::cannot(format!("{} is there, but you may not execute it", file.display()))
        }
        None => NotRun::missing(format!(
            "{}: no such program in {}",
            name.to_string_lossy(),
            path.to_string_lossy()
        )),
    })
}

fn is_executable(file: &Path) -> bool {
    file.is_file() && accessat(CWD, file, Access::EXEC_OK, AtFlags::EACCESS).is_ok()
}
