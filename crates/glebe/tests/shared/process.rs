//! Forked processes that are told when to go on.
//!
//! # Safety
//! A child has one thread and copies of all locks; it uses the allocator, which the C library
//! makes ready for it, and files of its test. It ends by _exit, or an alarm ends it.

use std::fs::File;
use std::io::{Read, Write};
use std::os::fd::{FromRawFd, OwnedFd};
use std::panic::{catch_unwind, AssertUnwindSafe};
use std::time::{Duration, Instant};

use glebe_testing::time::slowed;

const PATIENCE: Duration = Duration::from_secs(60);

fn patience_s() -> libc::c_uint {
    slowed(PATIENCE).as_secs() as libc::c_uint
}

/// A pipe each way.
pub struct Link {
    from: File,
    to: File,
}

impl Link {
    /// Sends a number.
    pub fn tell(&self, number: i32) {
        (&self.to).write_all(&number.to_ne_bytes()).unwrap();
    }

    /// Waits for a number.
    pub fn hear(&self) -> i32 {
        let mut bytes = [0; 4];
        (&self.from).read_exact(&mut bytes).expect("the other end is gone");
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
        let ((child_from, to), (from, child_to)) = (pipe(), pipe());
        let pid = fork();
        assert!(pid >= 0, "{}", std::io::Error::last_os_error());
        if pid == 0 {
            // SAFETY: the alarm and the exit take no pointer.
            unsafe {
                libc::alarm(patience_s());
                let link = Link { from: child_from, to: child_to };
                let ended = catch_unwind(AssertUnwindSafe(|| body(link)));
                libc::_exit(if ended.is_ok() { 0 } else { 101 });
            }
        }
        Self { pid, link: Link { from, to } }
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
            assert!(begin.elapsed() < slowed(2 * PATIENCE));
            std::thread::sleep(Duration::from_micros(200));
        }
    }
}

/// The end to read from, and the one to write to.
fn pipe() -> (File, File) {
    let mut ends = [0; 2];
    // SAFETY: fills the local with descriptors that nobody else has.
    unsafe {
        assert_eq!(libc::pipe2(ends.as_mut_ptr(), libc::O_CLOEXEC), 0);
        let [read, write] = ends.map(|end| File::from(OwnedFd::from_raw_fd(end)));
        (read, write)
    }
}

/// Sends a signal to a process that this test started.
pub fn signal(pid: i32, signal: i32) {
    // SAFETY: takes no pointer.
    assert_eq!(unsafe { libc::kill(pid, signal) }, 0);
}

/// Puts off the alarm that ends this child, which is at work.
pub fn stay() {
    // SAFETY: takes no pointer.
    unsafe { libc::alarm(patience_s()) };
}

/// Does nothing until killed, by an alarm if by nobody else.
pub fn sleep_on() -> ! {
    loop {
        // SAFETY: takes no pointer.
        unsafe {
            libc::alarm(patience_s());
            libc::pause();
        }
    }
}
