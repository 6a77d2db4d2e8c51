//! [`Epoll`] is readable while any of several descriptors has an event. Source: epoll(7),
//! epoll_ctl(2).
#![allow(unsafe_code)]

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};
use std::time::Duration;

use crate::error::OsError;
use crate::internal::sys::call::{answer, call};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wakes {
    Readable,
    /// A kernel file changed (EPOLLPRI).
    Urgent,
}

const TOLD: usize = 8;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Event {
    pub fd: RawFd,
    /// True after an error or hangup.
    pub is_over: bool,
}

#[derive(Debug)]
pub struct Epoll(OwnedFd);

impl Epoll {
    pub fn new() -> Result<Self, OsError> {
        // SAFETY: the call takes no pointer.
        let made = answer("epoll_create1", || unsafe { libc::epoll_create1(libc::EPOLL_CLOEXEC) });
        let fd = made.map_err(|source| OsError::new("epoll_create1", "", source))?;
        // SAFETY: nothing else owns the new descriptor.
        Ok(Self(unsafe { OwnedFd::from_raw_fd(fd) }))
    }

    /// Adds `fd`, which stays until its file is closed. Fails with `EPERM` for a file that epoll
    /// does not support.
    pub fn add(&self, fd: BorrowedFd<'_>, wakes: Wakes) -> Result<(), OsError> {
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

    /// Waits until an event occurs, `time` has passed, or a signal arrives.
    pub fn wait(&self, time: Option<Duration>) -> Result<[Option<Event>; TOLD], OsError> {
        // A time rounded down to 0 would not wait.
        let millis = |time: Duration| i32::try_from(time.as_micros().div_ceil(1000));
        let time = time.map_or(-1, |time| millis(time).unwrap_or(i32::MAX));
        let mut events = [libc::epoll_event { events: 0, u64: 0 }; TOLD];
        // SAFETY: the kernel fills at most `TOLD` events.
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
