//! The record of what processes raised the overcommit limit by, so that what a killed one had
//! raised is taken off by the next that raises or lowers it.
//!
//! A line for each raise, numbers in decimal, below the name of this boot:
//!
//! ```text
//! PID START_TICKS PID_NAMESPACE PAGES PATH_OF_THE_LIMIT
//! ```
//!
//! It is read and written under the lock of the pools. A raise is recorded after it is made and
//! taken off the record before it is unmade: who is killed in between leaves the limit higher,
//! never lower than others need it.

use std::env;
use std::io;
use std::path::{Path, PathBuf};

use glebe::error::OsError;
use glebe::sys::lock_file::{read_private, replace_private};
use glebe::sys::process::{boot_id, Process};

const NAME: &str = "glebe-hugetlb.limits";
const BYTES_MAX: u64 = 1 << 20;

/// A limit raised by a process.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Raise {
    pub process: Process,
    pub pages: u64,
    pub limit: PathBuf,
}

impl Raise {
    fn parse(line: &str) -> Option<Self> {
        let fields: Vec<&str> = line.splitn(5, ' ').collect();
        let [pid, start, namespace, pages, limit] = fields[..] else { return None };
        let process = Process {
            pid: pid.parse().ok()?,
            start_ticks: start.parse().ok()?,
            namespace: namespace.parse().ok()?,
        };
        Some(Self { process, pages: pages.parse().ok()?, limit: limit.into() })
    }
}

fn path() -> PathBuf {
    let usual = Path::new("/run/lock");
    if usual.is_dir() {
        usual.join(NAME)
    } else {
        env::temp_dir().join(NAME)
    }
}

/// All of this boot that are recorded.
pub(super) fn read() -> Result<Vec<Raise>, OsError> {
    let text = read_private(&path(), BYTES_MAX)?;
    let text = String::from_utf8_lossy(&text);
    let mut lines = text.lines();
    if lines.next() != Some(boot_id()?.as_str()) {
        return Ok(Vec::new());
    }
    Ok(lines.filter_map(Raise::parse).collect())
}

/// Records these and no others.
pub(super) fn write(raises: &[Raise]) -> Result<(), OsError> {
    let (path, mut text) = (path(), boot_id()? + "\n");
    for Raise { process: Process { pid, start_ticks, namespace }, pages, limit } in raises {
        text += &format!("{pid} {start_ticks} {namespace} {pages} {}\n", limit.display());
    }
    if text.len() as u64 > BYTES_MAX {
        let full = io::Error::new(io::ErrorKind::FileTooLarge, "too many raises");
        return Err(OsError::new("write", path.display().to_string(), full));
    }
    replace_private(&path, text.as_bytes())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_that_are_no_raise_are_passed_over() {
        let raise = Raise::parse("7 8 9 3 /a directory/limit").unwrap();
        assert_eq!((raise.process.pid, raise.pages), (7, 3));
        assert_eq!(raise.limit, Path::new("/a directory/limit"));
        assert_eq!(Raise::parse("7 8 9 3"), None);
        assert_eq!(Raise::parse("7 8 -9 3 /limit"), None);
    }
}
