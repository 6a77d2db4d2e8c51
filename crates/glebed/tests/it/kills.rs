//! Kills clients at any moment. No page may be lost, in two leases, or have another's bytes.

use std::io::{BufRead, BufReader};
use std::process::{Child, Stdio};
use std::time::{Duration, Instant};

use glebe::units::Bytes;
use glebe_lease::wire::Flags;
use glebe_lease::{Client, LeaseError};
use glebe_testing::process::{child_of, is_child};
use glebe_testing::time::is_long;

use super::marked;
use super::running::{brick, settings, wish, Running};

const PATH: &str = "GLEBE_TEST_LEASES";
const TEST: &str = "kills::killed_clients_leave_all_pages_and_no_byte";
const BRICKS: u64 = 24;
const CLIENTS: usize = 4;

/// Leases, checks for zeros, writes its own mark, checks it, and gives back, for ever.
fn client() {
    let path = std::env::var_os(PATH).unwrap();
    let client = Client::connect_to(path.as_ref(), "killed").unwrap();
    let mark = std::process::id().to_le_bytes();
    println!("ready");
    for round in 0.. {
        let flags =
            Flags { one_file: round % 7 == 3, revocable: round % 3 == 0, ..Flags::default() };
        let lease = match client.lease(wish(1 + round % 5, flags)) {
            Ok(lease) => lease,
            Err(LeaseError::Refused { .. }) => continue,
            Err(error) => panic!("{error}"),
        };
        marked::tell(marked::mark(&lease, mark, flags.revocable));
    }
}

struct Victim(Child, BufReader<std::process::ChildStdout>);

impl Victim {
    fn start(running: &Running) -> Self {
        let mut command = child_of(TEST);
        let mut child = command.env(PATH, &running.path).stdout(Stdio::piped()).spawn().unwrap();
        let mut out = BufReader::new(child.stdout.take().unwrap());
        let mut line = String::new();
        while !line.contains("ready") {
            line.clear();
            assert!(out.read_line(&mut line).unwrap() > 0, "the client ended");
        }
        Self(child, out)
    }

    /// Kills the client. Returns what it said.
    fn kill(mut self) -> String {
        self.0.kill().unwrap();
        self.0.wait().unwrap();
        let mut said = String::new();
        while self.1.read_line(&mut said).unwrap() > 0 {}
        said
    }
}

#[test]
fn killed_clients_leave_all_pages_and_no_byte() {
    if is_child() {
        return client();
    }
    let Some(running) = Running::new(BRICKS, settings(8)) else { return };
    let kills = if is_long() { 2000 } else { 60 };
    let begin = Instant::now();
    let mut victims: Vec<Victim> = (0..CLIENTS).map(|_| Victim::start(&running)).collect();
    for nth in 0..kills {
        std::thread::sleep(Duration::from_micros((nth * 7919) % 9000));
        let said = victims.remove((nth as usize * 3) % CLIENTS).kill();
        assert!(!said.contains("wrong"), "{said}");
        victims.push(Victim::start(&running));
    }
    let said: Vec<String> = victims.into_iter().map(Victim::kill).collect();
    assert!(said.iter().all(|said| !said.contains("wrong")), "{said:?}");
    running.wait_until_all_is_back();
    println!("{kills} kills in {:?}", begin.elapsed());
    let client = running.client();
    let stats = client.stats().unwrap();
    let all = client.lease(wish(BRICKS, Flags::default())).unwrap();
    assert_eq!(all.len(), Bytes::new(BRICKS * brick()), "{stats}");
    let mut bytes = vec![0; all.len().as_usize()];
    all.read(Bytes::ZERO, &mut bytes).unwrap();
    assert!(bytes.iter().all(|byte| *byte == 0));
}
