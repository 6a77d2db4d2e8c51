//! [`EventFd`] and [`TimerFd`] are descriptors that a thread or a clock makes readable. Source:
//! eventfd(2), timerfd_create(2).
#![allow(unsafe_code)]

use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::ptr;
use std::time::Duration;

use crate::error::OsError;
use crate::internal::sys::call::{answer, call};

#[derive(Debug)]
pub struct EventFd(OwnedFd);

#[derive(Debug)]
pub struct TimerFd(OwnedFd);

impl EventFd {
    pub fn new() -> Result<Self, OsError> {
        let flags = libc::EFD_CLOEXEC | libc::EFD_NONBLOCK;
        // SAFETY: the call takes no pointer.
        owned("eventfd", || unsafe { libc::eventfd(0, flags) }).map(Self)
    }

    pub fn signal(&self) {
        // SAFETY: the descriptor is open. The write fails only if the count is full.
        unsafe { libc::eventfd_write(self.0.as_raw_fd(), 1) };
    }

    /// Makes the descriptor unreadable. Returns true if it was readable.
    pub fn clear(&self) -> bool {
        clear(&self.0)
    }
}

impl TimerFd {
    pub fn new() -> Result<Self, OsError> {
        let flags = libc::TFD_CLOEXEC | libc::TFD_NONBLOCK;
        // SAFETY: the call takes no pointer.
        let made = || unsafe { libc::timerfd_create(libc::CLOCK_MONOTONIC, flags) };
        owned("timerfd_create", made).map(Self)
    }

    /// Makes the descriptor readable after a time. Replaces an earlier setting.
    pub fn set(&self, after: Duration) -> Result<(), OsError> {
        // Zero would disarm the timer.
        let after = after.max(Duration::from_nanos(1));
        let zero = libc::timespec { tv_sec: 0, tv_nsec: 0 };
        let value = libc::timespec {
            tv_sec: after.as_secs().try_into().unwrap_or(libc::time_t::MAX),
            tv_nsec: after.subsec_nanos().into(),
        };
        let new = libc::itimerspec { it_interval: zero, it_value: value };
        let fd = self.0.as_raw_fd();
        // SAFETY: the kernel reads one structure.
        call("timerfd_settime", String::new, || unsafe {
            libc::timerfd_settime(fd, 0, &raw const new, ptr::null_mut())
        })
    }

    pub fn clear(&self) -> bool {
        clear(&self.0)
    }
}

fn owned(name: &'static str, make: impl FnOnce() -> i32) -> Result<OwnedFd, OsError> {
    let fd = answer(name, make).map_err(|source| OsError::new(name, "", source))?;
    // SAFETY: nothing else owns the new descriptor.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

fn clear(fd: &OwnedFd) -> bool {
    let mut count = 0_u64;
    // SAFETY: the kernel fills the local.
    let read = unsafe { libc::read(fd.as_raw_fd(), (&raw mut count).cast(), size_of::<u64>()) };
    read == size_of::<u64>() as isize
}

impl AsFd for EventFd {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

impl AsFd for TimerFd {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::internal::sys::files::epoll::{Epoll, Wakes};

    #[test]
    fn they_wake_who_waits_and_are_silent_when_cleared() {
        let (epoll, event, timer) =
            (Epoll::new().unwrap(), EventFd::new().unwrap(), TimerFd::new().unwrap());
        epoll.add(event.as_fd(), Wakes::Readable).unwrap();
        epoll.add(timer.as_fd(), Wakes::Readable).unwrap();
        assert!(!event.clear() && !timer.clear());
        event.signal();
        event.signal();
        assert!(epoll.wait(None).unwrap()[0].is_some());
        assert!(event.clear() && !event.clear() && !timer.clear());
        timer.set(Duration::ZERO).unwrap();
        assert!(epoll.wait(None).unwrap()[0].is_some());
        assert!(timer.clear() && !timer.clear());
        assert_eq!(epoll.wait(Some(Duration::from_millis(1))).unwrap()[0], None);
        assert!(!event.clear() && !timer.clear());
    }
}
