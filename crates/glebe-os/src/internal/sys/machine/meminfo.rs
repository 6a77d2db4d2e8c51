//! [`MemInfo`] reads `/proc/meminfo`. If the file is hidden, [`node_memory`] reads the nodes' files
//! or calls sysinfo(2). Source: proc_meminfo(5).

use std::fs::{File, OpenOptions};
use std::io;
use std::path::{Path, PathBuf};

use crate::error::OsError;
use crate::internal::sys::files::file;
use crate::internal::sys::files::unread::Unread;
use crate::internal::sys::machine::node_memory::{self, Nodes};
use crate::units::Bytes;

const PATH: &str = "/proc/meminfo";

/// Keeps the file open, so that `look` opens and allocates nothing.
#[derive(Debug)]
pub struct MemInfo {
    root: PathBuf,
    path: PathBuf,
    file: io::Result<File>,
    nodes: Nodes,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Machine {
    pub total: Bytes,
    pub free: Bytes,
    pub available: Bytes,
    /// Anonymous memory on the kernel's lists of file pages: memory once marked volatile. `None` if
    /// unknown.
    pub no_files: Option<Bytes>,
}

impl MemInfo {
    pub fn new(root: &Path) -> Self {
        let path = root.join(PATH.trim_start_matches('/'));
        let file = Err(io::Error::from_raw_os_error(libc::EBADF));
        Self { root: root.to_owned(), path, file, nodes: Nodes::default() }
    }

    /// Only the next `look` reports a failure.
    pub fn open(&mut self) {
        if self.file.is_err() {
            self.file = file::open(&self.path, OpenOptions::new().read(true));
            let nodes = self.file.is_err().then(|| Nodes::open(&self.root));
            self.nodes = nodes.unwrap_or_default();
        }
    }

    pub fn close(&mut self) {
        self.file = Err(io::Error::from_raw_os_error(libc::EBADF));
        self.nodes = Nodes::default();
    }

    pub fn look(&self) -> Result<Machine, Unread<'_>> {
        let listed = self.look_at_list();
        match listed.is_err().then(|| self.nodes.look()).flatten() {
            Some(machine) => Ok(machine),
            None => listed,
        }
    }

    /// Asks sysinfo(2). Returns `None` for a root other than `/`. Returns `None` before `open` and
    /// after `close`, because an opened file says more.
    pub fn rough(&self) -> Option<Machine> {
        let is_closed = |why: &io::Error| why.raw_os_error() == Some(libc::EBADF);
        let is_refused = !self.file.as_ref().is_err_and(is_closed);
        (is_refused && self.root == Path::new("/")).then(node_memory::rough).flatten()
    }

    fn look_at_list(&self) -> Result<Machine, Unread<'_>> {
        let refused = |call, source| Unread::refused(&self.path, call, source);
        let file = self.file.as_ref().map_err(|why| refused("open", again(why)))?;
        // The needed lines are within the first KiB.
        let mut buf = [0; 1 << 10];
        let len = file::read_some_at(file, &mut buf, 0).map_err(|why| refused("read", why))?;
        let text = std::str::from_utf8(&buf[..len]).unwrap_or_default();
        let line = |name| parse(text, name).ok_or_else(|| Unread::lacks(&self.path, name));
        let (total, free) = (line("MemTotal")?, line("MemFree")?);
        let available = line("MemAvailable")?;
        let cached = parse(text, "Cached").zip(parse(text, "Buffers"));
        let no_files = no_files(text, cached.map(|(files, devices)| files + devices));
        Ok(Machine { total, free, available, no_files })
    }
}

/// Computes [`Machine::no_files`]. `cached` (the page cache) includes shared memory, which the
/// kernel lists as anonymous memory.
pub(in crate::internal::sys) fn no_files(text: &str, cached: Option<Bytes>) -> Option<Bytes> {
    let line = |name| parse(text, name);
    let listed = line("Active(file)")? + line("Inactive(file)")?;
    Some(listed.saturating_sub(cached?.saturating_sub(line("Shmem")?)))
}

fn again(error: &io::Error) -> io::Error {
    error.raw_os_error().map_or_else(|| error.kind().into(), io::Error::from_raw_os_error)
}

pub fn available() -> Result<Bytes, OsError> {
    read("MemAvailable")
        .or_else(|hidden| node_memory::of_machine().map(|machine| machine.available).ok_or(hidden))
}

pub fn total() -> Result<Bytes, OsError> {
    read("MemTotal")
        .or_else(|hidden| node_memory::of_machine().map(|machine| machine.total).ok_or(hidden))
}

pub fn read(name: &str) -> Result<Bytes, OsError> {
    let text = file::text(PATH)?;
    parse(&text, name).ok_or_else(|| file::strange(PATH.as_ref(), &format!("no {name}")))
}

pub(in crate::internal::sys) fn parse(text: &str, name: &str) -> Option<Bytes> {
    let mut lines = text.lines().map(without_node);
    let line = lines.find_map(|line| line.strip_prefix(name)?.strip_prefix(':'))?;
    let kib: u64 = line.trim().strip_suffix("kB")?.trim().parse().ok()?;
    kib.checked_mul(1 << 10).map(Bytes::new)
}

fn without_node(line: &str) -> &str {
    let numbered = line.strip_prefix("Node ");
    numbered.and_then(|rest| rest.split_once(' ')).map_or(line, |(_, rest)| rest)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_the_line_and_nothing_else() {
        let text = "MemFree:  9 kB\nMemAvailable:   24346680 kB\nBuffers: 1 kB\n";
        assert_eq!(parse(text, "MemAvailable"), Some(Bytes::new(24_346_680 << 10)));
        let lists = "Active(file): 30 kB\nInactive(file): 40 kB\nSwapCached: 9 kB\n";
        let text_of_lists = format!("{lists}Shmem: 15 kB\n");
        let cached = Some(Bytes::new(65 << 10));
        assert_eq!(no_files(&text_of_lists, cached), Some(Bytes::new(20 << 10)));
        assert_eq!((no_files(lists, cached), no_files(&text_of_lists, None)), (None, None));
        assert_eq!(parse("MemAvailable: many kB\n", "MemAvailable"), None);
        assert_eq!(parse(text, "Mem"), None);
        assert!(available().is_ok());
    }
}
