//! A forked child that runs a few calls and ends, the parent's wait for it, the end of a command
//! with all it started, and the CPU time that one took.
//!
//! The child has one thread and a copy of every lock as it was: what runs there must take no lock
//! that another thread of the parent may have held. It ends by `_exit`, so that no destructor and
//! no buffered output of the parent runs twice. Source: fork(2), waitpid(2), wait4(2), kill(2).
//!
//! # Safety
//! The child's copy of memory is its own; it borrows nothing that another thread changes, since it
//! has no other thread. No call is given a pointer but to a live stack variable.
#![allow(unsafe_code)]

use std::fmt;
use std::io;
use std::process::Child;
use std::time::Duration;

use glebe::error::OsError;

use crate::clock;
use crate::signals;

/// How long a child may take, on a machine that is busy with much else.
const PATIENCE: Duration = Duration::from_secs(60);

/// How a child ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum End {
    /// It returned this.
    Exit(u8),
    /// By this signal.
    Signal(i32),
    /// Not in time, so that it was killed.
    Hung,
}

impl fmt::Display for End {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Exit(status) => write!(f, "status {status:#x}"),
            Self::Signal(signal) => write!(f, "signal {signal}"),
            Self::Hung => f.write_str("no end in time"),
        }
    }
}

/// Runs `body` in a forked child, whose exit status is what it returns.
///
/// # Errors
/// If the kernel makes no child or does not tell of it.
pub(crate) fn in_child(body: impl FnOnce() -> u8) -> Result<End, OsError> {
    // SAFETY: the child only runs `body` and ends; see the file's header on locks.
    let pid = unsafe { libc::fork() };
    match pid {
        -1 => Err(OsError::new("fork", "", io::Error::last_os_error())),
        0 => {
            signals::in_child();
            let status = body();
            // SAFETY: ends the child at once; it never returns.
            unsafe { libc::_exit(libc::c_int::from(status)) }
        }
        pid => wait(pid),
    }
}

/// Kills `child`, which leads a process group, and all in the group.
pub(super) fn kill_group(child: &Child) {
    let Ok(group) = libc::pid_t::try_from(child.id()) else { return };
    // SAFETY: takes no pointer; the child is not waited for yet, so the number is still its own.
    unsafe { libc::kill(-group, libc::SIGKILL) };
}

/// What a command took that has ended, with all its children that it waited for.
#[derive(Clone, Copy, Debug)]
pub(super) struct Usage {
    /// CPU seconds in user mode.
    pub(super) user_s: f64,
    /// CPU seconds in the kernel.
    pub(super) system_s: f64,
    /// Whether it ended with status 0.
    pub(super) succeeded: bool,
}

/// What `child` took, if it has ended; not to be asked again then.
///
/// # Errors
/// If the kernel does not tell.
pub(super) fn usage_if_ended(child: &Child) -> Result<Option<Usage>, OsError> {
    let mut status = 0;
    // SAFETY: plain data, for which all zeros is a value.
    let mut used: libc::rusage = unsafe { std::mem::zeroed() };
    let pid = child.id() as libc::pid_t;
    // SAFETY: both are live variables of the types that the call writes.
    match unsafe { libc::wait4(pid, &raw mut status, libc::WNOHANG, &raw mut used) } {
        0 => Ok(None),
        -1 => Err(OsError::new("wait4", pid.to_string(), io::Error::last_os_error())),
        _ => {
            let seconds = |time: libc::timeval| time.tv_sec as f64 + time.tv_usec as f64 / 1e6;
            Ok(Some(Usage {
                user_s: seconds(used.ru_utime),
                system_s: seconds(used.ru_stime),
                succeeded: libc::WIFEXITED(status) && libc::WEXITSTATUS(status) == 0,
            }))
        }
    }
}

fn wait(pid: libc::pid_t) -> Result<End, OsError> {
    let deadline = clock::wall() + PATIENCE;
    loop {
        let late = clock::wall() > deadline;
        if late {
            // SAFETY: `pid` is this function's child, not waited for yet, so the number is its own.
            unsafe { libc::kill(pid, libc::SIGKILL) };
        }
        let mut status = 0;
        let flags = if late { 0 } else { libc::WNOHANG };
        // SAFETY: `status` is a live int.
        match unsafe { libc::waitpid(pid, &raw mut status, flags) } {
            0 => std::thread::sleep(Duration::from_millis(1)),
            -1 => {
                let error = io::Error::last_os_error();
                if error.kind() != io::ErrorKind::Interrupted {
                    return Err(OsError::new("waitpid", pid.to_string(), error));
                }
            }
            _ if late => return Ok(End::Hung),
            _ if libc::WIFEXITED(status) => return Ok(End::Exit(libc::WEXITSTATUS(status) as u8)),
            _ => return Ok(End::Signal(libc::WTERMSIG(status))),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_child_tells_what_it_returned() {
        assert_eq!(in_child(|| 7).unwrap(), End::Exit(7));
        assert_eq!(in_child(|| 0).unwrap(), End::Exit(0));
    }

    #[test]
    #[allow(clippy::zombie_processes)] // waited for by the function under test
    fn a_command_and_its_children_are_counted() {
        // Half a million turns of a loop, in a child of the command.
        let turns = "i=0; while [ $i -lt 500000 ]; do i=$((i+1)); done";
        for (text, succeeds) in [(format!("({turns})"), true), (format!("({turns}); false"), false)]
        {
            let child = std::process::Command::new("sh").args(["-c", &text]).spawn().unwrap();
            let used = loop {
                if let Some(used) = usage_if_ended(&child).unwrap() {
                    break used;
                }
                std::thread::sleep(Duration::from_millis(1));
            };
            assert_eq!(used.succeeded, succeeds);
            assert!(used.user_s + used.system_s > 0.01, "{used:?}");
            assert!(usage_if_ended(&child).is_err(), "it is no child any more");
        }
    }
}
