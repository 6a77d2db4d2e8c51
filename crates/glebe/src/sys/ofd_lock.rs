//! Locks on bytes of a file that belong to an *open file description*: the kernel ends one when the
//! last descriptor and the last mapping of its description are gone, however the process ends.
//!
//! Two owners. A [`Description`] is opened for its locks and holds them until it is dropped; a
//! forked child loses it. A [`Tied`] lock is held by nothing but a mapping that fork
//! does not pass on: it ends exactly when this process's memory does, whatever children live.
//!
//! The bytes need not exist. Two descriptions exclude each other in one process too, and no close
//! of another descriptor of the file ends a lock. Opening anew goes through `/proc/self/fd`. Cost:
//! some system calls. No lock of this crate is held, but the fork lock while something is opened.
//! Source: fcntl(2), "Open file description locks"; fcntl_locking(2); mmap(2).
//!
//! # Safety
//! Descriptors are open for as long as their `File`. A mapping made here cannot be touched, is
//! nobody else's, and is unmapped by the process that made it alone.
#![allow(unsafe_code)]

use std::fs::{File, OpenOptions};
use std::io;
use std::ops::Range;
use std::os::fd::AsRawFd;
use std::os::unix::fs::OpenOptionsExt;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use crate::error::OsError;
use crate::sync::Backoff;
use crate::sys::call::answer;
use crate::sys::fault::point;
use crate::sys::fork::ForkGuard;
use crate::sys::memfd::parents::Parents;
use crate::sys::mmap::{map_unreadable, unmap};
use crate::sys::{atfork, file, page_size};

/// A description of a file, of this process alone.
#[derive(Debug)]
pub(crate) struct Description {
    // Before the descriptor, which is closed then.
    _parents: Parents,
    file: File,
}

impl Description {
    /// Opens the file of a descriptor anew, to read and write.
    ///
    /// # Errors
    /// What open(2) refuses: no `/proc`, no descriptor left, a file that this user may not write.
    pub(crate) fn reopen(of: &File) -> Result<Self, OsError> {
        Parents::follow_forks()?;
        Self::open_anyway(|| open_anew(of))
    }

    /// Opens a file by `open`, also where forks of this process cannot be followed. A child then
    /// has the description too, until it ends.
    ///
    /// # Errors
    /// If `open` fails.
    pub(crate) fn open_anyway(
        open: impl FnOnce() -> Result<File, OsError>,
    ) -> Result<Self, OsError> {
        let _ = Parents::follow_forks();
        atfork::without_forks(|| {
            let file = open()?;
            Ok(Self { _parents: Parents::note_unforked(file.as_raw_fd()), file })
        })
    }

    /// The file, for as long as the description is open.
    pub(crate) fn file(&self) -> &File {
        &self.file
    }

    /// Locks a byte, if nobody else has.
    ///
    /// # Errors
    /// What fcntl(2) refuses.
    pub(crate) fn try_lock(&self, byte: u64) -> Result<bool, OsError> {
        try_lock(&self.file, byte)
    }

    /// Locks a byte, and waits for it no longer than `patience`; whether it has it.
    ///
    /// # Errors
    /// What fcntl(2) refuses.
    pub(crate) fn lock(&self, byte: u64, patience: Duration) -> Result<bool, OsError> {
        let (begin, mut backoff) = (Instant::now(), Backoff::default());
        while !self.try_lock(byte)? {
            if begin.elapsed() >= patience {
                return Ok(false);
            }
            backoff.wait();
        }
        Ok(true)
    }

    /// Unlocks a byte, also for a process that has a copy of the descriptor. Where the kernel has
    /// no memory for the request, the lock ends with the description.
    pub(crate) fn unlock(&self, byte: u64) {
        unlock(&self.file, byte);
    }
}

/// A locked byte that is this process's until it drops this or ends.
#[derive(Debug)]
pub(crate) struct Tied {
    addr: usize,
    guard: ForkGuard,
}

impl Tied {
    /// Locks a byte, if nobody has.
    ///
    /// # Errors
    /// As [`Description::reopen`]; what fcntl(2), mmap(2) or madvise(2) refuses.
    pub(crate) fn try_take(of: &File, byte: u64) -> Result<Option<Self>, OsError> {
        Parents::follow_forks()?;
        Self::try_take_anyway(|| open_anew(of), byte)
    }

    /// Locks a byte of the file that `open` opens, if nobody has, also where forks of this process
    /// cannot be followed. A child that another thread forks meanwhile then has the lock too, until
    /// it ends.
    ///
    /// # Errors
    /// If `open`, fcntl(2), mmap(2) or madvise(2) fails.
    pub(crate) fn try_take_anyway(
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
            // The kernel may keep the mapping, and so the lock, where it refuses one of its calls.
            let addr = mapped.inspect_err(|_| unlock(&file, byte))?;
            Ok(Some(Self { addr, guard: ForkGuard::new() }))
        })
    }

    /// Keeps the lock until this process ends.
    pub(crate) fn keep(self) {
        std::mem::forget(self);
    }

    /// Whether this process is one that was forked from the lock's.
    #[inline]
    pub(crate) fn is_inherited(&self) -> bool {
        self.guard.is_child()
    }
}

impl Drop for Tied {
    fn drop(&mut self) {
        if !self.guard.is_child() {
            // SAFETY: mapped by `try_take_anyway`, for nothing but this.
            let _ = unsafe { unmap(self.addr, page_size().bytes()) };
        }
    }
}

/// Returns whether some description, of any process, has a lock on one of these bytes. A lock of
/// `file` itself is not seen.
///
/// # Errors
/// What fcntl(2) refuses.
pub(crate) fn is_locked(file: &File, bytes: Range<u64>) -> Result<bool, OsError> {
    Ok(locker(file, bytes)?.is_some())
}

/// Returns the number of a process that has a lock on one of these bytes: -1 where the lock belongs
/// to a description, 0 where the number means nothing in this namespace.
///
/// # Errors
/// What fcntl(2) refuses.
pub(crate) fn locker(file: &File, bytes: Range<u64>) -> Result<Option<libc::pid_t>, OsError> {
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
    // SAFETY: all zeros is a value, and its process must be 0 here.
    let mut request: libc::flock = unsafe { std::mem::zeroed() };
    request.l_type = kind as libc::c_short;
    request.l_whence = libc::SEEK_SET as libc::c_short;
    request.l_start = bytes.start as libc::off_t;
    request.l_len = (bytes.end - bytes.start) as libc::off_t;
    request
}

#[cfg(test)]
mod tests;
