//! [`LockFile`]: a file that one thread of the machine at a time has locked, and a short record
//! in it.
//!
//! The lock is the process's (`F_SETLK`), so that a forked child does not keep it and the kernel
//! drops it when the process ends. It would also be dropped when the process closed *any*
//! descriptor of the file: a process opens the file once and never closes it, and nothing else
//! opens it. Between threads a word decides, which names the holder and is stale in a forked child.
//!
//! ```text
//! word   generation of the process, 32 bits | thread, 32 bits     0 = nobody
//! ```
//!
//! A waiter asks again and again, at most 20 ms apart, until its patience ends. The refusal names
//! the holder. Source: fcntl(2), "Advisory record locking".
//!
//! # Safety
//! The calls take a descriptor and a local.
#![allow(unsafe_code)]

mod claims;

use std::fs::{File, OpenOptions};
use std::io;
use std::mem::ManuallyDrop;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use crate::error::OsError;
use crate::sync::{List, MappedWord, Ordering};
use crate::sys::fault::point;
use crate::sys::fork::ForkGuard;
use crate::sys::{file, private};

/// The record's longest text.
pub const RECORD_MAX: usize = 1024;
const PAUSE_MIN: Duration = Duration::from_micros(200);
const PAUSE_MAX: Duration = Duration::from_millis(20);
/// No descriptor yet.
const NONE: u64 = u64::MAX;

/// A file to lock: one a path in each process, for as long as the process lives.
#[derive(Debug)]
pub struct LockFile {
    path: PathBuf,
    descriptor: MappedWord,
    holder: MappedWord,
}

/// No lock: a child of a fork meanwhile would wait for ever.
static FILES: List<LockFile> = List::new();

impl LockFile {
    /// The process's lock file at `path`, which is opened when it is first locked.
    pub fn at(path: &Path) -> &'static Self {
        FILES.find_or_add(
            |file| file.path == path,
            || Self {
                path: path.to_owned(),
                descriptor: MappedWord::new(NONE),
                holder: MappedWord::new(0),
            },
        )
    }

    /// The path.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Waits for the lock, `patience` at most. The file is made if it is not there.
    ///
    /// # Errors
    /// [`TimedOut`](io::ErrorKind::TimedOut) with the holder; if the file cannot be opened, is a
    /// symbolic link, or is somebody else's.
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
                let what = format!("held by {holder}, waited for {patience:?}");
                return Err(self.refused("lock", io::Error::new(io::ErrorKind::TimedOut, what)));
            }
            std::thread::sleep(pause.min(left));
            pause = (pause * 2).min(PAUSE_MAX);
        }
    }

    /// The lock, or who has it.
    fn try_lock(&'static self) -> Result<Result<Locked, String>, OsError> {
        let guard = ForkGuard::new();
        let own = guard.generation() << 32 | u64::from(thread());
        let now = self.holder.load(Ordering::Relaxed);
        // What a forked child finds of its parent's threads is no holder.
        if now != 0 && now >> 32 == own >> 32 {
            return Ok(Err(format!("thread {} of this process", now as u32)));
        }
        if self.holder.compare_exchange(now, own, Ordering::Acquire, Ordering::Relaxed).is_err() {
            return Ok(Err("another thread of this process".to_owned()));
        }
        let inside = Inside { file: self, own };
        let file = self.opened()?;
        match point("lock").and_then(|()| set_lock(&file, libc::F_WRLCK, LOCK)) {
            Ok(()) => Ok(Ok(Locked { inside, file, guard })),
            Err(error) if matches!(error.raw_os_error(), Some(libc::EAGAIN | libc::EACCES)) => {
                Ok(Err(holder(&file)))
            }
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {
                Ok(Err("nobody, a signal came".to_owned()))
            }
            Err(source) => Err(self.refused("fcntl", source)),
        }
    }

    /// The one descriptor of the file. It is opened anew where it is no longer that: a program may
    /// close all descriptors when it becomes a daemon, and the file may have been replaced.
    fn opened(&self) -> Result<ManuallyDrop<File>, OsError> {
        let known = self.descriptor.load(Ordering::Acquire);
        if let Ok(descriptor) = i32::try_from(known) {
            // SAFETY: whatever it is now is only looked at, and never closed.
            let file = ManuallyDrop::new(unsafe { OwnedFd::from_raw_fd(descriptor) }.into());
            if self.is_that(&file)? {
                return Ok(file);
            }
        }
        let mut options = OpenOptions::new();
        let file = private::open(&self.path, options.read(true).write(true).create(true))?;
        // Only the holder of the word comes here.
        self.descriptor.store(u64::from(file.as_raw_fd().unsigned_abs()), Ordering::Release);
        Ok(ManuallyDrop::new(file)) // never closed
    }

    fn is_that(&self, file: &File) -> Result<bool, OsError> {
        let open = match file::metadata(file) {
            Err(error) if error.raw_os_error() == Some(libc::EBADF) => return Ok(false),
            open => open.map_err(|source| self.refused("fstat", source))?,
        };
        match file::metadata_of(&self.path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(false),
            Err(source) => Err(self.refused("stat", source)),
            Ok(named) => Ok(open.dev() == named.dev() && open.ino() == named.ino()),
        }
    }

    fn refused(&self, call: &'static str, source: io::Error) -> OsError {
        OsError::new(call, self.path.display().to_string(), source)
    }
}

/// The word of the threads, freed when this is dropped.
#[derive(Debug)]
struct Inside {
    file: &'static LockFile,
    own: u64,
}

impl Drop for Inside {
    fn drop(&mut self) {
        // Not where a forked child drops its parent's: the child may have taken it for itself.
        let (free, failed) = (Ordering::Release, Ordering::Relaxed);
        let _ = self.file.holder.compare_exchange(self.own, 0, free, failed);
    }
}

/// The lock, until this is dropped.
#[derive(Debug)]
pub struct Locked {
    inside: Inside,
    file: ManuallyDrop<File>,
    guard: ForkGuard,
}

impl Locked {
    /// The file's path.
    #[must_use]
    pub fn path(&self) -> &Path {
        self.inside.file.path()
    }

    /// The record; empty if there is none.
    ///
    /// # Errors
    /// If it cannot be read.
    pub fn record(&self) -> Result<Vec<u8>, OsError> {
        let mut bytes = vec![0; RECORD_MAX];
        let read = file::read_some_at(&self.file, &mut bytes, 0);
        let len = read.map_err(|source| self.inside.file.refused("pread", source))?;
        bytes.truncate(len);
        let end = bytes.iter().position(|byte| *byte == 0).unwrap_or(bytes.len());
        bytes.truncate(end);
        Ok(bytes)
    }

    /// Replaces the record, as a whole even where the process is killed meanwhile: the kernel
    /// copies less than a page in one step.
    ///
    /// # Errors
    /// If `text` is longer than [`RECORD_MAX`], or cannot be written.
    pub fn set_record(&self, text: &[u8]) -> Result<(), OsError> {
        let mut bytes = [0; RECORD_MAX];
        let refused = |source| self.inside.file.refused("pwrite", source);
        let Some(place) = bytes.get_mut(..text.len()) else {
            let what = format!("{} bytes, {RECORD_MAX} at most", text.len());
            return Err(refused(io::Error::new(io::ErrorKind::FileTooLarge, what)));
        };
        place.copy_from_slice(text);
        file::write_at(&self.file, &bytes, 0).map_err(refused)
    }
}

impl Drop for Locked {
    fn drop(&mut self) {
        // A forked child has not inherited it, and may have taken it for itself.
        if !self.guard.is_child() {
            // It does not fail for a file that is open.
            let _ = set_lock(&self.file, libc::F_UNLCK, LOCK);
        }
    }
}

/// Some bytes of a file.
#[derive(Clone, Copy)]
struct Span {
    start: i64,
    len: i64,
}

/// The bytes of the lock; behind them are those of claims.
const LOCK: Span = Span { start: 0, len: claims::FIRST };

fn request(kind: libc::c_int, span: Span) -> libc::flock {
    // SAFETY: all zeros is a value.
    let mut request: libc::flock = unsafe { std::mem::zeroed() };
    request.l_type = kind as libc::c_short;
    request.l_whence = libc::SEEK_SET as libc::c_short;
    (request.l_start, request.l_len) = (span.start as libc::off_t, span.len as libc::off_t);
    request
}

fn set_lock(file: &File, kind: libc::c_int, span: Span) -> io::Result<()> {
    let request = request(kind, span);
    // SAFETY: the kernel reads the local.
    match unsafe { libc::fcntl(file.as_raw_fd(), libc::F_SETLK, &raw const request) } {
        -1 => Err(io::Error::last_os_error()),
        _ => Ok(()),
    }
}

/// The process that has a lock of other processes there; 0 where its number cannot be told.
fn get_lock(file: &File, span: Span) -> io::Result<Option<libc::pid_t>> {
    let mut request = request(libc::F_WRLCK, span);
    // SAFETY: the kernel fills the local.
    match unsafe { libc::fcntl(file.as_raw_fd(), libc::F_GETLK, &raw mut request) } {
        -1 => Err(io::Error::last_os_error()),
        _ if libc::c_int::from(request.l_type) == libc::F_UNLCK => Ok(None),
        _ => Ok(Some(request.l_pid)),
    }
}

/// Who has the lock, in words.
fn holder(file: &File) -> String {
    match get_lock(file, LOCK) {
        Err(_) | Ok(None) => "a process that has just freed it".to_owned(),
        Ok(Some(0)) => "a process of another namespace".to_owned(),
        Ok(Some(pid)) => {
            let name = file::read_text(Path::new(&format!("/proc/{pid}/comm")));
            let name = name.map_or_else(|_| String::new(), |name| format!(" ({})", name.trim()));
            format!("process {pid}{name}")
        }
    }
}

fn thread() -> u32 {
    // SAFETY: always succeeds, takes nothing.
    unsafe { libc::gettid() }.unsigned_abs()
}

#[cfg(test)]
mod tests;
