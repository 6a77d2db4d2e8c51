//! [`Child`]: this program started again, with words that only it knows, to do one task apart.
//!
//! A child answers in lines on its standard output, reads lines from its standard input, and dies
//! with its parent. Dropped, one that still runs is killed. A parent that was told to end unwinds
//! from every wait here ([`interrupt`]). Source: prctl(2).

use std::io::{BufRead, BufReader, Write};
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::process::{Command, Stdio};
use std::sync::mpsc::{self, Receiver, RecvTimeoutError};
use std::time::Duration;

use rustix::process::{getppid, set_parent_process_death_signal, Pid, Signal};

use crate::{clock, interrupt, Outcome};

const LOOK_EVERY: Duration = Duration::from_millis(10);
/// No child takes as long for a line on a machine that does anything else at all.
const PATIENCE: Duration = Duration::from_secs(300);

pub(crate) struct Child {
    process: std::process::Child,
    lines: Receiver<String>,
}

impl Child {
    /// Starts this program with `task` and `words`; the child is in [`attach`] first of all.
    pub(crate) fn start(task: &str, words: &[&str]) -> Outcome<Self> {
        Self::start_as(task, words, |_| ())
    }

    /// The same, with what `change` does to the command: its environment.
    pub(crate) fn start_as(
        task: &str,
        words: &[&str],
        change: impl FnOnce(&mut Command),
    ) -> Outcome<Self> {
        // Of a test it would be the test program, which takes the words for names of tests.
        if cfg!(test) {
            panic!("unit tests start no child of this program");
        }
        let mut command = Command::new("/proc/self/exe");
        command.arg0("glebe-bench").arg("child").arg(std::process::id().to_string());
        command.arg(task).args(words).stdin(Stdio::piped()).stdout(Stdio::piped());
        change(&mut command);
        let mut process = command.spawn()?;
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

    /// Its next line; `None` once it writes no more; an error after [`PATIENCE`].
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

    /// Waits for its end; what it wrote, its lines ended, or nothing if it was killed; an error if
    /// it failed, or took too long.
    pub(crate) fn answer(mut self) -> Outcome<Option<String>> {
        drop(self.process.stdin.take());
        let mut output = String::new();
        while let Some(line) = self.line()? {
            output.extend([line.as_str(), "\n"]);
        }
        // It has closed its output, which it does when it ends.
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

/// In the child, before it has a second thread: has it die when process `parent` does; an error if
/// that is not its parent, or gone.
pub(crate) fn attach(parent: u32) -> Outcome {
    set_parent_process_death_signal(Some(Signal::KILL))?;
    match getppid().map(Pid::as_raw_pid) {
        Some(is) if is.unsigned_abs() == parent => Ok(()),
        _ => Err("the parent is gone".into()),
    }
}
