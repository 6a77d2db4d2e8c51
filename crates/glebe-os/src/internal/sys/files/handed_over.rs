//! [`take`] takes the descriptors that a service manager opened for this process.
//!
//! Source: sd_listen_fds(3).
#![allow(unsafe_code)]

use std::io;
use std::os::fd::{FromRawFd, OwnedFd, RawFd};

use crate::internal::sync::{MappedByte, Ordering};
use crate::internal::sys::call::answer;

const FIRST: RawFd = 3;

/// Descriptors with their names.
pub type Handed = Vec<(String, OwnedFd)>;

/// Returns each descriptor with its name, if the service manager names this process. Only the first
/// call of a process returns any.
pub fn take() -> io::Result<Handed> {
    static IS_DONE: MappedByte = MappedByte::new(0);
    let var = |name: &str| std::env::var(name).ok().filter(|value| !value.is_empty());
    // A number that a parent only left in the variables may be an open file of this process.
    let is_ours = var("LISTEN_PID").is_some_and(|pid| pid == std::process::id().to_string());
    let count: RawFd = var("LISTEN_FDS").and_then(|count| count.parse().ok()).unwrap_or(0);
    let names = var("LISTEN_FDNAMES").unwrap_or_default();
    if !is_ours || count <= 0 || IS_DONE.swap(1, Ordering::AcqRel) != 0 {
        return Ok(Vec::new());
    }
    let mut names = names.split(':');
    let one = |number| {
        // SAFETY: the call takes a number.
        answer("fcntl", || unsafe { libc::fcntl(number, libc::F_SETFD, libc::FD_CLOEXEC) })?;
        // SAFETY: the number is open, and the service manager gave it to this process, which takes
        // it once.
        let owned = unsafe { OwnedFd::from_raw_fd(number) };
        Ok((names.next().unwrap_or_default().to_owned(), owned))
    };
    (FIRST..FIRST.saturating_add(count)).map(one).collect()
}
