//! [`Unread`] is an error of reading a number from a kernel file. Only its conversion into an
//! [`OsError`] allocates.

use std::io;
use std::path::Path;

use super::file;
use crate::error::OsError;

#[derive(Debug)]
pub struct Unread<'a> {
    path: &'a Path,
    why: Why,
}

#[derive(Debug)]
enum Why {
    Refused(&'static str, io::Error),
    Lacks(&'static str),
    /// First bytes of the text, and their count.
    Strange([u8; STRANGE_MAX], u8),
}

const STRANGE_MAX: usize = 24;

impl<'a> Unread<'a> {
    pub fn refused(path: &'a Path, call: &'static str, source: io::Error) -> Self {
        Self { path, why: Why::Refused(call, source) }
    }

    pub fn lacks(path: &'a Path, name: &'static str) -> Self {
        Self { path, why: Why::Lacks(name) }
    }

    pub fn strange(path: &'a Path, text: &str) -> Self {
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
        // The cut is inside a character.
        let long = "é".repeat(STRANGE_MAX).replacen('é', "-é", 1);
        assert!(said(Unread::strange(path, &long)).contains("-éé"));
    }
}
