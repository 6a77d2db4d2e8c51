//! [`Inside`]: a child of this program that runs in a [`Group`].
//!
//! The program starts itself again with words that only it knows (a hidden subcommand); the child
//! enters the group by itself before it has a second thread ([`enter`]), so that all it allocates
//! is charged there, and dies with its parent. It answers on its standard output. Dropped, a child
//! that still runs is killed. Source: prctl(2), cgroups(7).
//!
//! # Safety
//! prctl and getppid take no pointer here.
#![allow(unsafe_code)]

use std::io::{self, Read};
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::Path;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::thread::JoinHandle;
use std::time::Duration;

use glebe::error::OsError;

use super::group::{Counters, Group};
use super::Error;
use crate::{clock, interrupt};

const LOOK_EVERY: Duration = Duration::from_millis(10);
/// Of what a failed child said, the part that is passed on.
const SAID_MAX: usize = 1000;

/// A child in a group.
#[derive(Debug)]
pub struct Inside<'a> {
    group: &'a Group,
    child: Child,
    output: Option<JoinHandle<String>>,
    errors: Option<JoinHandle<String>>,
}

/// How a child ended, and what the kernel counted by then.
#[derive(Debug)]
pub struct Ended {
    /// What it wrote; `None` if the kernel killed it because memory ran out.
    pub answer: Option<String>,
    /// Of the group, since that was made.
    pub counters: Counters,
}

impl<'a> Inside<'a> {
    /// Starts this program again with `words`; it is to call [`enter`] with the group's directory
    /// first of all.
    ///
    /// # Errors
    /// If it cannot be started.
    pub fn start(group: &'a Group, words: &[&str]) -> Result<Self, Error> {
        let mut command = Command::new("/proc/self/exe");
        command.arg0("glebe").args(words);
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = command.spawn().map_err(|e| OsError::new("execve", "/proc/self/exe", e))?;
        let output = child.stdout.take().map(reader);
        let errors = child.stderr.take().map(reader);
        Ok(Self { group, child, output, errors })
    }

    /// Waits for its end, telling how long it has been at it. Unwinds if the run was told to end.
    ///
    /// # Errors
    /// [`Error::Child`] if it failed or took longer than `patience`.
    pub fn wait(
        mut self,
        patience: Duration,
        mut progress: impl FnMut(Duration),
    ) -> Result<Ended, Error> {
        let start = clock::wall();
        let status = loop {
            let waited = self.child.try_wait();
            match waited.map_err(|e| OsError::new("waitpid", self.child.id().to_string(), e))? {
                Some(status) => break status,
                None => std::thread::sleep(LOOK_EVERY),
            }
            interrupt::check();
            let gone = clock::wall().saturating_sub(start);
            progress(gone);
            if gone > patience {
                self.end();
                return Err(self.failed(format!("took longer than {} s", patience.as_secs())));
            }
        };
        self.ended(status)
    }

    fn ended(&mut self, status: ExitStatus) -> Result<Ended, Error> {
        let answer = collect(&mut self.output);
        let counters = self.group.counters()?;
        if status.success() {
            return Ok(Ended { answer: Some(answer), counters });
        }
        if status.signal() == Some(libc::SIGKILL) && counters.oom_kills > 0 {
            return Ok(Ended { answer: None, counters });
        }
        Err(self.failed(format!("ended with {status}")))
    }

    fn failed(&mut self, how: String) -> Error {
        let said = collect(&mut self.errors);
        let from = said.char_indices().rev().nth(SAID_MAX).map_or(0, |(at, _)| at);
        let group = self.group.dir().display().to_string();
        Error::Child { group, how, said: said[from..].trim().to_string() }
    }

    fn end(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Drop for Inside<'_> {
    fn drop(&mut self) {
        self.end();
    }
}

/// Reads to the end beside the wait, so that the child never waits for room in the pipe.
fn reader(mut pipe: impl Read + Send + 'static) -> JoinHandle<String> {
    std::thread::spawn(move || {
        let mut bytes = Vec::new();
        let _ = pipe.read_to_end(&mut bytes);
        String::from_utf8_lossy(&bytes).into_owned()
    })
}

fn collect(reader: &mut Option<JoinHandle<String>>) -> String {
    reader.take().and_then(|thread| thread.join().ok()).unwrap_or_default()
}

/// In the child: puts it into the group at `dir`, and has it die when its parent does. To be
/// called before there is a second thread.
///
/// # Errors
/// If the kernel does not let it in, or `parent` is gone already.
pub fn enter(dir: &Path, parent: u32) -> Result<(), OsError> {
    // SAFETY: no pointers.
    let is = unsafe {
        libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL);
        libc::getppid()
    };
    if is != parent as libc::pid_t {
        let source = io::Error::other("the parent is gone");
        return Err(OsError::new("getppid", parent.to_string(), source));
    }
    let procs = dir.join("cgroup.procs");
    std::fs::write(&procs, "0").map_err(|e| OsError::new("write", procs.display().to_string(), e))
}
