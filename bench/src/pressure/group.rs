//! [`Group`]: a memory cgroup of this run's own, and its counters.
//!
//! Its name holds the number of the process that made it. What is inside when it is dropped is
//! killed (only children of this run ever enter), what it holds of the page cache is dropped, and
//! the directory is removed. A run that was killed leaves its directory: the next run on the
//! machine removes those of processes that are gone. Cost: some file operations of 10 µs each.

use std::fs;
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use glebe::error::OsError;
use glebe::sys::cgroup::value_of;
use glebe::units::Bytes;
use rustix::process::{kill_process, Pid, Signal};

use super::place::{Place, Version};
use super::Error;
use crate::child::Child;
use crate::clock;

const PREFIX: &str = "glebe-pressure-";
/// How long the kernel may take to let go of what was killed.
const PATIENCE: Duration = Duration::from_secs(10);
/// Directories younger than this may be another run's that is about to enter.
const STALE_AFTER: Duration = Duration::from_secs(60);

/// What the kernel counts of a group.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counters {
    /// Memory charged now.
    pub usage_bytes: u64,
    /// Times that a charge met the limit.
    pub limit_hits: u64,
    /// Processes killed for want of memory.
    pub oom_kills: u64,
    /// Pages of files that were dropped, and soon wanted again.
    pub refaults: u64,
}

/// A memory cgroup, removed when dropped.
#[derive(Debug)]
pub struct Group {
    version: Version,
    dir: PathBuf,
}

impl Group {
    /// Makes a group below `place` that may hold `limit`, without swap.
    ///
    /// # Errors
    /// [`Error::NoGroup`] if this process may not, or has no room for it.
    pub(super) fn new(place: &Place, limit: Bytes) -> Result<Self, Error> {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        sweep(&place.parent);
        let nth = NEXT.fetch_add(1, Ordering::Relaxed);
        let dir = place.parent.join(format!("{PREFIX}{}-{nth}", std::process::id()));
        let refused = |what: &str, path: &Path, source: io::Error| {
            Error::NoGroup(format!("{what}({}): {source}", path.display()))
        };
        fs::create_dir(&dir).map_err(|e| refused("mkdir", &dir, e))?;
        // From here on the drop removes it.
        let group = Self { version: place.version, dir };
        let file = group.dir.join(match place.version {
            Version::V1 => "memory.limit_in_bytes",
            Version::V2 => "memory.max",
        });
        fs::write(&file, limit.get().to_string()).map_err(|e| refused("write", &file, e))?;
        let (swap, value) = match place.version {
            // A limit with swap, if it is the same, is met first and counts no hits.
            Version::V1 => ("memory.swappiness", "0"),
            Version::V2 => ("memory.swap.max", "0"),
        };
        // Only kernels with swap have it.
        let swap = group.dir.join(swap);
        if swap.exists() {
            fs::write(&swap, value).map_err(|e| refused("write", &swap, e))?;
        }
        Ok(group)
    }

    /// A group where this machine lets one be made.
    ///
    /// # Errors
    /// [`Error::NoGroup`] with the reason.
    pub fn of(limit: Bytes) -> Result<Self, Error> {
        let mut refused = Error::NoGroup("no place".into());
        for place in Place::find(Path::new("/"))? {
            match Self::new(&place, limit) {
                Ok(group) => return Ok(group),
                Err(why) => refused = why,
            }
        }
        Err(refused)
    }

    /// Has a child of this program do `task` inside, with the group's directory and `words`; the
    /// child calls [`enter`] first of all. Returns what it wrote, `None` if the kernel killed it
    /// because memory ran out, and what was counted by then.
    ///
    /// # Errors
    /// If it failed, or took longer than `patience`.
    pub fn ask(
        &self,
        task: &str,
        words: &[&str],
        patience: Duration,
    ) -> Result<(Option<String>, Counters), Error> {
        let dir = self.dir.display().to_string();
        let child = Child::start(task, &[&[dir.as_str()], words].concat())?;
        let ended = child.wait(patience)?;
        let counters = self.counters()?;
        if ended.was_killed() && counters.oom_kills > 0 {
            return Ok((None, counters));
        }
        Ok((Some(ended.answer()?), counters))
    }

    /// Its directory.
    #[cfg(test)]
    pub(super) fn dir(&self) -> &Path {
        &self.dir
    }

    /// The file that says what it holds now.
    #[must_use]
    pub fn usage_file(&self) -> PathBuf {
        self.dir.join(match self.version {
            Version::V1 => "memory.usage_in_bytes",
            Version::V2 => "memory.current",
        })
    }

    /// What the kernel has counted so far.
    ///
    /// # Errors
    /// If a counter cannot be read: to take it for 0 could hide a kill.
    pub fn counters(&self) -> Result<Counters, OsError> {
        let read = |name: &str| {
            let path = self.dir.join(name);
            fs::read_to_string(&path)
                .map_err(|e| OsError::new("read", path.display().to_string(), e))
        };
        let keyed = |name: &str, key: &str| {
            let text = read(name)?;
            let found = value_of(&text, key);
            found.ok_or_else(|| missing(&self.dir.join(name), key))
        };
        let plain = |name: &str| {
            let found = read(name)?.trim().parse().ok();
            found.ok_or_else(|| missing(&self.dir.join(name), "a number"))
        };
        let refaults = value_of(&read("memory.stat")?, "workingset_refault_file").unwrap_or(0);
        Ok(match self.version {
            Version::V1 => Counters {
                usage_bytes: plain("memory.usage_in_bytes")?,
                limit_hits: plain("memory.failcnt")?,
                oom_kills: keyed("memory.oom_control", "oom_kill")?,
                refaults,
            },
            Version::V2 => Counters {
                usage_bytes: plain("memory.current")?,
                limit_hits: keyed("memory.events", "max")?,
                oom_kills: keyed("memory.events", "oom_kill")?,
                refaults,
            },
        })
    }

    /// Processes inside.
    fn members(&self) -> Vec<Pid> {
        let text = fs::read_to_string(self.dir.join("cgroup.procs")).unwrap_or_default();
        let pids = text.lines().filter_map(|line| line.trim().parse().ok());
        pids.filter(|&pid| pid > 1).filter_map(Pid::from_raw).collect()
    }

    fn empty(&self) {
        let deadline = clock::wall() + PATIENCE;
        loop {
            let members = self.members();
            for &pid in &members {
                let _ = kill_process(pid, Signal::KILL);
            }
            if members.is_empty() || clock::wall() > deadline {
                break;
            }
            std::thread::sleep(Duration::from_millis(5));
        }
    }
}

/// In a child, before it has a second thread: puts it into the group at `dir`.
///
/// # Errors
/// If the kernel does not let it in.
pub fn enter(dir: &Path) -> Result<(), OsError> {
    let procs = dir.join("cgroup.procs");
    fs::write(&procs, "0").map_err(|e| OsError::new("write", procs.display().to_string(), e))
}

impl Drop for Group {
    fn drop(&mut self) {
        self.empty();
        if self.version == Version::V1 {
            // Else what it holds of the page cache keeps the group alive, though unseen.
            let _ = fs::write(self.dir.join("memory.force_empty"), "0");
        }
        let deadline = clock::wall() + PATIENCE;
        while let Err(error) = fs::remove_dir(&self.dir) {
            if error.kind() == io::ErrorKind::NotFound {
                break;
            }
            if clock::wall() > deadline {
                let text = format!("left behind: {}: {error}\n", self.dir.display());
                let _ = io::stderr().write_all(text.as_bytes());
                break;
            }
            std::thread::sleep(Duration::from_millis(5));
        }
    }
}

fn missing(path: &Path, what: &str) -> OsError {
    let source = io::Error::new(io::ErrorKind::InvalidData, format!("no {what}"));
    OsError::new("read", path.display().to_string(), source)
}

/// Removes what killed runs have left; a group with anyone inside cannot be removed.
fn sweep(parent: &Path) {
    let Ok(entries) = fs::read_dir(parent) else { return };
    for entry in entries.flatten() {
        let name = entry.file_name();
        let pid = name.to_str().and_then(|name| name.strip_prefix(PREFIX)?.split('-').next());
        let Some(pid) = pid.and_then(|pid| pid.parse::<u32>().ok()) else { continue };
        let made = entry.metadata().and_then(|meta| meta.modified()).ok();
        let old = made.and_then(|at| at.elapsed().ok()).is_some_and(|age| age > STALE_AFTER);
        if old && !Path::new(&format!("/proc/{pid}")).exists() {
            let _ = fs::remove_dir(entry.path());
        }
    }
}
