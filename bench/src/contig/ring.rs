//! [`Direct`]: memory registered with an io_uring, and reads and writes of a file between it and
//! the device, past the page cache.
//!
//! Every request of a batch is waited for before the call returns. Units: bytes; microseconds.
//! Source: io_uring_register(2), io_uring_enter(2), open(2).
//!
//! # Safety
//! The ring names places of a [`Memory`] that lives as long as the ring and is checked for each
//! request; while requests run, the memory is borrowed exclusively. A ring that is dropped with a
//! request under way (a batch that failed) leaves the pages to the kernel, which holds them itself.
#![allow(unsafe_code)]

use std::fmt;
use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;

use glebe::error::OsError;
use glebe::units::Bytes;
use io_uring::{opcode, types, IoUring};

use super::memory::Memory;
use crate::clock::{Elapsed, Stopwatch};

/// Requests that run at once.
const DEPTH: usize = 8;
/// The most that the kernel takes as one buffer.
pub(super) const BUFFER_MAX: Bytes = Bytes::gib(1);

/// Which way bytes go.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Way {
    /// From the file.
    Read,
    /// To the file.
    Write,
}

impl fmt::Display for Way {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Read => "read into",
            Self::Write => "write out of",
        })
    }
}

/// A place in the memory and one in the file.
#[derive(Clone, Copy, Debug)]
pub(super) struct Place {
    pub(super) memory: usize,
    pub(super) file: u64,
}

/// Registered memory.
pub(super) struct Direct {
    // In this order: the ring names the memory.
    ring: IoUring,
    memory: Memory,
    registered: Elapsed,
}

impl Direct {
    /// Registers all of `memory`, at most [`BUFFER_MAX`], as one buffer.
    ///
    /// # Errors
    /// Why not: no io_uring for this process, or its limit on locked memory.
    pub(super) fn register(mut memory: Memory) -> Result<Self, OsError> {
        let refused = |call, source| OsError::new(call, "a ring", source);
        let ring = IoUring::new(DEPTH as u32).map_err(|e| refused("io_uring_setup", e))?;
        let bytes = memory.bytes_mut();
        let iovec = libc::iovec { iov_base: bytes.as_mut_ptr().cast(), iov_len: bytes.len() };
        let watch = Stopwatch::start();
        // SAFETY: the memory lives in the same structure as the ring and is dropped after it.
        unsafe { ring.submitter().register_buffers(&[iovec]) }
            .map_err(|e| refused("io_uring_register", e))?;
        let registered = watch.elapsed();
        Ok(Self { ring, memory, registered })
    }

    /// What the registration took.
    pub(super) fn registered(&self) -> Elapsed {
        self.registered
    }

    /// Its memory.
    pub(super) fn memory(&mut self) -> &mut Memory {
        &mut self.memory
    }

    /// Moves `len` bytes for each of `places`, [`DEPTH`] at a time.
    ///
    /// # Errors
    /// What the kernel refuses, or fewer bytes than asked for.
    ///
    /// # Panics
    /// If a place is not inside the memory.
    pub(super) fn transfer(
        &mut self,
        file: &File,
        way: Way,
        places: &[Place],
        len: u32,
    ) -> Result<(), OsError> {
        for batch in places.chunks(DEPTH) {
            self.batch(file, way, batch, len)?;
        }
        Ok(())
    }

    fn batch(&mut self, file: &File, way: Way, batch: &[Place], len: u32) -> Result<(), OsError> {
        let fd = types::Fd(file.as_raw_fd());
        for place in batch {
            let at = self.memory.bytes_mut()[place.memory..][..len as usize].as_mut_ptr();
            let entry = match way {
                Way::Read => opcode::ReadFixed::new(fd, at, len, 0).offset(place.file).build(),
                Way::Write => opcode::WriteFixed::new(fd, at, len, 0).offset(place.file).build(),
            };
            // SAFETY: the slice above is inside the registered memory, which nobody can touch
            // before the batch has ended: this borrows it exclusively.
            let pushed = unsafe { self.ring.submission().push(&entry) };
            pushed.map_err(|e| failed(way, io::Error::other(e.to_string())))?;
        }
        let mut left = batch.len();
        let mut wrong = None;
        while left > 0 {
            match self.ring.submit_and_wait(left) {
                Err(e) if e.kind() != io::ErrorKind::Interrupted => return Err(failed(way, e)),
                _ => {}
            }
            for ended in self.ring.completion() {
                left -= 1;
                match ended.result() {
                    moved if moved == len as i32 => {}
                    moved if moved < 0 => wrong = Some(io::Error::from_raw_os_error(-moved)),
                    moved => wrong = Some(io::Error::other(format!("{moved} of {len} bytes"))),
                }
            }
        }
        wrong.map_or(Ok(()), |e| Err(failed(way, e)))
    }
}

impl Drop for Direct {
    fn drop(&mut self) {
        // At once; closing the ring would do it some time later. Nothing is under way.
        let _ = self.ring.submitter().unregister_buffers();
    }
}

fn failed(way: Way, source: io::Error) -> OsError {
    OsError::new("io_uring_enter", format!("{way} a registered buffer"), source)
}

/// Has reads and writes of `file` pass the page cache by.
///
/// # Errors
/// If its file system has no such thing.
pub(super) fn bypass_cache(file: &File) -> Result<(), OsError> {
    let refused = || OsError::new("fcntl", "O_DIRECT", io::Error::last_os_error());
    // SAFETY: no pointer; the descriptor is open.
    let flags = unsafe { libc::fcntl(file.as_raw_fd(), libc::F_GETFL) };
    if flags < 0 {
        return Err(refused());
    }
    // SAFETY: as above.
    match unsafe { libc::fcntl(file.as_raw_fd(), libc::F_SETFL, flags | libc::O_DIRECT) } {
        0 => Ok(()),
        _ => Err(refused()),
    }
}
