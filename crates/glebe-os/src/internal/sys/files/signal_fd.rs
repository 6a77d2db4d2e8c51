//! [`SignalFd`] is a descriptor from which a thread reads its signals. Source: signalfd(2).
#![allow(unsafe_code)]

use std::mem::MaybeUninit;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::os::unix::process::CommandExt;
use std::process::Command;
use std::ptr;

use crate::error::OsError;
use crate::internal::sys::call::answer;

pub struct SignalFd {
    fd: OwnedFd,
    /// The signals that the thread blocked before.
    before: libc::sigset_t,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Arrived {
    pub number: i32,
    /// True if the kernel sent it, as a terminal's driver does to all processes in the foreground.
    pub is_kernels: bool,
}

impl SignalFd {
    /// Blocks `numbers` in the calling thread for good. Their actions stay as they are.
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
        let mut before = MaybeUninit::zeroed();
        let fd = answer("signalfd", || {
            // SAFETY: the kernel reads the first set and fills the second.
            unsafe {
                libc::pthread_sigmask(libc::SIG_BLOCK, at, before.as_mut_ptr());
                libc::signalfd(-1, at, flags)
            }
        });
        let fd = fd.map_err(|source| OsError::new("signalfd", "", source))?;
        // SAFETY: nothing else owns the new descriptor. The call before filled the set.
        unsafe { Ok(Self { fd: OwnedFd::from_raw_fd(fd), before: before.assume_init() }) }
    }

    /// Lets the program of `command` begin with the signals that this thread blocked before.
    pub fn unblock_in(&self, command: &mut Command) {
        let before = self.before;
        let restore = move || {
            let at = &raw const before;
            // SAFETY: the kernel reads the set.
            unsafe { libc::pthread_sigmask(libc::SIG_SETMASK, at, ptr::null_mut()) };
            Ok(())
        };
        // SAFETY: the closure makes one call, which is safe between fork and exec.
        unsafe { command.pre_exec(restore) };
    }

    /// Takes the next signal, if there is one.
    pub fn take(&self) -> Option<Arrived> {
        let mut info = MaybeUninit::<libc::signalfd_siginfo>::zeroed();
        let (fd, at, len) = (self.fd.as_raw_fd(), info.as_mut_ptr(), size_of_val(&info));
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
        self.fd.as_fd()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_signal_is_taken_once_and_a_program_does_not_block_it() {
        let signals = SignalFd::new(&[libc::SIGWINCH]).unwrap();
        assert_eq!(signals.take(), None);
        // SAFETY: the calls take numbers; this thread blocks the signal.
        unsafe { libc::pthread_kill(libc::pthread_self(), libc::SIGWINCH) };
        let arrived = Arrived { number: libc::SIGWINCH, is_kernels: false };
        assert_eq!((signals.take(), signals.take()), (Some(arrived), None));
        let blocked = |command: &mut Command| {
            let output = command.arg("/proc/self/status").output().unwrap();
            let text = String::from_utf8(output.stdout).unwrap();
            let line = text.lines().find_map(|line| line.strip_prefix("SigBlk:")).unwrap();
            u64::from_str_radix(line.trim(), 16).unwrap() >> (libc::SIGWINCH - 1) & 1
        };
        let mut command = Command::new("cat");
        signals.unblock_in(&mut command);
        assert_eq!([blocked(&mut command), blocked(&mut Command::new("cat"))], [0, 1]);
    }
}
