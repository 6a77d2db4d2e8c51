//! `/proc/meminfo`: how much memory there is of each kind. Source: proc_meminfo(5).

use std::fs::{File, OpenOptions};
use std::io;
use std::path::{Path, PathBuf};

use crate::error::OsError;
use crate::sys::file;
use crate::sys::unread::Unread;
use crate::units::Bytes;

const PATH: &str = "/proc/meminfo";

/// The file kept open, where it can be opened: a look opens nothing and allocates nothing.
#[derive(Debug)]
pub(crate) struct MemInfo {
    path: PathBuf,
    file: io::Result<File>,
}

/// What the machine has.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Machine {
    pub(crate) total: Bytes,
    /// Nobody's.
    pub(crate) free: Bytes,
    /// As [`available`].
    pub(crate) available: Bytes,
    /// What stands on the lists of files and is no page of a file: it was marked volatile, whether
    /// or not it is in use again. `None` where the kernel does not say.
    pub(crate) no_files: Option<Bytes>,
}

impl MemInfo {
    /// The file below `root`, which is `/` but for fixtures; not opened.
    pub(crate) fn new(root: &Path) -> Self {
        let path = root.join(PATH.trim_start_matches('/'));
        Self { path, file: Err(io::Error::from_raw_os_error(libc::EBADF)) }
    }

    /// Opens it if it is not open. The next look tells whether that was refused.
    pub(crate) fn open(&mut self) {
        if self.file.is_err() {
            self.file = file::open(&self.path, OpenOptions::new().read(true));
        }
    }

    pub(crate) fn close(&mut self) {
        self.file = Err(io::Error::from_raw_os_error(libc::EBADF));
    }

    /// What there is now.
    ///
    /// # Errors
    /// If the file is not open, cannot be read, or lacks a line.
    pub(crate) fn look(&self) -> Result<Machine, Unread<'_>> {
        let refused = |call, source| Unread::refused(&self.path, call, source);
        let file = self.file.as_ref().map_err(|why| refused("open", again(why)))?;
        // What is looked for stands at the top.
        let mut buf = [0; 1 << 10];
        let len = file::read_some_at(file, &mut buf, 0).map_err(|why| refused("read", why))?;
        let text = std::str::from_utf8(&buf[..len]).unwrap_or_default();
        let line = |name| parse(text, name).ok_or_else(|| Unread::lacks(&self.path, name));
        let (total, free) = (line("MemTotal")?, line("MemFree")?);
        let available = line("MemAvailable")?;
        Ok(Machine { total, free, available, no_files: no_files(text) })
    }
}

/// As [`Machine::no_files`]. Shared memory is page cache on the lists of anonymous memory.
fn no_files(text: &str) -> Option<Bytes> {
    let line = |name| parse(text, name);
    let listed = line("Active(file)")? + line("Inactive(file)")?;
    let cached = line("Cached")? + line("Buffers")?;
    Some(listed.saturating_sub(cached.saturating_sub(line("Shmem")?)))
}

/// The same error once more.
fn again(error: &io::Error) -> io::Error {
    error.raw_os_error().map_or_else(|| error.kind().into(), io::Error::from_raw_os_error)
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
        let lists = "Active(file): 30 kB\nInactive(file): 40 kB\nSwapCached: 9 kB\n";
        let cached = "Cached: 60 kB\nBuffers: 5 kB\nShmem: 15 kB\n";
        assert_eq!(no_files(&format!("{lists}{cached}")), Some(Bytes::new(20 << 10)));
        assert_eq!(no_files(lists), None);
        assert_eq!(parse("MemAvailable: many kB\n", "MemAvailable"), None);
        assert_eq!(parse(text, "Mem"), None);
        assert!(available().is_ok());
    }
}
