//! [`Agent`] is the helper process with Mooncake's package.
//!
//! It has a process group of its own, so that the terminal's SIGINT does not reach it. It ends with
//! the lender: the kernel kills it, and its standard input ends. The kernel already
//! kills it when the thread ends that started it.

use std::io::{self, ErrorKind, Read, Write};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, ChildStderr, ChildStdin, ChildStdout, Command, Stdio};

use rustix::process::{pidfd_open, pidfd_send_signal, setpriority_pgrp, Pid, PidfdFlags, Signal};

use crate::line::{printable, Answer, Lines, SHOWN};
use crate::log::Log;
use crate::settings::{LendError, Settings};

const SCRIPT: &str = include_str!("agent.py");
/// Keeps Python from importing files of the current folder.
const PATH: &str = "import sys; sys.path = [path for path in sys.path if path]; ";
/// Reads the script, whose length is the first argument, from standard input.
const START: &str = "exec(sys.stdin.buffer.read(int(sys.argv[1])))";
/// Checks for the package.
const CHECK: &str = "import mooncake.store";

#[derive(Debug)]
pub(crate) struct Agent {
    child: Child,
    /// Readable once the process has ended, and its mappings with it. The package forks none.
    pidfd: OwnedFd,
    stdin: ChildStdin,
    stdout: ChildStdout,
    lines: Lines,
    last: u64,
    /// The package's own log, its last line, and the latest error since the last command.
    stderr: ChildStderr,
    log: Lines,
    last_line: String,
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
        command.args(["-c", &format!("{PATH}{CHECK}")]).stdin(Stdio::null());
        let output = command.output();
        let output =
            output.map_err(|source| LendError::NoPython { python: python.to_owned(), source })?;
        if output.status.success() {
            return Ok(());
        }
        let said = String::from_utf8_lossy(&output.stderr);
        let text = said.lines().rfind(|line| !line.trim().is_empty());
        let text = text.map_or_else(|| output.status.to_string(), |text| printable(text, SHOWN));
        Err(LendError::NoPackage { python: python.to_owned(), text })
    }

    /// Starts an agent, whose store names itself `host`.
    pub(crate) fn start(settings: &Settings, host: &str) -> Result<Self, LendError> {
        Self::start_with(settings, host, SCRIPT)
    }

    fn start_with(settings: &Settings, host: &str, script: &str) -> Result<Self, LendError> {
        let Settings { python, metadata, protocol, master, .. } = settings;
        let (len, parent) = (script.len().to_string(), std::process::id().to_string());
        let mut command = Command::new(python);
        let start = format!("{PATH}{START}");
        command.args(["-c", &start, &len, &parent, host, metadata, protocol, master]);
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
        let mut agent = Self {
            child,
            pidfd,
            stdin,
            stdout,
            lines: Lines::default(),
            last: 0,
            stderr,
            log: Lines::default(),
            last_line: String::new(),
            error: String::new(),
            is_verbose: settings.is_verbose,
            has_output: true,
            has_log: true,
        };
        // An agent that ends at once is noticed by its pidfd.
        let _ = agent.stdin.write_all(script.as_bytes());
        for pipe in [agent.stdin.as_fd(), agent.stdout.as_fd(), agent.stderr.as_fd()] {
            rustix::io::ioctl_fionbio(pipe, true).map_err(io::Error::from)?;
        }
        Ok(agent)
    }

    /// Sends a command. Returns its number. An agent that reads so little that a command does not
    /// fit into the pipe is killed.
    pub(crate) fn tell(&mut self, command: &str) -> u64 {
        self.last += 1;
        self.error.clear();
        if self.stdin.write_all(format!("{} {command}\n", self.last).as_bytes()).is_err() {
            // The agent's end is noticed by its pidfd.
            self.kill();
        }
        self.last
    }

    /// Returns the answers that are there.
    pub(crate) fn answers(&mut self) -> Vec<Answer> {
        self.has_output &= read(&mut self.stdout, &mut self.lines);
        self.lines.whole().iter().filter_map(|line| Answer::parse(line)).collect()
    }

    pub(crate) fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Kills the agent, whose end nobody has waited for yet.
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

    /// Reads the log. Lines that the package logged before an answer have arrived with it.
    pub(crate) fn read_log(&mut self, log: &mut Log) {
        self.has_log &= read(&mut self.stderr, &mut self.log);
        for line in self.log.whole() {
            if self.is_verbose {
                log.line("mooncake", &line);
            }
            if let Some(text) = error_in(&line) {
                text.clone_into(&mut self.error);
            }
            self.last_line = line;
        }
    }

    /// Returns the latest error in the log since the last command, in brackets; empty if there is
    /// none.
    pub(crate) fn error(&self) -> String {
        in_brackets(&self.error)
    }

    /// Returns the last line of the log, in brackets; empty if there is none.
    pub(crate) fn last_words(&self) -> String {
        in_brackets(&self.last_line)
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
        // Once somebody has waited for it, its number may be another process's.
        if matches!(self.child.try_wait(), Ok(None)) {
            self.kill();
            let _ = self.child.wait();
        }
    }
}

fn in_brackets(text: &str) -> String {
    match text {
        "" => String::new(),
        text => format!(" ({text})"),
    }
}

/// Reads what is there, and fits. Returns false once the pipe has ended.
fn read(pipe: &mut impl Read, lines: &mut Lines) -> bool {
    let mut bytes = [0; 4096];
    while !lines.is_full() {
        match pipe.read(&mut bytes) {
            Ok(len @ 1..) => lines.push(&bytes[..len]),
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            Ok(_) => return false,
            Err(_) => return true,
        }
    }
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
    use crate::settings::tests::settings;

    fn agent(script: &str) -> Agent {
        Agent::start_with(&settings(), "host", script).expect("an agent")
    }

    #[test]
    fn an_agent_that_reads_nothing_is_killed() {
        let mut agent = agent("import time; time.sleep(60)");
        for _ in 0..10_000 {
            agent.tell("unmount a-segment");
        }
        assert!(agent.wait().contains("signal: 9"));
    }

    #[test]
    fn errors_are_of_the_last_command_alone() {
        let error = "E1129 22:29:45.5 7 client.cpp:1] No room";
        let mut agent = agent(&format!("import sys; sys.stderr.write('{error}\\nbye\\n')"));
        let status = agent.wait();
        agent.read_log(&mut Log::default());
        assert_eq!((status.as_str(), agent.error().as_str()), ("exit status: 0", " (No room)"));
        assert_eq!(agent.last_words(), " (bye)");
        agent.tell("check");
        assert_eq!(agent.error(), "");
    }

    #[test]
    fn only_errors_of_the_log_are_kept() {
        let error = "E1129 22:29:45.591226 21039 master_client.cpp:370] RPC call failed: End";
        assert_eq!(error_in(error), Some("RPC call failed: End"));
        assert_eq!(error_in("I1129 22:29:45.591226 21039 a.cpp:1] fine"), None);
        assert_eq!(error_in("Error"), None);
        assert_eq!(error_in(""), None);
    }
}
