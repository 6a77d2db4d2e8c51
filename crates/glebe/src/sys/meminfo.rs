//! `/proc/meminfo`: how much memory there is of each kind. Source: proc_meminfo(5).

use std::fs::{File, OpenOptions};
use std::path::Path;

use crate::error::OsError;
use crate::sys::file;
use crate::units::Bytes;

const PATH: &str = "/proc/meminfo";

/// The file kept open: a look allocates nothing and opens nothing.
#[derive(Debug)]
pub(crate) struct MemInfo(File);

/// What the machine has.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Machine {
    pub(crate) total: Bytes,
    /// Nobody's.
    pub(crate) free: Bytes,
    /// As [`available`].
    pub(crate) available: Bytes,
}

impl MemInfo {
    /// Opens the file below `root`, which is `/` but for fixtures.
    pub(crate) fn open(root: &Path) -> Result<Self, OsError> {
        let path = root.join(PATH.trim_start_matches('/'));
        let opened = file::open(&path, OpenOptions::new().read(true));
        opened.map(Self).map_err(|e| OsError::new("open", path.display().to_string(), e))
    }

    /// What there is now.
    ///
    /// # Errors
    /// If the file cannot be read or lacks a line.
    pub(crate) fn look(&self) -> Result<Machine, OsError> {
        // What is looked for stands at the top.
        let mut buf = [0; 1 << 10];
        let len = file::read_some_at(&self.0, &mut buf, 0)
            .map_err(|source| OsError::new("read", PATH, source))?;
        let text = std::str::from_utf8(&buf[..len]).unwrap_or_default();
        let line = |name: &str| {
            parse(text, name).ok_or_else(|| file::strange(PATH.as_ref(), &format!("no {name}")))
        };
        let (total, free) = (line("MemTotal")?, line("MemFree")?);
        Ok(Machine { total, free, available: line("MemAvailable")? })
    }
}

/// `MemAvailable`: an estimate by the kernel, of free memory and caches it can drop.
///
/// # Errors
/// If the file cannot be read or has no such line.
pub fn available() -> Result<Bytes, OsError> {
    read("MemAvailable")
}

/// The amount on the line `name`.
///
/// # Errors
/// If the file cannot be read or has no such line.
pub fn read(name: &str) -> Result<Bytes, OsError> {
    let text = file::text(PATH)?;
    parse(&text, name).ok_or_else(|| file::strange(PATH.as_ref(), &format!("no {name}")))
}

fn parse(text: &str, name: &str) -> Option<Bytes> {
    let line = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'))?;
    let kib: u64 = line.trim().strip_suffix("kB")?.trim().parse().ok()?;
    kib.checked_mul(1 << 10).map(Bytes::new)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_the_line_and_nothing_else() {
        let text = "MemFree:  9 kB\nMemAvailable:   24346680 kB\nBuffers: 1 kB\n";
        assert_eq!(parse(text, "MemAvailable"), Some(Bytes::new(24_346_680 << 10)));
        assert_eq!(parse("MemAvailable: many kB\n", "MemAvailable"), None);
        assert_eq!(parse(text, "Mem"), None);
        assert!(available().is_ok());
    }
}
