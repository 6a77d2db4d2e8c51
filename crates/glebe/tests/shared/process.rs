//! Forked processes that are told when to go on.
//!
//! # Safety
//! A child has one thread and copies of all locks; it uses the allocator, which the C library
//! makes ready for it, and files of its test. It ends by _exit, or an alarm ends it.

use std::panic::{catch_unwind, AssertUnwindSafe};
use std::time::{Duration, Instant};

const PATIENCE_S: u32 = 60;

/// A pipe each way.
#[derive(Clone, Copy)]
pub struct Link {
    from: i32,
    to: i32,
}

impl Link {
    /// Sends a number.
    pub fn tell(&self, number: i32) {
        let bytes = number.to_ne_bytes();
        // SAFETY: a pipe of this test's and a local.
        let sent = unsafe { libc::write(self.to, bytes.as_ptr().cast(), bytes.len()) };
        assert_eq!(sent, bytes.len() as isize);
    }

    /// Waits for a number.
    pub fn hear(&self) -> i32 {
        let mut bytes = [0; 4];
        // SAFETY: as above.
        let got = unsafe { libc::read(self.from, bytes.as_mut_ptr().cast(), bytes.len()) };
        assert_eq!(got, bytes.len() as isize, "the other end is gone");
        i32::from_ne_bytes(bytes)
    }
}

/// How a process ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum End {
    Exit(i32),
    Signal(i32),
}

/// A child.
pub struct Process {
    pub pid: i32,
    pub link: Link,
}

impl Process {
    /// Forks a child that runs `body`; its exit status is 0, or 101 where that panics.
    pub fn start(body: impl FnOnce(Link)) -> Self {
        // SAFETY: fork(2), as the file's head says.
        Self::start_by(|| unsafe { libc::fork() }, body)
    }

    /// As [`Process::start`], by another call that forks.
    pub fn start_by(fork: impl FnOnce() -> i32, body: impl FnOnce(Link)) -> Self {
        let (down, up) = (pipe(), pipe());
        let pid = fork();
        assert!(pid >= 0, "{}", std::io::Error::last_os_error());
        if pid == 0 {
            // SAFETY: the alarm and the exit take no pointer.
            unsafe {
                libc::alarm(PATIENCE_S);
                let link = Link { from: down[0], to: up[1] };
                let ended = catch_unwind(AssertUnwindSafe(|| body(link)));
                libc::_exit(if ended.is_ok() { 0 } else { 101 });
            }
        }
        Self { pid, link: Link { from: up[0], to: down[1] } }
    }

    /// Ends it by SIGKILL.
    pub fn kill(&self) {
        signal(self.pid, libc::SIGKILL);
        assert_eq!(self.end(), End::Signal(libc::SIGKILL));
    }

    /// Waits for its end.
    pub fn end(&self) -> End {
        let begin = Instant::now();
        loop {
            let mut status = 0;
            // SAFETY: waits for the child made above; `status` is this frame's.
            let waited = unsafe { libc::waitpid(self.pid, &raw mut status, libc::WNOHANG) };
            if waited == self.pid && libc::WIFEXITED(status) {
                return End::Exit(libc::WEXITSTATUS(status));
            }
            if waited == self.pid {
                return End::Signal(libc::WTERMSIG(status));
            }
            assert!(begin.elapsed() < Duration::from_secs(2 * u64::from(PATIENCE_S)));
            std::thread::sleep(Duration::from_micros(200));
        }
    }
}

fn pipe() -> [i32; 2] {
    let mut ends = [0; 2];
    // SAFETY: fills the local.
    assert_eq!(unsafe { libc::pipe2(ends.as_mut_ptr(), libc::O_CLOEXEC) }, 0);
    ends
}

/// Sends a signal to a process that this test started.
pub fn signal(pid: i32, signal: i32) {
    // SAFETY: takes no pointer.
    assert_eq!(unsafe { libc::kill(pid, signal) }, 0);
}

/// Does nothing until killed.
pub fn sleep_on() -> ! {
    loop {
        // SAFETY: takes nothing.
        unsafe { libc::pause() };
    }
}
