//! Processes by number and start: who made a record, and whether it still lives.
//!
//! A process number is used again; with the start time (in clock ticks since boot) and the
//! process-number namespace it names one process. Source: proc_pid_stat(5).
//!
//! # Safety
//! The calls here take and give no memory.
#![allow(unsafe_code)]

use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use crate::error::OsError;
use crate::sys::file;

/// One process of this boot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Process {
    /// Its number.
    pub pid: u32,
    /// When it started, in clock ticks since boot.
    pub start_ticks: u64,
    /// The inode of the namespace in which that number holds.
    pub namespace: u64,
}

impl Process {
    /// The calling process.
    ///
    /// # Errors
    /// If its start or its namespace cannot be read: without both a record would name another.
    pub fn this() -> Result<Self, OsError> {
        let pid = std::process::id();
        let path = format!("/proc/{pid}/stat");
        let refused = |source| OsError::new("read", path.as_str(), source);
        let text = file::read(Path::new(&path)).map_err(refused)?;
        let stat = parse_stat(&text)
            .ok_or_else(|| refused(io::Error::new(io::ErrorKind::InvalidData, "no such fields")))?;
        Ok(Self { pid, start_ticks: stat.start_ticks, namespace: namespace()? })
    }

    /// No process at all, which has always ended, in the namespace of this one.
    #[must_use]
    pub fn none(self) -> Self {
        Self { pid: 0, start_ticks: 0, namespace: self.namespace }
    }

    /// Whether it has certainly ended; `false` for one of another namespace, which cannot be seen.
    #[must_use]
    pub fn has_ended(&self) -> bool {
        if namespace().map_or(true, |namespace| namespace != self.namespace) {
            return false;
        }
        match read_stat(self.pid) {
            None => !file::exists(Path::new(&format!("/proc/{}", self.pid))).unwrap_or(true),
            Some(stat) => stat.start_ticks != self.start_ticks || stat.is_empty(),
        }
    }
}

struct Stat {
    state: u8,
    threads: u64,
    start_ticks: u64,
}

impl Stat {
    /// A zombie whose last thread has gone holds no memory. (A leader that ended before its
    /// threads is shown as a zombie too.)
    fn is_empty(&self) -> bool {
        matches!(self.state, b'Z' | b'X') && self.threads <= 1
    }
}

fn read_stat(pid: u32) -> Option<Stat> {
    parse_stat(&file::read(Path::new(&format!("/proc/{pid}/stat"))).ok()?)
}

/// The name in parentheses may hold anything, parentheses too: fields are counted after the last.
fn parse_stat(stat: &[u8]) -> Option<Stat> {
    let after = stat.iter().rposition(|byte| *byte == b')')? + 1;
    let text = std::str::from_utf8(&stat[after..]).ok()?;
    let fields: Vec<&str> = text.split_ascii_whitespace().collect();
    // Fields are numbered from 1 in the manual page; the first after the name is the third.
    let field = |number: usize| fields.get(number - 3).copied();
    Some(Stat {
        state: *field(3)?.as_bytes().first()?,
        threads: field(20)?.parse().ok()?,
        start_ticks: field(22)?.parse().ok()?,
    })
}

fn namespace() -> Result<u64, OsError> {
    const PATH: &str = "/proc/self/ns/pid";
    let meta = file::metadata_of(Path::new(PATH));
    meta.map(|meta| meta.ino()).map_err(|source| OsError::new("stat", PATH, source))
}

/// The kernel's name of this boot.
///
/// # Errors
/// If it cannot be read.
pub fn boot_id() -> Result<String, OsError> {
    Ok(file::text("/proc/sys/kernel/random/boot_id")?.trim().to_owned())
}

/// The release of the running kernel, as `uname -r` shows it; empty where it cannot be read.
pub(crate) fn release() -> String {
    let text = file::text("/proc/sys/kernel/osrelease").unwrap_or_default();
    text.trim().to_owned()
}

/// The effective user.
#[must_use]
pub fn effective_user() -> u32 {
    // SAFETY: always succeeds, takes nothing.
    unsafe { libc::geteuid() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn this_process_lives_and_an_earlier_one_of_its_number_does_not() {
        let this = Process::this().unwrap();
        assert!(!this.has_ended());
        assert!(Process { start_ticks: this.start_ticks + 1, ..this }.has_ended());
        assert!(!Process { start_ticks: 1, namespace: this.namespace + 1, ..this }.has_ended());
    }

    #[test]
    fn a_child_has_ended_even_before_it_is_waited_for() {
        let mut child = std::process::Command::new("sleep").arg("60").spawn().unwrap();
        let stat = read_stat(child.id()).unwrap();
        let process = Process {
            pid: child.id(),
            start_ticks: stat.start_ticks,
            namespace: namespace().unwrap(),
        };
        assert!(!process.has_ended());
        child.kill().unwrap();
        while !process.has_ended() {
            std::thread::yield_now();
        }
        child.wait().unwrap();
        assert!(process.has_ended());
    }

    #[test]
    fn a_hostile_name_does_not_shift_the_fields() {
        let text = b"7 (a) Z 9 (b) R 1 1 1 0 -1 0 0 0 0 0 0 0 0 0 20 0 3 0 777 0";
        let stat = parse_stat(text).unwrap();
        assert_eq!((stat.state, stat.threads, stat.start_ticks), (b'R', 3, 777));
        assert!(parse_stat(b"7 (a").is_none());
        assert!(parse_stat(b"7 (a) R 1").is_none());
    }
}
