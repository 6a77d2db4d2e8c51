//! [`Offering`] is a program that offers memory.

use std::io::{BufRead, BufReader, Write};
use std::process::{Child, ChildStdout, Stdio};
use std::time::Duration;

use glebe::units::Bytes;
use glebe_lease::{Client, Lease};
use glebed::Settings;

use crate::running::{Running, BRICK};

pub const BRICKS: u64 = 16;

pub struct Offering {
    child: Child,
    said: BufReader<ChildStdout>,
}

impl Offering {
    pub fn start(running: &Running) -> Self {
        Self::of(running, "offered")
    }

    pub fn of(running: &Running, case: &str) -> Self {
        let mut command = running.command(case, "revocable");
        let piped = command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::null());
        let mut child = piped.spawn().unwrap();
        let said = BufReader::new(child.stdout.take().unwrap());
        let mut offering = Self { child, said };
        assert_eq!(offering.line(), "offered\n");
        offering
    }

    fn line(&mut self) -> String {
        let mut line = String::new();
        self.said.read_line(&mut line).unwrap();
        line
    }

    /// Lets the program keep its memory. Returns what it says.
    pub fn keep(mut self) -> String {
        self.child.stdin.take().unwrap().write_all(b"\n").unwrap();
        let line = self.line();
        assert!(self.child.wait().unwrap().success(), "{line}");
        line
    }
}

pub fn settings() -> Settings {
    Settings { notice: Duration::from_millis(20), ..Settings::default() }
}

pub fn leased(running: &Running, bricks: u64) -> Option<Lease> {
    let client: Client = running.client().patience(Duration::from_secs(5));
    client.lease(Bytes::new(bricks * BRICK)).ok()
}
