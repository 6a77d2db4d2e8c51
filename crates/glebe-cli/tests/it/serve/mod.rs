//! Tests `glebe serve` and `glebe recall` as a user or a service manager runs them.

mod access;
mod config;
mod crowd;
pub mod leases;
mod lend;
mod logs;
mod metrics;
mod nodes;
mod recall;
mod service;
mod stopped;
mod table;
mod unit;
mod user;

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::process::{Child, ChildStdout, Command, Output, Stdio};
use std::time::Duration;

use glebe_testing::time::{slowed, wait_until};
use rustix::process::{waitpid, Pid, WaitOptions};

pub fn patience() -> Duration {
    slowed(Duration::from_secs(20))
}

pub fn glebe() -> Command {
    Command::new(env!("CARGO_BIN_EXE_glebe"))
}

fn output(args: &[&str]) -> Output {
    glebe().args(args).stdin(Stdio::null()).output().expect("the program starts")
}

/// Waits until all threads of a child that got SIGSTOP have stopped.
fn wait_until_stopped(child: u32) {
    let pid = Pid::from_raw(child as i32);
    let (_, status) = waitpid(pid, WaitOptions::UNTRACED).expect("a child").expect("its status");
    assert!(status.stopped(), "{status:?}");
}

pub struct Serving {
    child: Child,
    // Kept open for later output.
    _stdout: BufReader<ChildStdout>,
    pub said: Vec<String>,
}

impl Serving {
    pub fn start(command: &mut Command, lines: usize) -> Self {
        let mut child = command.stdout(Stdio::piped()).spawn().expect("the program starts");
        let mut stdout = BufReader::new(child.stdout.take().expect("a pipe"));
        let said = (0..lines).map(|_| line(&mut stdout)).collect();
        Self { child, _stdout: stdout, said }
    }

    fn at_a_port(options: &[&str]) -> Self {
        let mut command = glebe();
        command.args(["serve", "--memcached", "--no-stats", "-l", "127.0.0.1:0"]).args(options);
        Self::start(&mut command, 2)
    }

    fn connect(&self) -> TcpStream {
        let address = self.said.iter().find_map(|line| line.strip_prefix("listening at tcp:"));
        let stream = TcpStream::connect(address.expect("a TCP socket")).expect("connect");
        stream.set_read_timeout(Some(patience())).expect("a timeout");
        stream
    }

    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    pub fn signal(&self, name: &str) {
        let status = Command::new("kill").args(["-s", name, &self.pid().to_string()]).status();
        assert!(status.expect("kill").success());
    }

    pub fn ends_well(&mut self) {
        let mut ended = None;
        wait_until("its end", Duration::from_secs(20), || {
            ended = self.child.try_wait().expect("a child");
            ended.is_some()
        });
        assert!(ended.is_some_and(|status| status.success()), "{ended:?}");
    }
}

impl Drop for Serving {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn line(from: &mut impl BufRead) -> String {
    let mut line = String::new();
    from.read_line(&mut line).expect("a line");
    line.trim_end().to_owned()
}

fn dialogue(stream: &mut (impl Read + Write), says: &str, hears: &str) {
    stream.write_all(says.replace('\n', "\r\n").as_bytes()).expect("taken");
    let mut got = vec![0; hears.replace('\n', "\r\n").len()];
    stream.read_exact(&mut got).expect("an answer");
    assert_eq!(String::from_utf8_lossy(&got).replace("\r\n", "\n"), hears);
}

fn list(stream: &mut (impl Read + Write), says: &str) -> Vec<String> {
    stream.write_all(format!("{says}\r\n").as_bytes()).expect("taken");
    let mut reader = BufReader::new(stream);
    std::iter::repeat_with(|| line(&mut reader)).take_while(|line| line != "END").collect()
}
