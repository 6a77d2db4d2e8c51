//! [`Purging`] runs `glebe reclaim` and reads its log.

use std::io::{BufRead, BufReader};
use std::process::{Child, Command, ExitStatus, Output, Stdio};
use std::sync::mpsc::{channel, Receiver, RecvTimeoutError};
use std::time::{Duration, Instant};

use glebe_testing::time::{slowed, wait_until};
use rustix::process::{kill_process, Pid, Signal};

pub(crate) fn patience() -> Duration {
    slowed(Duration::from_secs(20))
}

pub(crate) fn glebe() -> Command {
    Command::new(env!("CARGO_BIN_EXE_glebe"))
}

pub(crate) fn output<S: AsRef<std::ffi::OsStr>>(args: impl IntoIterator<Item = S>) -> Output {
    glebe().arg("reclaim").args(args).stdin(Stdio::null()).output().expect("the program starts")
}

pub(crate) struct Purging {
    child: Child,
    lines: Receiver<String>,
    pub said: Vec<String>,
}

impl Purging {
    pub(crate) fn start<S: AsRef<std::ffi::OsStr>>(args: impl IntoIterator<Item = S>) -> Self {
        Self::of(glebe().arg("reclaim").args(args))
    }

    pub(crate) fn of(command: &mut Command) -> Self {
        let mut child = command.stderr(Stdio::piped()).spawn().expect("the program starts");
        let stderr = BufReader::new(child.stderr.take().expect("a pipe"));
        let (sender, lines) = channel();
        std::thread::spawn(move || {
            for line in stderr.lines().map_while(Result::ok) {
                if sender.send(line).is_err() {
                    break;
                }
            }
        });
        Self { child, lines, said: Vec::new() }
    }

    /// Waits for a line that contains `text`; skips earlier lines.
    #[track_caller]
    pub(crate) fn says(&mut self, text: &str) -> String {
        let end = Instant::now() + patience();
        let mut before = Vec::new();
        loop {
            match self.lines.recv_timeout(end.saturating_duration_since(Instant::now())) {
                Ok(line) => {
                    assert!(line.starts_with("glebe"), "{line}");
                    self.said.push(line.clone());
                    if line.contains(text) {
                        return line;
                    }
                    before.push(line);
                }
                Err(why) => panic!("no {text:?} in {before:#?}: {why}"),
            }
        }
    }

    pub(crate) fn listen(&mut self, time: Duration) -> Vec<String> {
        let end = Instant::now() + time;
        let mut heard = Vec::new();
        loop {
            match self.lines.recv_timeout(end.saturating_duration_since(Instant::now())) {
                Ok(line) => {
                    self.said.push(line.clone());
                    heard.push(line);
                }
                Err(RecvTimeoutError::Timeout | RecvTimeoutError::Disconnected) => return heard,
            }
        }
    }

    pub(crate) fn signal(&self, signal: Signal) {
        let pid = Pid::from_raw(self.child.id() as i32).unwrap();
        kill_process(pid, signal).expect("it runs");
    }

    pub(crate) fn end(&mut self) -> ExitStatus {
        let mut ended = None;
        wait_until("its end", Duration::from_secs(20), || {
            ended = self.child.try_wait().unwrap();
            ended.is_some()
        });
        ended.expect("it has ended")
    }

    #[track_caller]
    pub(crate) fn ends_well(&mut self) {
        self.signal(Signal::TERM);
        self.says("ended by a signal");
        assert_eq!(self.end().code(), Some(0));
    }
}

impl Drop for Purging {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
        if std::thread::panicking() {
            self.listen(Duration::from_millis(100));
            eprintln!("the log: {:#?}", self.said);
        }
    }
}
