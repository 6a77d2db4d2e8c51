//! [`Child`]: this program, started again for one task.
//!
//! A child answers in lines on its standard output, reads lines from its standard input, and dies
//! with its parent. Dropping a `Child` kills it. [`Child::line`] unwinds after a signal to the
//! parent ([`interrupt`]). Source: prctl(2).

use std::io::{BufRead, BufReader, Write};
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::process::{Command, Stdio};
use std::sync::mpsc::{self, Receiver, RecvTimeoutError};
use std::time::Duration;

use rustix::process::{getppid, set_parent_process_death_signal, Pid, Signal};

use crate::{clock, interrupt, Outcome};

const LOOK_EVERY: Duration = Duration::from_millis(10);
/// Longest wait for a line; long because the machine may be busy.
const PATIENCE: Duration = Duration::from_secs(300);

pub(crate) struct Child {
    process: std::process::Child,
    lines: Receiver<String>,
}

impl Child {
    /// Starts this program with `task` and `words`. The child first calls [`attach`].
    pub(crate) fn start(task: &str, words: &[&str]) -> Outcome<Self> {
        Self::start_as(task, words, |_| ())
    }

    /// Starts a child like [`Child::start`]. `change` may set the command's environment.
    pub(crate) fn start_as(
        task: &str,
        words: &[&str],
        change: impl FnOnce(&mut Command),
    ) -> Outcome<Self> {
        // In a unit test, /proc/self/exe is the test program, which takes words for test names.
        if cfg!(test) {
            panic!("unit tests start no child of this program");
        }
        let mut command = Command::new("/proc/self/exe");
        command.arg0("glebe-bench").arg("child").arg(std::process::id().to_string());
        command.arg(task).args(words);
        change(&mut command);
        Self::of(&mut command)
    }

    /// Starts another program, which has pipes for its standard input and output.
    pub(crate) fn of(command: &mut Command) -> Outcome<Self> {
        let mut process = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn()?;
        let (sender, lines) = mpsc::channel();
        let output = process.stdout.take();
        std::thread::spawn(move || {
            let lines = output.into_iter().flat_map(|output| BufReader::new(output).lines());
            lines.map_while(Result::ok).try_for_each(|line| sender.send(line))
        });
        Ok(Self { process, lines })
    }

    pub(crate) fn id(&self) -> u32 {
        self.process.id()
    }

    /// Returns the next line of output, or `None` after the last. Fails after [`PATIENCE`].
    pub(crate) fn line(&mut self) -> Outcome<Option<String>> {
        let end = clock::wall() + PATIENCE;
        loop {
            interrupt::check();
            match self.lines.recv_timeout(LOOK_EVERY) {
                Ok(line) => return Ok(Some(line)),
                Err(RecvTimeoutError::Disconnected) => return Ok(None),
                Err(RecvTimeoutError::Timeout) if clock::wall() < end => {}
                Err(_) => return Err("a child of this program took too long".into()),
            }
        }
    }

    pub(crate) fn tell(&mut self, line: &str) -> Outcome {
        let told = self.process.stdin.as_mut().map(|stdin| writeln!(stdin, "{line}"));
        Ok(told.transpose().map(drop)?)
    }

    /// Waits for the child's end and returns its output, or `None` after SIGKILL. Fails if the
    /// child failed, or if [`PATIENCE`] passed without a line.
    pub(crate) fn answer(mut self) -> Outcome<Option<String>> {
        drop(self.process.stdin.take());
        let mut output = String::new();
        while let Some(line) = self.line()? {
            output.extend([line.as_str(), "\n"]);
        }
        match self.process.wait()? {
            status if status.success() => Ok(Some(output)),
            status if status.signal() == Some(Signal::KILL.as_raw()) => Ok(None),
            status => Err(format!("a child of this program ended with {status}").into()),
        }
    }
}

impl Drop for Child {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

/// Makes this child die with process `parent`. Call it before there is a second thread. Fails if
/// `parent` has ended.
pub(crate) fn attach(parent: u32) -> Outcome {
    set_parent_process_death_signal(Some(Signal::KILL))?;
    match getppid().map(Pid::as_raw_pid) {
        Some(is) if is.unsigned_abs() == parent => Ok(()),
        _ => Err("the parent is gone".into()),
    }
}
