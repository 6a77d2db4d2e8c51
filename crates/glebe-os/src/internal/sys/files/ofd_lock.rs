//! Locks bytes of a file through an *open file description* (OFD). The kernel ends a lock when the
//! last descriptor and the last mapping of its description are gone, however the process ends.
//!
//! A [`Description`] holds its locks until it is dropped; a forked child loses it. A [`Tied`] lock
//! is held only by a mapping that fork does not pass on: it ends exactly when this process's memory
//! does, even if children live on.
//!
//! The bytes need not exist. Two descriptions in one process exclude each other, and closing
//! another descriptor of the file ends no lock. Opening anew needs `/proc/self/fd`. Cost: some
//! system calls. Locks: only the fork lock, while a file is opened.
//! Source: fcntl(2), "Open file description locks"; fcntl_locking(2); mmap(2).
//!
//! # Safety
//! A `File` keeps its descriptor open. A mapping made here has no access and no other user; only
//! the process that made it unmaps it.
#![allow(unsafe_code)]

use std::fs::{File, OpenOptions};
use std::io;
use std::ops::Range;
use std::os::fd::AsRawFd;
use std::os::unix::fs::OpenOptionsExt;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use crate::error::OsError;
use crate::internal::sync::Backoff;
use crate::internal::sys::call::answer;
use crate::internal::sys::fault::point;
use crate::internal::sys::files::file;
use crate::internal::sys::memory::memfd::parents::Parents;
use crate::internal::sys::memory::mmap::{map_unreadable, unmap};
use crate::internal::sys::page_size;
use crate::internal::sys::processes::atfork;
use crate::internal::sys::processes::fork::ForkGuard;

/// A description of a file, for this process alone.
#[derive(Debug)]
pub struct Description {
    // First: dropped before the descriptor is closed.
    _parents: Parents,
    file: File,
}

impl Description {
    /// Opens the file of a descriptor anew, for reading and writing.
    ///
    /// # Errors
    /// If open(2) fails: no `/proc`, no free descriptor, no permission to write.
    pub fn reopen(of: &File) -> Result<Self, OsError> {
        Parents::follow_forks()?;
        Self::open_anyway(|| open_anew(of))
    }

    /// Opens a file with `open`. If forks cannot be followed, a child has the description too,
    /// until it ends.
    ///
    /// # Errors
    /// If `open` fails.
    pub fn open_anyway(open: impl FnOnce() -> Result<File, OsError>) -> Result<Self, OsError> {
        let _ = Parents::follow_forks();
        atfork::without_forks(|| {
            let file = open()?;
            Ok(Self { _parents: Parents::note_unforked(file.as_raw_fd()), file })
        })
    }

    pub fn file(&self) -> &File {
        &self.file
    }

    /// Locks a byte. Returns false if another description has it.
    ///
    /// # Errors
    /// If fcntl(2) fails.
    pub fn try_lock(&self, byte: u64) -> Result<bool, OsError> {
        try_lock(&self.file, byte)
    }

    /// Locks a byte, waiting at most `patience`. Returns false if another description has it.
    ///
    /// # Errors
    /// If fcntl(2) fails.
    pub fn lock(&self, byte: u64, patience: Duration) -> Result<bool, OsError> {
        let (begin, mut backoff) = (Instant::now(), Backoff::default());
        while !self.try_lock(byte)? {
            if begin.elapsed() >= patience {
                return Ok(false);
            }
            backoff.wait();
        }
        Ok(true)
    }

    /// Unlocks a byte, even if another process has a copy of the descriptor. If the kernel has no
    /// memory for the request, the lock ends with the description.
    pub fn unlock(&self, byte: u64) {
        unlock(&self.file, byte);
    }
}

/// A locked byte, until this is dropped or the process ends.
#[derive(Debug)]
pub struct Tied {
    addr: usize,
    guard: ForkGuard,
}

impl Tied {
    /// Locks a byte; `None` if it is already locked.
    ///
    /// # Errors
    /// See [`Description::reopen`]; or if fcntl(2), mmap(2) or madvise(2) fails.
    pub fn try_take(of: &File, byte: u64) -> Result<Option<Self>, OsError> {
        Parents::follow_forks()?;
        Self::try_take_anyway(|| open_anew(of), byte)
    }

    /// Locks a byte of the file that `open` opens; `None` if it is already locked. If forks cannot
    /// be followed, a child that another thread forks meanwhile has the lock too, until it ends.
    ///
    /// # Errors
    /// If `open`, fcntl(2), mmap(2) or madvise(2) fails.
    pub fn try_take_anyway(
        open: impl FnOnce() -> Result<File, OsError>,
        byte: u64,
    ) -> Result<Option<Self>, OsError> {
        let _ = Parents::follow_forks();
        atfork::without_forks(|| {
            let file = open()?;
            if !try_lock(&file, byte)? {
                return Ok(None);
            }
            let mapped = map_unreadable(&file, page_size().bytes());
            // After a failed call the kernel may keep the mapping, and so the lock.
            let addr = mapped.inspect_err(|_| unlock(&file, byte))?;
            Ok(Some(Self { addr, guard: ForkGuard::new() }))
        })
    }

    pub fn keep(self) {
        std::mem::forget(self);
    }

    /// Returns true in a forked child of the lock's process.
    #[inline]
    pub fn is_inherited(&self) -> bool {
        self.guard.is_child()
    }
}

impl Drop for Tied {
    fn drop(&mut self) {
        if !self.guard.is_child() {
            // SAFETY: `try_take_anyway` made the mapping for this value only.
            let _ = unsafe { unmap(self.addr, page_size().bytes()) };
        }
    }
}

/// Returns true if another description, of any process, has locked one of these bytes.
///
/// # Errors
/// If fcntl(2) fails.
pub fn is_locked(file: &File, bytes: Range<u64>) -> Result<bool, OsError> {
    Ok(locker(file, bytes)?.is_some())
}

/// Returns the process that has locked one of these bytes: -1 if a description has, 0 if the
/// process is not in this PID namespace.
///
/// # Errors
/// If fcntl(2) fails.
pub fn locker(file: &File, bytes: Range<u64>) -> Result<Option<libc::pid_t>, OsError> {
    let mut request = request(libc::F_WRLCK, bytes);
    // SAFETY: the kernel fills the local.
    let told = answer("fcntl", || unsafe {
        libc::fcntl(file.as_raw_fd(), libc::F_OFD_GETLK, &raw mut request)
    });
    told.map_err(|source| OsError::new("fcntl", "F_OFD_GETLK", source))?;
    let is_locked = libc::c_int::from(request.l_type) != libc::F_UNLCK;
    Ok(is_locked.then_some(request.l_pid))
}

fn open_anew(of: &File) -> Result<File, OsError> {
    let path = PathBuf::from(format!("/proc/self/fd/{}", of.as_raw_fd()));
    let mut options = OpenOptions::new();
    options.read(true).write(true).custom_flags(libc::O_CLOEXEC | libc::O_NONBLOCK);
    let opened = file::open(&path, &options);
    opened.map_err(|source| OsError::new("open", path.display().to_string(), source))
}

fn try_lock(file: &File, byte: u64) -> Result<bool, OsError> {
    let request = request(libc::F_WRLCK, byte..byte + 1);
    // SAFETY: the kernel reads the local.
    let set = || unsafe { libc::fcntl(file.as_raw_fd(), libc::F_OFD_SETLK, &raw const request) };
    loop {
        let done = point("lock").and_then(|()| match set() {
            -1 => Err(io::Error::last_os_error()),
            _ => Ok(()),
        });
        return match done {
            Ok(()) => Ok(true),
            Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
            Err(error) if matches!(error.raw_os_error(), Some(libc::EAGAIN | libc::EACCES)) => {
                Ok(false)
            }
            Err(source) => Err(OsError::new("fcntl", "F_OFD_SETLK", source)),
        };
    }
}

fn unlock(file: &File, byte: u64) {
    let request = request(libc::F_UNLCK, byte..byte + 1);
    let _ = answer("unlock", || {
        // SAFETY: the kernel reads the local.
        unsafe { libc::fcntl(file.as_raw_fd(), libc::F_OFD_SETLK, &raw const request) }
    });
}

fn request(kind: libc::c_int, bytes: Range<u64>) -> libc::flock {
    // SAFETY: zeros are valid. OFD locks require `l_pid` to be 0.
    let mut request: libc::flock = unsafe { std::mem::zeroed() };
    request.l_type = kind as libc::c_short;
    request.l_whence = libc::SEEK_SET as libc::c_short;
    request.l_start = bytes.start as libc::off_t;
    request.l_len = (bytes.end - bytes.start) as libc::off_t;
    request
}

#[cfg(test)]
mod tests;
