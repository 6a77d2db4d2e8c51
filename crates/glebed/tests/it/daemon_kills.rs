//! Kills the daemon at any moment. Clients keep their leases, and the pool gets its pages back.

use std::io::{BufRead, BufReader, Read};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{channel, Receiver};
use std::time::Duration;

use glebe::contig::PoolLock;
use glebe::internal::sys::machine::hugetlb::{Pool, PoolCounts};
use glebe::units::{Bytes, PageSize};
use glebe_lease::wire::Flags;
use glebe_lease::{Client, LeaseError};
use glebe_testing::process::{child_of, is_child};
use glebe_testing::time::{is_long, wait_until};
use glebe_testing::turn::{Turn, POOL};
use glebe_testing::Scratch;
use glebed::{Daemon, Settings};

use super::marked::{fault, mark, tell};
use super::running::{brick, reserve, settings, wish, PATIENCE};

const TEST: &str = "daemon_kills::clients_keep_leases_and_the_pool_its_pages";
const PATH: &str = "GLEBE_TEST_LEASES";
const IS_CLIENT: &str = "GLEBE_TEST_IS_CLIENT";
const BRICKS: u64 = 16;
const CLIENTS: usize = 3;

/// Uses leases of one daemon after another until the parent closes the standard input.
fn client(path: &Path) {
    let (end, is_over) = channel();
    std::thread::spawn(move || end.send(std::io::stdin().read_to_end(&mut Vec::new()).is_ok()));
    let own = std::process::id().to_le_bytes();
    let (mut outlived, mut leased) = (0, 0);
    while is_over.try_recv().is_err() {
        let Ok(client) = Client::connect_to(path, "killing") else {
            std::thread::sleep(Duration::from_millis(1));
            continue;
        };
        let mut kept = Vec::new();
        for round in leased.. {
            let flags =
                Flags { one_file: round % 7 == 3, revocable: round % 3 == 0, ..Flags::default() };
            match client.lease(wish(1 + round % 3, flags)) {
                Ok(lease) => {
                    leased += 1;
                    tell(mark(&lease, own, flags.revocable));
                    kept.push((lease, flags.revocable));
                }
                Err(LeaseError::Refused { .. }) => kept.truncate((kept.len() / 2).max(1)),
                Err(LeaseError::Connection(_)) => break,
                Err(error) => panic!("{error}"),
            }
            if is_over.try_recv().is_ok() {
                return println!("done {outlived}");
            }
        }
        kept.iter().for_each(|(lease, may_end)| tell(fault(lease, own, *may_end)));
        outlived += kept.len();
    }
    println!("done {outlived}");
}

/// Serves until it is killed.
fn daemon(path: &Path) {
    let Some(reserve) = reserve(BRICKS, BRICKS) else { return };
    let settings = Settings { path: path.to_owned(), ..settings(4) };
    let _daemon = Daemon::start(&reserve, settings).unwrap();
    println!("ready");
    std::io::stdin().read_to_end(&mut Vec::new()).unwrap();
}

struct Started {
    child: Child,
    said: Receiver<String>,
}

impl Started {
    fn new(command: &mut Command, path: &Path) -> Self {
        let command = command.env(PATH, path).stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = command.spawn().unwrap();
        let (lines, said) = channel();
        let out = BufReader::new(child.stdout.take().unwrap());
        std::thread::spawn(move || {
            out.lines().map_while(Result::ok).try_for_each(|l| lines.send(l))
        });
        Self { child, said }
    }

    fn daemon(path: &Path) -> Option<Self> {
        let started = Self::new(&mut child_of(TEST), path);
        let is_answer = |line: &String| line.contains("ready") || line.contains("skipped: ");
        let told = started.said.iter().find(is_answer).expect("the daemon starts");
        let is_ready = told.contains("ready");
        if !is_ready {
            println!("{told}");
        }
        is_ready.then_some(started)
    }

    /// Kills a process that nobody ended.
    fn kill(&mut self) {
        let _ = self.child.kill();
        self.child.wait().unwrap();
    }

    /// Returns the leases that outlived their daemon.
    fn end(mut self) -> usize {
        drop(self.child.stdin.take());
        let said: Vec<String> = self.said.iter().collect();
        let status = self.child.wait().unwrap();
        assert!(status.success(), "{status}: {said:?}");
        assert!(said.iter().all(|line| !line.contains("wrong")), "{said:?}");
        let done = said.iter().find_map(|line| line.split_once("done ")?.1.parse().ok());
        done.expect("the client says how many")
    }
}

impl Drop for Started {
    fn drop(&mut self) {
        self.kill();
    }
}

/// Returns the pool's state without what a killed process left undone.
fn counts() -> Option<(PoolCounts, u64)> {
    let pool = Pool::of(PageSize::new(2 << 20)?)?;
    let _mended = pool.is_writable().then(PoolLock::acquire);
    Some((pool.counts().ok()?, pool.overcommit().ok()?))
}

#[test]
fn clients_keep_leases_and_the_pool_its_pages() {
    if let Some(path) = std::env::var_os(PATH).filter(|_| is_child()) {
        return match std::env::var_os(IS_CLIENT) {
            Some(_) => client(path.as_ref()),
            None => daemon(path.as_ref()),
        };
    }
    let _turn = Turn::alone(POOL);
    let before = counts();
    let scratch = Scratch::new("daemon-kills");
    let path = scratch.path().join("leases");
    let Some(mut daemon) = Started::daemon(&path) else { return };
    let as_client = || Started::new(child_of(TEST).env(IS_CLIENT, "1"), &path);
    let clients: Vec<Started> = (0..CLIENTS).map(|_| as_client()).collect();
    let mut own = Vec::new();
    for nth in 0..if is_long() { 100 } else { 5_u32 } {
        let client = Client::connect_to(&path, "keeps").unwrap();
        let leased = || client.lease(Bytes::new(brick())).map(|lease| own.push(lease)).is_ok();
        wait_until("a lease", PATIENCE, leased);
        assert_eq!(mark(&own[own.len() - 1], nth.to_le_bytes(), false), None);
        let others = || !client.stats().unwrap().contains("glebe_lease_leased_total 1\n");
        wait_until("the others have leases", PATIENCE, others);
        std::thread::sleep(Duration::from_micros(u64::from(nth) * 7919 % 20_000));
        daemon.kill();
        daemon = Started::daemon(&path).expect("memory for the next daemon");
        // A dead daemon's lease does not hinder its successors.
        let kept = own.last().expect("it was leased");
        let mut seen = [0; 4];
        kept.read(Bytes::ZERO, &mut seen).unwrap();
        assert_eq!(seen, nth.to_le_bytes());
        own.drain(..own.len().saturating_sub(4));
    }
    daemon.kill();
    let outlived: usize = clients.into_iter().map(Started::end).sum();
    assert!(outlived > 0, "no client had a lease when its daemon died");
    drop(own);
    wait_until("the pool is as before", PATIENCE, || counts() == before);
}
