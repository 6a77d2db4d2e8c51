//! [`SignalFd`] is a descriptor from which a thread reads its signals. Source: signalfd(2).
#![allow(unsafe_code)]

use std::mem::MaybeUninit;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::ptr;

use crate::error::OsError;
use crate::internal::sys::call::answer;

#[derive(Debug)]
pub struct SignalFd(OwnedFd);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Arrived {
    pub number: i32,
    /// True if the kernel sent it, as a terminal's driver does to all processes in the foreground.
    pub is_kernels: bool,
}

impl SignalFd {
    /// Blocks `numbers` in the calling thread for good. Their actions stay as they are, so a
    /// program that this process starts inherits them.
    pub fn new(numbers: &[i32]) -> Result<Self, OsError> {
        let mut set = MaybeUninit::uninit();
        // SAFETY: the set is a local, which the first call fills.
        let set = unsafe {
            libc::sigemptyset(set.as_mut_ptr());
            for number in numbers {
                libc::sigaddset(set.as_mut_ptr(), *number);
            }
            set.assume_init()
        };
        let (at, flags) = (&raw const set, libc::SFD_CLOEXEC | libc::SFD_NONBLOCK);
        let fd = answer("signalfd", || {
            // SAFETY: the kernel reads the set.
            unsafe {
                libc::pthread_sigmask(libc::SIG_BLOCK, at, ptr::null_mut());
                libc::signalfd(-1, at, flags)
            }
        });
        let fd = fd.map_err(|source| OsError::new("signalfd", "", source))?;
        // SAFETY: nothing else owns the new descriptor.
        Ok(Self(unsafe { OwnedFd::from_raw_fd(fd) }))
    }

    /// Takes the next signal, if there is one.
    pub fn take(&self) -> Option<Arrived> {
        let mut info = MaybeUninit::<libc::signalfd_siginfo>::zeroed();
        let (fd, at, len) = (self.0.as_raw_fd(), info.as_mut_ptr(), size_of_val(&info));
        // SAFETY: the kernel fills the local.
        let read = answer("read", || unsafe { libc::read(fd, at.cast(), len) }).ok()?;
        // SAFETY: numbers of any value are valid.
        let info = unsafe { info.assume_init() };
        let is_kernels = info.ssi_code == libc::SI_KERNEL;
        (read as usize == len).then_some(Arrived { number: info.ssi_signo as i32, is_kernels })
    }
}

impl AsFd for SignalFd {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_signal_is_taken_once_and_its_action_stays() {
        let signals = SignalFd::new(&[libc::SIGWINCH]).unwrap();
        assert_eq!(signals.take(), None);
        // SAFETY: the calls take numbers; this thread blocks the signal.
        unsafe { libc::pthread_kill(libc::pthread_self(), libc::SIGWINCH) };
        let arrived = Arrived { number: libc::SIGWINCH, is_kernels: false };
        assert_eq!((signals.take(), signals.take()), (Some(arrived), None));
    }
}
