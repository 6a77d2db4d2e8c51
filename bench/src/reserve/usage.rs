//! The end of a command with all it started, and the CPU time that it took.
//!
//! Source: wait4(2), kill(2).
//!
//! # Safety
//! No call is given a pointer but to a live stack variable.
#![allow(unsafe_code)]

use std::io;
use std::process::Child;

use glebe::error::OsError;

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

#[cfg(test)]
mod tests {
    use super::*;

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
                std::thread::sleep(std::time::Duration::from_millis(1));
            };
            assert_eq!(used.succeeded, succeeds);
            assert!(used.user_s + used.system_s > 0.01, "{used:?}");
            assert!(usage_if_ended(&child).is_err(), "it is no child any more");
        }
    }
}
