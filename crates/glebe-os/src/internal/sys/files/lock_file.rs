//! [`LockFile`] is a file with a short record that one thread of the machine at a time can lock.
//!
//! The lock is an OFD lock. A forked child closes its copy of the descriptor, so the lock ends with
//! the process. The lock also excludes another copy of this library in the process, and locks of
//! processes (`F_SETLK`). Among the threads of a process, one atomic word decides.
//!
//! ```text
//! word   generation of the process, 32 bits | thread, 32 bits     0 = nobody
//! file   record, up to its first zero byte | at RECORD_MAX: "process namespace" of the holder
//! ```
//!
//! The kernel does not know the holder of an OFD lock, so the file names the holder for errors.
#![allow(unsafe_code)]

mod claims;

use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use crate::error::OsError;
use crate::internal::sync::{List, MappedWord, Ordering};
use crate::internal::sys::files::file;
use crate::internal::sys::files::ofd_lock::{locker, Description};
use crate::internal::sys::files::private;
use crate::internal::sys::processes::fork::ForkGuard;

pub const RECORD_MAX: usize = 1024;
const PAUSE_MIN: Duration = Duration::from_micros(200);
const PAUSE_MAX: Duration = Duration::from_millis(20);
const BYTE: u64 = 0;

/// A process has one `LockFile` per path.
#[derive(Debug)]
pub struct LockFile {
    path: PathBuf,
    holder: MappedWord,
    claim: MappedWord,
}

/// A lock-free list, because a forked child could wait for a lock for ever.
static FILES: List<LockFile> = List::new();

impl LockFile {
    pub fn at(path: &Path) -> &'static Self {
        FILES.find_or_add(|file| file.path == path, || Self::new(path))
    }

    fn new(path: &Path) -> Self {
        Self { path: path.to_owned(), holder: MappedWord::new(0), claim: MappedWord::new(0) }
    }

    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Locks the file, and creates a missing one. After `patience`, fails with
    /// [`TimedOut`](io::ErrorKind::TimedOut) and names the holder.
    pub fn lock(&'static self, patience: Duration) -> Result<Locked, OsError> {
        let begin = Instant::now();
        let mut pause = PAUSE_MIN;
        loop {
            let holder = match self.try_lock()? {
                Ok(locked) => return Ok(locked),
                Err(holder) => holder,
            };
            let left = patience.saturating_sub(begin.elapsed());
            if left.is_zero() {
                let what = match patience.is_zero() {
                    true => format!("held by {holder}"),
                    false => format!("held by {holder}, waited for {patience:?}"),
                };
                return Err(self.refused("lock", io::Error::new(io::ErrorKind::TimedOut, what)));
            }
            std::thread::sleep(pause.min(left));
            pause = (pause * 2).min(PAUSE_MAX);
        }
    }

    /// The inner error names the holder.
    fn try_lock(&'static self) -> Result<Result<Locked, String>, OsError> {
        let guard = ForkGuard::new();
        let own = guard.generation() << 32 | u64::from(thread());
        let now = self.holder.load(Ordering::Relaxed);
        // In a forked child the word may name a thread of the parent, which does not count.
        if now != 0 && now >> 32 == own >> 32 {
            return Ok(Err(format!("thread {} of this process", now as u32)));
        }
        if self.holder.compare_exchange(now, own, Ordering::Acquire, Ordering::Relaxed).is_err() {
            return Ok(Err("another thread of this process".to_owned()));
        }
        let inside = Inside { file: self, own };
        let description = Description::open_anyway(|| self.opened())?;
        if !description.try_lock(BYTE)? {
            return Ok(Err(holder(description.file())));
        }
        note_holder(description.file());
        Ok(Ok(Locked { description, inside, guard }))
    }

    fn opened(&self) -> Result<File, OsError> {
        private::open(&self.path, OpenOptions::new().read(true).write(true).create(true))
    }

    fn refused(&self, call: &'static str, source: io::Error) -> OsError {
        OsError::new(call, self.path.display().to_string(), source)
    }
}

#[derive(Debug)]
struct Inside {
    file: &'static LockFile,
    own: u64,
}

impl Drop for Inside {
    fn drop(&mut self) {
        // Frees the word only if it still names this holder: a forked child that drops its parent's
        // `Inside` may have locked the file itself.
        let (free, failed) = (Ordering::Release, Ordering::Relaxed);
        let _ = self.file.holder.compare_exchange(self.own, 0, free, failed);
    }
}

#[derive(Debug)]
pub struct Locked {
    // Declared first, so that the file closes before `inside` frees the holder's word.
    description: Description,
    inside: Inside,
    guard: ForkGuard,
}

impl Locked {
    #[must_use]
    pub fn path(&self) -> &Path {
        self.inside.file.path()
    }

    pub fn record(&self) -> Result<Vec<u8>, OsError> {
        let mut bytes = vec![0; RECORD_MAX];
        let read = file::read_some_at(self.description.file(), &mut bytes, 0);
        let len = read.map_err(|source| self.inside.file.refused("pread", source))?;
        bytes.truncate(len);
        let end = bytes.iter().position(|byte| *byte == 0).unwrap_or(bytes.len());
        bytes.truncate(end);
        Ok(bytes)
    }

    /// Replaces the record. A kill leaves the old or the new record, because the kernel copies less
    /// than a page in one step.
    pub fn set_record(&self, text: &[u8]) -> Result<(), OsError> {
        let mut bytes = [0; RECORD_MAX];
        let refused = |source| self.inside.file.refused("pwrite", source);
        let Some(place) = bytes.get_mut(..text.len()) else {
            let what = format!("{} bytes, {RECORD_MAX} at most", text.len());
            return Err(refused(io::Error::new(io::ErrorKind::FileTooLarge, what)));
        };
        place.copy_from_slice(text);
        file::write_at(self.description.file(), &bytes, 0).map_err(refused)
    }
}

impl Drop for Locked {
    fn drop(&mut self) {
        // A close alone would keep the lock if another process has a copy of the descriptor. A
        // child must leave its parent's lock alone.
        if !self.guard.is_child() {
            self.description.unlock(BYTE);
        }
    }
}

const OF_ANOTHER_NAMESPACE: &str = "a process of another namespace";

fn holder(file: &File) -> String {
    match locker(file, BYTE..BYTE + 1) {
        Err(_) | Ok(None) => "a process that has just freed it".to_owned(),
        Ok(Some(0)) => OF_ANOTHER_NAMESPACE.to_owned(),
        Ok(Some(pid)) if pid > 0 => named(pid.unsigned_abs()),
        Ok(Some(_)) => match noted_holder(file) {
            None => "another process".to_owned(),
            Some((_, of)) if of != namespace() => OF_ANOTHER_NAMESPACE.to_owned(),
            Some((pid, _)) if pid == std::process::id() => {
                "another copy of glebe in this process".to_owned()
            }
            Some((pid, _)) => named(pid),
        },
    }
}

fn named(pid: u32) -> String {
    let name = file::read_text(Path::new(&format!("/proc/{pid}/comm")));
    let name = name.map_or_else(|_| String::new(), |name| format!(" ({})", name.trim()));
    format!("process {pid}{name}")
}

const NOTE_MAX: usize = 32;

fn note_holder(file: &File) {
    let mut note = [0; NOTE_MAX];
    let text = format!("{} {}\n", std::process::id(), namespace());
    let len = text.len().min(NOTE_MAX);
    note[..len].copy_from_slice(&text.as_bytes()[..len]);
    let _ = file::write_at(file, &note, RECORD_MAX as u64);
}

fn noted_holder(file: &File) -> Option<(u32, u64)> {
    let mut note = [0; NOTE_MAX];
    let len = file::read_some_at(file, &mut note, RECORD_MAX as u64).ok()?;
    let (process, rest) = std::str::from_utf8(&note[..len]).ok()?.split_once(' ')?;
    Some((process.parse().ok()?, rest.split_once('\n')?.0.parse().ok()?))
}

fn namespace() -> u64 {
    file::metadata_of(Path::new("/proc/self/ns/pid")).map_or(0, |of| of.ino())
}

fn thread() -> u32 {
    // SAFETY: the call takes no argument.
    unsafe { libc::gettid() }.unsigned_abs()
}

#[cfg(test)]
mod tests;
