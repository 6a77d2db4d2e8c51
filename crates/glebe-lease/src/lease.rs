//! [`Lease`] is memory of the daemon, mapped side by side.

use std::fs::File;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;
use std::time::Duration;

use crate::connection::Connection;
use crate::error::LeaseError;
use crate::guard::Guard;
use crate::wire::{Answer, Request};
use glebe_os::internal::mapping::Mapping;
use glebe_os::units::{Bytes, PageSize};

/// Physically contiguous bytes of a lease.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LeaseRun {
    /// Offset in the lease.
    pub offset: Bytes,
    /// Length.
    pub len: Bytes,
    /// Physical address of the first byte, if visible.
    pub physical: Option<u64>,
}

/// Memory that the daemon lends until the lease is dropped, or its process ends.
///
/// The memory is zeroed, populated and shared with forked children. The daemon can take back a
/// [revocable](crate::Flags::revocable) lease. Touches of it then find zeros, and calls return
/// [`LeaseError::Revoked`].
#[derive(Debug)]
pub struct Lease {
    /// Dropped before the memory.
    guard: Guard,
    memory: Mapping,
    files: Vec<File>,
    frames: Vec<Option<u64>>,
    page: PageSize,
    /// Dropped last: the daemon gets the same frames again only of memory that nobody has mapped.
    held: Number,
}

/// The lease's number. The drop releases the lease.
#[derive(Debug)]
struct Number {
    number: u64,
    connection: Arc<Connection>,
}

/// The daemon's answers for a lease.
#[derive(Debug)]
pub(crate) struct Received {
    pub(crate) number: u64,
    pub(crate) bytes: Bytes,
    pub(crate) file: Bytes,
    pub(crate) page: PageSize,
    pub(crate) files: Vec<File>,
    pub(crate) frames: Vec<u64>,
}

impl Lease {
    pub(crate) fn map(got: Received, connection: Arc<Connection>) -> Result<Self, LeaseError> {
        let Received { number, file, page, files, frames, .. } = got;
        let held = Number { number, connection };
        let memory = Mapping::of_files(files.iter(), file, page)?;
        let guard = Guard::new(&memory, memory.len())?;
        memory.populate(Bytes::ZERO, memory.len())?;
        let frames = frames.into_iter().map(|frame| (frame != u64::MAX).then_some(frame));
        let frames = frames.collect();
        Ok(Self { guard, memory, files, frames, page, held })
    }

    /// Returns the length in bytes.
    #[must_use]
    pub fn len(&self) -> Bytes {
        self.memory.len()
    }

    /// Returns the lease's number in lists.
    #[must_use]
    pub fn number(&self) -> u64 {
        self.held.number
    }

    /// Returns the address of the first byte, to hand to a device or library. Nobody may hold a
    /// Rust reference to the bytes, because other processes may change them.
    #[must_use]
    pub fn as_ptr(&self) -> *mut u8 {
        self.memory.as_ptr()
    }

    /// Returns the files, each of [`len`](Lease::len) / count bytes, for a process that shall share
    /// the memory.
    pub fn files(&self) -> impl ExactSizeIterator<Item = BorrowedFd<'_>> {
        self.files.iter().map(AsFd::as_fd)
    }

    /// Returns the physical runs as the daemon saw them.
    #[must_use]
    pub fn runs(&self) -> Vec<LeaseRun> {
        let (page, base) = (self.page.bytes(), glebe_os::page_size().bytes().get());
        let mut runs: Vec<LeaseRun> = Vec::new();
        let mut offset = Bytes::ZERO;
        for frame in &self.frames {
            let physical = frame.and_then(|frame| frame.checked_mul(base));
            match runs.last_mut() {
                Some(last)
                    if physical.is_some()
                        && last.physical.map(|at| at + last.len.get()) == physical =>
                {
                    last.len = last.len + page;
                }
                _ => runs.push(LeaseRun { offset, len: page, physical }),
            }
            offset = offset + page;
        }
        runs
    }

    /// Copies bytes out.
    ///
    /// # Errors
    /// [`LeaseError::Beyond`], [`LeaseError::Revoked`].
    pub fn read(&self, offset: Bytes, bytes: &mut [u8]) -> Result<(), LeaseError> {
        self.check(offset, bytes.len())?;
        self.memory.read(offset, bytes);
        self.check_kept()
    }

    /// Copies bytes in.
    ///
    /// # Errors
    /// [`LeaseError::Beyond`], [`LeaseError::Revoked`].
    pub fn write(&self, offset: Bytes, bytes: &[u8]) -> Result<(), LeaseError> {
        self.check(offset, bytes.len())?;
        self.memory.write(offset, bytes);
        self.check_kept()
    }

    /// Waits until the daemon asks for the memory, at most for `wait`. Returns how long the lease
    /// may still be used; `None` if the daemon did not ask.
    ///
    /// # Errors
    /// [`LeaseError::Revoked`], or a failed connection.
    pub fn recalled(&self, wait: Duration) -> Result<Option<Duration>, LeaseError> {
        match self.held.connection.event(self.held.number, wait)? {
            Some(Answer::Recall { milliseconds }) => Ok(Some(Duration::from_millis(milliseconds))),
            Some(_) => {
                self.guard.set_revoked();
                Err(LeaseError::Revoked)
            }
            None => self.check_kept().map(|()| None),
        }
    }

    fn check(&self, offset: Bytes, len: usize) -> Result<(), LeaseError> {
        let lease = self.memory.len();
        let end = offset.checked_add(Bytes::new(len as u64));
        match end.is_some_and(|end| end <= lease) {
            true => self.check_kept(),
            false => Err(LeaseError::Beyond { offset, len, lease }),
        }
    }

    fn check_kept(&self) -> Result<(), LeaseError> {
        match self.guard.is_revoked() {
            true => Err(LeaseError::Revoked),
            false => Ok(()),
        }
    }
}

impl Drop for Number {
    fn drop(&mut self) {
        // If the daemon has ended, the memory ends with the files and the mapping.
        let _ = self.connection.tell(self.number, Request::Release);
    }
}
