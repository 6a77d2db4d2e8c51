//! Forks processes and steers them through pipes.
//!
//! # Safety
//! A child has one thread and copies of all locks. The child uses only the allocator, which the C
//! library resets, and files of its test. It ends by `_exit` or a signal.
#![allow(unsafe_code)]

use std::fs::File;
use std::io::{Read, Write};
use std::os::fd::{FromRawFd, OwnedFd};
use std::panic::{catch_unwind, AssertUnwindSafe};
use std::time::{Duration, Instant};

use crate::time::slowed;

const PATIENCE: Duration = Duration::from_secs(60);

fn patience_s() -> libc::c_uint {
    slowed(PATIENCE).as_secs() as libc::c_uint
}

pub struct Link {
    from: File,
    to: File,
}

impl Link {
    pub fn tell(&self, number: i32) {
        (&self.to).write_all(&number.to_ne_bytes()).unwrap();
    }

    pub fn hear(&self) -> i32 {
        let mut bytes = [0; 4];
        (&self.from).read_exact(&mut bytes).expect("the other end is gone");
        i32::from_ne_bytes(bytes)
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SteeredEnd {
    Exit(i32),
    Signal(i32),
}

pub struct Process {
    pub pid: i32,
    pub link: Link,
}

impl Process {
    /// Forks a child that runs `body` and exits with 0, or with 101 after a panic.
    pub fn start(body: impl FnOnce(Link)) -> Self {
        // SAFETY: the child follows the rules at the head of this file.
        Self::start_by(|| unsafe { libc::fork() }, body)
    }

    /// Forks like [`Process::start`], with another system call.
    pub fn start_by(fork: impl FnOnce() -> i32, body: impl FnOnce(Link)) -> Self {
        let ((child_from, to), (from, child_to)) = (pipe(), pipe());
        let pid = fork();
        assert!(pid >= 0, "{}", std::io::Error::last_os_error());
        if pid == 0 {
            // SAFETY: takes no pointers.
            unsafe {
                libc::alarm(patience_s());
                let link = Link { from: child_from, to: child_to };
                let ended = catch_unwind(AssertUnwindSafe(|| body(link)));
                libc::_exit(if ended.is_ok() { 0 } else { 101 });
            }
        }
        Self { pid, link: Link { from, to } }
    }

    pub fn kill(&self) {
        signal(self.pid, libc::SIGKILL);
        assert_eq!(self.end(), SteeredEnd::Signal(libc::SIGKILL));
    }

    pub fn end(&self) -> SteeredEnd {
        let begin = Instant::now();
        loop {
            let mut status = 0;
            // SAFETY: `pid` is this value's child, `status` a local.
            let waited = unsafe { libc::waitpid(self.pid, &raw mut status, libc::WNOHANG) };
            if waited == self.pid && libc::WIFEXITED(status) {
                return SteeredEnd::Exit(libc::WEXITSTATUS(status));
            }
            if waited == self.pid {
                return SteeredEnd::Signal(libc::WTERMSIG(status));
            }
            assert!(begin.elapsed() < slowed(2 * PATIENCE));
            std::thread::sleep(Duration::from_micros(200));
        }
    }
}

fn pipe() -> (File, File) {
    let mut ends = [0; 2];
    // SAFETY: fills a local; only the `File`s own the descriptors.
    unsafe {
        assert_eq!(libc::pipe2(ends.as_mut_ptr(), libc::O_CLOEXEC), 0);
        let [read, write] = ends.map(|end| File::from(OwnedFd::from_raw_fd(end)));
        (read, write)
    }
}

pub fn signal(pid: i32, signal: i32) {
    // SAFETY: takes no pointers.
    assert_eq!(unsafe { libc::kill(pid, signal) }, 0);
}

/// Restarts the alarm that would end this child.
pub fn stay() {
    // SAFETY: takes no pointers.
    unsafe { libc::alarm(patience_s()) };
}

/// Sleeps until killed, at the latest by the alarm.
pub fn sleep_on() -> ! {
    loop {
        // SAFETY: takes no pointers.
        unsafe {
            libc::alarm(patience_s());
            libc::pause();
        }
    }
}
