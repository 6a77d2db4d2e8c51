//! [`Child`]: this program started again, with words that only it knows, to do one task apart.
//!
//! A child answers in lines on its standard output, reads lines from its standard input, and dies
//! with its parent. Dropped, one that still runs is killed. A parent that was told to end unwinds
//! from every wait here ([`interrupt`]). Source: prctl(2).

use std::io::{self, BufRead, BufReader, Read, Write};
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::process::{Command, ExitStatus, Stdio};
use std::sync::mpsc::{self, Receiver, RecvTimeoutError};
use std::thread::JoinHandle;
use std::time::Duration;

use glebe::error::OsError;
use rustix::process::{getppid, set_parent_process_death_signal, Pid, Signal};

use crate::{clock, interrupt};

const LOOK_EVERY: Duration = Duration::from_millis(10);
/// Of what a failed child said, the part that is passed on.
const SAID_MAX: usize = 1000;

/// A child.
#[derive(Debug)]
pub(crate) struct Child {
    process: std::process::Child,
    lines: Receiver<String>,
    errors: Option<JoinHandle<String>>,
}

/// How a child ended.
#[derive(Debug)]
pub(crate) struct Ended {
    status: ExitStatus,
    /// What it wrote, its lines ended.
    pub(crate) output: String,
    errors: String,
}

impl Ended {
    /// Whether it was killed.
    pub(crate) fn was_killed(&self) -> bool {
        self.status.signal() == Some(Signal::KILL.as_raw())
    }

    /// What it wrote.
    ///
    /// # Errors
    /// How it failed and the end of its standard error, if it did.
    pub(crate) fn answer(self) -> Result<String, OsError> {
        if self.status.success() {
            return Ok(self.output);
        }
        let said = self.errors.trim();
        let from = said.char_indices().rev().nth(SAID_MAX).map_or(0, |(at, _)| at);
        Err(failed(format!("it ended with {}: {}", self.status, &said[from..])))
    }
}

impl Child {
    /// Starts this program with `task` and `words`; the child is in [`attach`] first of all.
    ///
    /// # Errors
    /// If it cannot be started.
    pub(crate) fn start(task: &str, words: &[&str]) -> Result<Self, OsError> {
        let mut command = Command::new("/proc/self/exe");
        command.arg0("glebe-bench").arg("child").arg(std::process::id().to_string());
        command.arg(task).args(words);
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut process = command.spawn().map_err(failed)?;
        let (sender, lines) = mpsc::channel();
        let output = process.stdout.take();
        std::thread::spawn(move || {
            let lines = output.into_iter().flat_map(|output| BufReader::new(output).lines());
            lines.map_while(Result::ok).try_for_each(|line| sender.send(line))
        });
        let errors = process.stderr.take().map(|mut errors| {
            std::thread::spawn(move || {
                let mut bytes = Vec::new();
                let _ = errors.read_to_end(&mut bytes);
                String::from_utf8_lossy(&bytes).into_owned()
            })
        });
        Ok(Self { process, lines, errors })
    }

    /// Its next line; `None` once it writes no more.
    pub(crate) fn line(&mut self) -> Option<String> {
        loop {
            interrupt::check();
            match self.lines.recv_timeout(LOOK_EVERY) {
                Ok(line) => return Some(line),
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => return None,
            }
        }
    }

    /// Writes a line to its standard input.
    ///
    /// # Errors
    /// If it reads no more.
    pub(crate) fn tell(&mut self, line: &str) -> Result<(), OsError> {
        let told = self.process.stdin.as_mut().map(|stdin| writeln!(stdin, "{line}"));
        told.transpose().map(|_| ()).map_err(failed)
    }

    /// Waits for its end, telling how long it has been at it.
    ///
    /// # Errors
    /// If it took longer than `patience`.
    pub(crate) fn wait(
        mut self,
        patience: Duration,
        mut progress: impl FnMut(Duration),
    ) -> Result<Ended, OsError> {
        drop(self.process.stdin.take());
        let (start, mut output) = (clock::wall(), String::new());
        loop {
            match self.lines.recv_timeout(LOOK_EVERY) {
                Ok(line) => output.extend([line.as_str(), "\n"]),
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => {
                    if let Some(status) = self.process.try_wait().map_err(failed)? {
                        let errors = self.errors.take().and_then(|thread| thread.join().ok());
                        return Ok(Ended { status, output, errors: errors.unwrap_or_default() });
                    }
                    std::thread::sleep(LOOK_EVERY);
                }
            }
            interrupt::check();
            let gone = clock::wall().saturating_sub(start);
            progress(gone);
            if gone > patience {
                return Err(failed(format!("it took longer than {} s", patience.as_secs())));
            }
        }
    }
}

impl Drop for Child {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

pub(crate) fn failed(why: impl Into<Box<dyn std::error::Error + Send + Sync>>) -> OsError {
    OsError::new("execve", "/proc/self/exe", io::Error::other(why))
}

/// In the child, before it has a second thread: has it die when process `parent` does.
///
/// # Errors
/// If `parent` is not its parent, or gone.
pub(crate) fn attach(parent: u32) -> Result<(), OsError> {
    let failed = |e: io::Error| OsError::new("prctl", parent.to_string(), e);
    set_parent_process_death_signal(Some(Signal::KILL)).map_err(|e| failed(e.into()))?;
    match getppid().map(Pid::as_raw_pid) {
        Some(is) if is.unsigned_abs() == parent => Ok(()),
        _ => Err(failed(io::Error::other("the parent is gone"))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_child_of_its_parent_is_attached() {
        assert!(attach(u32::MAX).is_err());
    }
}
