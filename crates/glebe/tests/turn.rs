//! A lock that all test processes share on one thing of the machine, such as a pool.
#![allow(unsafe_code)] // Safety: flock(2) takes an open descriptor and a number.

use std::fs::File;
use std::os::fd::AsRawFd;

/// The pool of 2 MiB pages.
pub const POOL: &str = "/sys/kernel/mm/hugepages/hugepages-2048kB";

/// A turn, which ends when this is dropped.
pub struct Turn(#[allow(dead_code)] File);

impl Turn {
    /// Waits until no other test has a turn at what the file or folder stands for. Returns `None`
    /// where the machine has no such file.
    pub fn alone(path: &str) -> Option<Self> {
        Self::take(path, libc::LOCK_EX)
    }

    /// Waits until no test holds it by [`Turn::alone`]; several may share it.
    pub fn shared(path: &str) -> Option<Self> {
        Self::take(path, libc::LOCK_SH)
    }

    fn take(path: &str, how: libc::c_int) -> Option<Self> {
        let file = File::open(path).ok()?;
        // SAFETY: see the head.
        while unsafe { libc::flock(file.as_raw_fd(), how) } != 0 {
            let error = std::io::Error::last_os_error();
            assert_eq!(error.kind(), std::io::ErrorKind::Interrupted, "{path}: {error}");
        }
        Some(Self(file))
    }
}
