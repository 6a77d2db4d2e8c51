//! [`exist`] detects children of this process without reaping them, and [`adopt_orphans`] makes
//! descendants children. Source: waitid(2), PR_SET_CHILD_SUBREAPER(2const).
#![allow(unsafe_code)]

use std::io;
use std::mem::MaybeUninit;

/// Returns true if a child, even of a raw clone(2), lives or was not waited for, or if the call
/// fails. May change `errno`.
#[must_use]
pub fn exist() -> bool {
    let mut ended = MaybeUninit::<libc::siginfo_t>::zeroed();
    let flags = libc::WEXITED | libc::WNOHANG | libc::WNOWAIT | libc::__WALL;
    let none = crate::internal::sys::call::answer("waitid", || {
        // SAFETY: the kernel fills one structure.
        unsafe { libc::waitid(libc::P_ALL, 0, ended.as_mut_ptr(), flags) }
    });
    none.err().and_then(|refused| refused.raw_os_error()) != Some(libc::ECHILD)
}

/// Makes this process the parent of descendants whose parents end. Ended children wait for this
/// process, even if its caller ignored SIGCHLD.
pub fn adopt_orphans() -> io::Result<()> {
    // SAFETY: the call takes numbers.
    unsafe { libc::signal(libc::SIGCHLD, libc::SIG_DFL) };
    let adopt = || {
        // SAFETY: the call takes numbers.
        unsafe { libc::prctl(libc::PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) }
    };
    crate::internal::sys::call::answer("prctl", adopt).map(drop)
}

#[cfg(test)]
mod tests {
    use super::*;
    use glebe_testing::child::in_child;
    use std::thread;

    #[test]
    fn a_child_is_seen_before_and_after_its_end_and_left_to_be_waited_for() {
        // SAFETY: the children allocate nothing and take no lock.
        let seen = unsafe {
            in_child(|| {
                let had_none = !exist();
                let mut ends = [0; 2];
                libc::pipe(ends.as_mut_ptr());
                let child = libc::fork();
                if child == 0 {
                    libc::close(ends[1]);
                    libc::read(ends[0], ends.as_mut_ptr().cast(), 1);
                    libc::_exit(0);
                }
                let lives = exist();
                libc::close(ends[1]);
                let mut ended = MaybeUninit::<libc::siginfo_t>::zeroed();
                let flags = libc::WEXITED | libc::WNOWAIT;
                libc::waitid(libc::P_PID, child.unsigned_abs(), ended.as_mut_ptr(), flags);
                let has_ended = exist();
                let is_left = libc::waitpid(child, std::ptr::null_mut(), 0) == child;
                had_none && lives && has_ended && is_left && !exist()
            })
        };
        assert!(seen);
    }

    #[test]
    fn a_grandchild_becomes_a_child_when_its_parent_ends() {
        // SAFETY: the children allocate nothing and take no lock.
        let seen = unsafe {
            in_child(|| {
                let is_done = adopt_orphans().is_ok();
                let child = libc::fork();
                if child == 0 {
                    libc::fork();
                    libc::_exit(0);
                }
                let both = [0; 2].map(|_| libc::waitpid(-1, std::ptr::null_mut(), 0));
                is_done && both.contains(&child) && both.iter().all(|pid| *pid > 0) && !exist()
            })
        };
        assert!(seen);
    }

    #[test]
    fn a_child_of_another_thread_and_of_a_raw_clone_counts() {
        // SAFETY: the children allocate nothing and take no lock.
        let seen = unsafe {
            in_child(|| {
                // Only a wait with `__WALL` or `__WCLONE` sees a child without an exit signal.
                let child = libc::syscall(libc::SYS_clone, 0, 0, 0, 0, 0);
                if child == 0 {
                    libc::_exit(0);
                }
                let seen = exist();
                let taken = libc::waitpid(-1, std::ptr::null_mut(), libc::__WALL);
                seen && libc::c_long::from(taken) == child && !exist()
            })
        };
        assert!(seen);
        let mut child = std::process::Command::new("cat");
        let mut child = child.stdin(std::process::Stdio::piped()).spawn().unwrap();
        assert!(thread::spawn(exist).join().unwrap());
        drop(child.stdin.take());
        child.wait().unwrap();
    }
}
