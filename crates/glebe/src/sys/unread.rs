//! [`Unread`]: why a number in a file of the kernel's was not had. Telling it allocates nothing;
//! making it an [`OsError`], which owns its words, does.

use std::io;
use std::path::Path;

use super::file;
use crate::error::OsError;

/// A file, and what was wrong with it.
#[derive(Debug)]
pub(crate) struct Unread<'a> {
    path: &'a Path,
    why: Why,
}

#[derive(Debug)]
enum Why {
    /// The call of this name was refused.
    Refused(&'static str, io::Error),
    /// It lacks the line of this name.
    Lacks(&'static str),
    /// It begins with this, so many bytes of it, in the place of a number.
    Strange([u8; STRANGE_MAX], u8),
}

/// As much of a strange text as is told.
const STRANGE_MAX: usize = 24;

impl<'a> Unread<'a> {
    /// `call` was refused.
    pub(crate) fn refused(path: &'a Path, call: &'static str, source: io::Error) -> Self {
        Self { path, why: Why::Refused(call, source) }
    }

    /// The file has no line `name`, or no number on it.
    pub(crate) fn lacks(path: &'a Path, name: &'static str) -> Self {
        Self { path, why: Why::Lacks(name) }
    }

    /// `text` is no number.
    pub(crate) fn strange(path: &'a Path, text: &str) -> Self {
        let mut begin = [0; STRANGE_MAX];
        let len = text.len().min(STRANGE_MAX);
        begin[..len].copy_from_slice(&text.as_bytes()[..len]);
        Self { path, why: Why::Strange(begin, len as u8) }
    }
}

impl From<Unread<'_>> for OsError {
    fn from(Unread { path, why }: Unread<'_>) -> Self {
        match why {
            Why::Refused(call, source) => OsError::new(call, path.display().to_string(), source),
            Why::Lacks(name) => file::strange(path, &format!("no {name}")),
            Why::Strange(begin, len) => {
                file::strange(path, &String::from_utf8_lossy(&begin[..len.into()]))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_says_the_same_as_an_error_that_owns_its_words() {
        let path = Path::new("/sys/fs/cgroup/a");
        let said = |unread: Unread<'_>| OsError::from(unread).to_string();
        assert_eq!(
            said(Unread::strange(path, "12 pages")),
            file::strange(path, "12 pages").to_string()
        );
        assert_eq!(said(Unread::lacks(path, "MemFree")), "read(/sys/fs/cgroup/a): \"no MemFree\"");
        let gone = || io::Error::from_raw_os_error(libc::ENODEV);
        let told = OsError::new("read", "/sys/fs/cgroup/a", gone()).to_string();
        assert_eq!(said(Unread::refused(path, "read", gone())), told);
        // Cut within a character.
        let long = "é".repeat(STRANGE_MAX).replacen('é', "-é", 1);
        assert!(said(Unread::strange(path, &long)).contains("-éé"));
    }
}
