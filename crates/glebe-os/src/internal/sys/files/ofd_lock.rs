//! [`Description`] and [`Tied`] lock bytes of a file through an *open file description* (OFD). The
//! kernel ends a lock when the last descriptor and mapping of the description are gone.
//!
//! A [`Description`] holds its locks until it is dropped; a forked child closes its copy. A
//! [`Tied`] lock is held by a mapping that forked children do not inherit, so the lock ends with
//! this process's memory.
//!
//! The bytes may lie beyond the file's end. Two descriptions in one process exclude each other, and
//! closing another descriptor ends no lock. Forks wait while a file is opened. Source: fcntl(2),
//! fcntl_locking(2), mmap(2).
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

#[derive(Debug)]
pub struct Description {
    // Declared first, so that it drops before the descriptor closes.
    _parents: Parents,
    file: File,
}

impl Description {
    /// Opens the file of `of` again, for reading and writing; needs `/proc/self/fd`.
    pub fn reopen(of: &File) -> Result<Self, OsError> {
        Parents::follow_forks()?;
        Self::open_anyway(|| open_anew(of))
    }

    /// Opens a file. If `follow_forks` fails, a forked child shares the description.
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

    /// Returns false if a process or another description has the lock.
    pub fn try_lock(&self, byte: u64) -> Result<bool, OsError> {
        try_lock(&self.file, byte)
    }

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
    /// memory, the lock ends with the description.
    pub fn unlock(&self, byte: u64) {
        unlock(&self.file, byte);
    }
}

#[derive(Debug)]
pub struct Tied {
    addr: usize,
    guard: ForkGuard,
}

impl Tied {
    /// Returns `None` if the byte is locked.
    pub fn try_take(of: &File, byte: u64) -> Result<Option<Self>, OsError> {
        Parents::follow_forks()?;
        Self::try_take_anyway(|| open_anew(of), byte)
    }

    /// Returns `None` if the byte is locked. If `follow_forks` fails, a child forked during
    /// the call shares the lock.
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
            // A failed call may leave a mapping, which would keep the lock.
            let addr = mapped.inspect_err(|_| unlock(&file, byte))?;
            Ok(Some(Self { addr, guard: ForkGuard::new() }))
        })
    }

    pub fn keep(self) {
        std::mem::forget(self);
    }

    #[inline]
    pub fn is_inherited(&self) -> bool {
        self.guard.is_child()
    }
}

impl Drop for Tied {
    fn drop(&mut self) {
        if !self.guard.is_child() {
            // SAFETY: only this value uses the mapping.
            let _ = unsafe { unmap(self.addr, page_size().bytes()) };
        }
    }
}

pub fn is_locked(file: &File, bytes: Range<u64>) -> Result<bool, OsError> {
    Ok(locker(file, bytes)?.is_some())
}

/// Returns the process that has locked one of these bytes, if any: -1 for a description, 0 for a
/// process of another PID namespace.
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
