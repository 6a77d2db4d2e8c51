//! [`Epoll`]: one descriptor that is readable while any of several has something to tell.
//!
//! Source: epoll(7), epoll_ctl(2).
//!
//! # Safety
//! Descriptors that the kernel has just made are wrapped once; the others are borrowed for the
//! call, and the kernel forgets each when it is closed.
#![allow(unsafe_code)]

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};
use std::time::Duration;

use super::call::{answer, call};
use crate::error::OsError;

/// What of a descriptor wakes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Wakes {
    /// That it can be read.
    Readable,
    /// What the kernel calls urgent: a file of its own that changed.
    Urgent,
}

/// Descriptors that one wait tells of, at most.
const TOLD: usize = 8;

/// A descriptor that has something to tell.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Event {
    pub(crate) fd: RawFd,
    /// Nothing more will come of it.
    pub(crate) is_over: bool,
}

/// See the module.
#[derive(Debug)]
pub(crate) struct Epoll(OwnedFd);

impl Epoll {
    pub(crate) fn new() -> Result<Self, OsError> {
        // SAFETY: no pointer.
        let made = answer("epoll_create1", || unsafe { libc::epoll_create1(libc::EPOLL_CLOEXEC) });
        let fd = made.map_err(|source| OsError::new("epoll_create1", "", source))?;
        // SAFETY: just made, nobody else's.
        Ok(Self(unsafe { OwnedFd::from_raw_fd(fd) }))
    }

    /// Wakes for `fd` as well, until it is closed. `EPERM` for a file that cannot be waited for.
    pub(crate) fn add(&self, fd: BorrowedFd<'_>, wakes: Wakes) -> Result<(), OsError> {
        let events = match wakes {
            Wakes::Readable => libc::EPOLLIN,
            Wakes::Urgent => libc::EPOLLPRI,
        };
        let mut event = libc::epoll_event { events: events as u32, u64: fd.as_raw_fd() as u64 };
        let (set, fd) = (self.0.as_raw_fd(), fd.as_raw_fd());
        let subject = || format!("descriptor {fd}");
        // SAFETY: the kernel reads one event.
        call("epoll_ctl", subject, || unsafe {
            libc::epoll_ctl(set, libc::EPOLL_CTL_ADD, fd, &raw mut event)
        })
    }

    /// Waits until something is to be told, at most so long, or without end; a signal ends it too.
    /// Returns some of those that have something.
    pub(crate) fn wait(&self, time: Option<Duration>) -> Result<[Option<Event>; TOLD], OsError> {
        // Rounded up: none is no waiting.
        let millis = |time: Duration| i32::try_from(time.as_micros().div_ceil(1000));
        let time = time.map_or(-1, |time| millis(time).unwrap_or(i32::MAX));
        let mut events = [libc::epoll_event { events: 0, u64: 0 }; TOLD];
        // SAFETY: the kernel fills up to so many events.
        let waited = answer("epoll_wait", || unsafe {
            libc::epoll_wait(self.0.as_raw_fd(), events.as_mut_ptr(), TOLD as i32, time)
        });
        let count = match waited {
            Err(error) if error.kind() == io::ErrorKind::Interrupted => 0,
            waited => waited.map_err(|source| OsError::new("epoll_wait", "", source))?,
        };
        let mut told = [None; TOLD];
        for (told, event) in told.iter_mut().zip(events).take(count as usize) {
            let is_over = event.events & (libc::EPOLLERR | libc::EPOLLHUP) as u32 != 0;
            *told = Some(Event { fd: event.u64 as RawFd, is_over });
        }
        Ok(told)
    }
}

impl AsFd for Epoll {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}
