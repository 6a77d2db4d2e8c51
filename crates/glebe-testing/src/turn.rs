//! [`Turn`] locks a resource of the machine, such as a hugetlb pool, between test processes.
#![allow(unsafe_code)] // Safety: flock(2) takes an open descriptor and a number.

use std::fs::File;
use std::os::fd::AsRawFd;

pub const POOL: &str = "/sys/kernel/mm/hugepages/hugepages-2048kB";

pub struct Turn(#[allow(dead_code)] File);

impl Turn {
    /// Waits until no other test has a turn on `path`. Returns `None` if there is no such file.
    pub fn alone(path: &str) -> Option<Self> {
        Self::take(path, libc::LOCK_EX)
    }

    /// Waits until no other test has a turn on `path` by [`Turn::alone`].
    pub fn shared(path: &str) -> Option<Self> {
        Self::take(path, libc::LOCK_SH)
    }

    fn take(path: &str, how: libc::c_int) -> Option<Self> {
        let file = File::open(path).ok()?;
        // SAFETY: `file` is an open descriptor.
        while unsafe { libc::flock(file.as_raw_fd(), how) } != 0 {
            let error = std::io::Error::last_os_error();
            assert_eq!(error.kind(), std::io::ErrorKind::Interrupted, "{path}: {error}");
        }
        Some(Self(file))
    }
}
