//! [`Agent`] is the helper process with Mooncake's package.
//!
//! It has a process group of its own, so that the terminal's SIGINT does not reach it. It ends with
//! the lender: the kernel kills it, and its standard input ends. The parent's end is that of the
//! thread that started the agent.

use std::io::{self, ErrorKind, Read, Write};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, ChildStderr, ChildStdin, ChildStdout, Command, Stdio};

use rustix::process::{pidfd_open, pidfd_send_signal, setpriority_pgrp, Pid, PidfdFlags, Signal};

use crate::line::{Answer, Lines};
use crate::settings::{LendError, Settings};

const SCRIPT: &str = include_str!("agent.py");
/// Reads the script, whose length is the first argument, from standard input.
const START: &str = "import sys; exec(sys.stdin.buffer.read(int(sys.argv[1])))";
/// Most bytes of lines at once.
const LINES_MAX: usize = 1 << 16;
/// Most characters of a line of the log that are shown.
const SHOWN: usize = 400;

#[derive(Debug)]
pub(crate) struct Agent {
    child: Child,
    /// Readable once the process has ended, and its mappings with it.
    pidfd: OwnedFd,
    stdin: ChildStdin,
    stdout: ChildStdout,
    lines: Lines,
    last: u64,
    /// The package's own log, and the latest error in it.
    stderr: ChildStderr,
    log: Lines,
    error: String,
    is_verbose: bool,
    /// False once the pipe has ended, although the process may not have.
    has_output: bool,
    has_log: bool,
}

impl Agent {
    /// Checks that Python has Mooncake's package.
    pub(crate) fn check(python: &Path) -> Result<(), LendError> {
        let mut command = Command::new(python);
        command.args(["-c", "import mooncake.store"]).stdin(Stdio::null());
        let output = command.output();
        let output =
            output.map_err(|source| LendError::NoPython { python: python.to_owned(), source })?;
        if output.status.success() {
            return Ok(());
        }
        let said = String::from_utf8_lossy(&output.stderr);
        let text = said.lines().rfind(|line| !line.trim().is_empty());
        let text = text.map_or_else(|| output.status.to_string(), str::to_owned);
        Err(LendError::NoPackage { python: python.to_owned(), text })
    }

    /// Starts an agent, whose store names itself `host`.
    pub(crate) fn start(settings: &Settings, host: &str) -> Result<Self, LendError> {
        let Settings { python, metadata, protocol, master, .. } = settings;
        let (len, parent) = (SCRIPT.len().to_string(), std::process::id().to_string());
        let mut command = Command::new(python);
        command.args(["-c", START, &len, &parent, host, metadata, protocol, master]);
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let started = command.process_group(0).spawn();
        let mut child =
            started.map_err(|source| LendError::NoPython { python: python.clone(), source })?;
        let pidfd = pidfd_open(Pid::from_child(&child), PidfdFlags::empty());
        let pipes = (child.stdin.take(), child.stdout.take(), child.stderr.take());
        let (Ok(pidfd), (Some(stdin), Some(stdout), Some(stderr))) = (pidfd, pipes) else {
            let _ = child.kill();
            let _ = child.wait();
            return Err(io::Error::from(ErrorKind::Unsupported).into());
        };
        for pipe in [stdout.as_fd(), stderr.as_fd()] {
            rustix::io::ioctl_fionbio(pipe, true).map_err(io::Error::from)?;
        }
        let (lines, log) = (Lines::default(), Lines::default());
        let (error, is_verbose) = (String::new(), settings.is_verbose);
        let mut agent = Self {
            child,
            pidfd,
            stdin,
            stdout,
            lines,
            last: 0,
            stderr,
            log,
            error,
            is_verbose,
            has_output: true,
            has_log: true,
        };
        // An agent that ends at once is noticed by its pidfd.
        let _ = agent.stdin.write_all(SCRIPT.as_bytes());
        Ok(agent)
    }

    /// Sends a command. Returns its number.
    pub(crate) fn tell(&mut self, command: &str) -> u64 {
        self.last += 1;
        // The agent's end is noticed by its pidfd.
        let _ = self.stdin.write_all(format!("{} {command}\n", self.last).as_bytes());
        self.last
    }

    /// Returns the answers that are there.
    pub(crate) fn answers(&mut self) -> Vec<Answer> {
        self.has_output &= read(&mut self.stdout, &mut self.lines);
        std::iter::from_fn(|| self.lines.next()).filter_map(|line| Answer::parse(&line)).collect()
    }

    pub(crate) fn pid(&self) -> u32 {
        self.child.id()
    }

    pub(crate) fn kill(&self) {
        // On a busy machine, the exits of its many threads would wait for a turn each. Only a
        // privileged lender may do this.
        let _ = setpriority_pgrp(Some(Pid::from_child(&self.child)), -20);
        // It fails only if the agent has ended already.
        let _ = pidfd_send_signal(&self.pidfd, Signal::KILL);
    }

    /// Waits for the end of an agent whose pidfd is readable.
    pub(crate) fn wait(&mut self) -> String {
        match self.child.wait() {
            Ok(status) => status.to_string(),
            Err(error) => error.to_string(),
        }
    }

    /// Reads the log. What the package logged before an answer is there with the answer.
    pub(crate) fn read_log(&mut self) {
        self.has_log &= read(&mut self.stderr, &mut self.log);
        while let Some(line) = self.log.next() {
            let shown: String = line.chars().filter(|c| !c.is_control()).take(SHOWN).collect();
            if self.is_verbose {
                let _ = writeln!(io::stderr(), "mooncake: {shown}");
            }
            if let Some(text) = error_in(&shown) {
                text.clone_into(&mut self.error);
            }
        }
    }

    /// Returns the latest error in the log, in brackets; empty if there is none.
    pub(crate) fn error(&self) -> String {
        match self.error.as_str() {
            "" => String::new(),
            error => format!(" ({error})"),
        }
    }

    /// Returns what to wait for: the end, answers, the log.
    pub(crate) fn descriptors(&self) -> [BorrowedFd<'_>; 3] {
        let end = self.pidfd.as_fd();
        let output = if self.has_output { self.stdout.as_fd() } else { end };
        let log = if self.has_log { self.stderr.as_fd() } else { end };
        [end, output, log]
    }
}

impl Drop for Agent {
    fn drop(&mut self) {
        self.kill();
        let _ = self.child.wait();
    }
}

/// Reads what is there. The rest of a line beyond the limit becomes a line of its own.
/// Returns false once the pipe has ended.
fn read(pipe: &mut impl Read, lines: &mut Lines) -> bool {
    let mut bytes = [0; 4096];
    while lines.pending() < LINES_MAX {
        match pipe.read(&mut bytes) {
            Ok(len @ 1..) => lines.push(&bytes[..len]),
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            Ok(_) => return false,
            Err(_) => return true,
        }
    }
    lines.push(b"\n");
    true
}

/// Returns the text of an error in glog's format, `E1129 22:29:45.591226 21039 file.cpp:370] text`.
fn error_in(line: &str) -> Option<&str> {
    let is_error =
        line.starts_with(['E', 'F']) && line[1..].starts_with(|c: char| c.is_ascii_digit());
    is_error.then(|| line.split_once("] ").map_or(line, |(_, text)| text))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_errors_of_the_log_are_kept() {
        let error = "E1129 22:29:45.591226 21039 master_client.cpp:370] RPC call failed: End";
        assert_eq!(error_in(error), Some("RPC call failed: End"));
        assert_eq!(error_in("I1129 22:29:45.591226 21039 a.cpp:1] fine"), None);
        assert_eq!(error_in("Error"), None);
        assert_eq!(error_in(""), None);
    }
}
