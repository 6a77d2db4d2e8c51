//! Runs the programs about leases and shared caches, with a daemon if this machine has memory.

use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::Command;
use std::time::Duration;

use glebe::contig::{Contig, Error};
use glebe::reserve::{Reserve, ReserveError};
use glebe::units::Bytes;
use glebe_testing::turn::{Turn, POOL};
use glebe_testing::Scratch;
use glebed::{Daemon, Settings};

use super::{archived, compiled, of_several, runs, By, BOTH, NOBODY};
use crate::built::{has, run};

/// Eight huge pages.
const MEMORY: Bytes = Bytes::mib(16);

/// A daemon for every user of the machine.
struct Lender {
    _daemon: Daemon,
    socket: PathBuf,
    _turn: Option<Turn>,
    _scratch: Scratch,
}

impl Lender {
    /// Starts a daemon, or prints why this machine has no memory for it.
    fn start() -> Option<Self> {
        let (turn, scratch) = (Turn::alone(POOL), Scratch::readable("lender"));
        let memory = Contig::options().bricks();
        let reserve = match Reserve::options().memory(memory).room(MEMORY).build(MEMORY) {
            Ok(reserve) => reserve,
            Err(ReserveError::Contig(
                error @ (Error::PoolShort { .. }
                | Error::TooLarge { .. }
                | Error::NoSuchSize { .. }
                | Error::CgroupLimit { .. }),
            )) => {
                println!("skipped: {error}");
                return None;
            }
            Err(error) => panic!("{error}"),
        };
        let socket = scratch.path().join("leases");
        let settings = Settings {
            path: socket.clone(),
            mode: 0o666,
            group: None,
            zeroed: Bytes::mib(4),
            notice: Duration::from_millis(200),
            ..Settings::default()
        };
        let daemon = Daemon::start(&reserve, settings).unwrap();
        Some(Self { _daemon: daemon, socket, _turn: turn, _scratch: scratch })
    }
}

fn with_a_daemon(compiler: &str, options: &[&str], source: &str) {
    if !has(compiler) {
        return;
    }
    let scratch = compiled(compiler, options, source);
    let program = scratch.path().join("program");
    runs(&program, source, &[By::Caller]);
    let Some(lender) = Lender::start() else { return };
    let is_root = glebe::internal::sys::processes::process::effective_user() == 0;
    for by in BOTH {
        let mut command = Command::new(&program);
        command.arg(&lender.socket).arg(MEMORY.get().to_string()).current_dir("/");
        match (by, is_root) {
            (By::Other, true) => drop(command.uid(NOBODY).gid(NOBODY)),
            (By::Other, false) => continue,
            (By::Caller, _) => {}
        }
        let output = run(&mut command);
        assert_eq!(String::from_utf8_lossy(&output.stdout), format!("{source}: ok\n"));
    }
}

#[test]
fn leases_from_c() {
    with_a_daemon("cc", &["-std=c99"], "lease.c");
    archived::run("lease.c", of_several(By::Other));
}

#[test]
fn shared_caches_from_c() {
    with_a_daemon("cc", &["-std=c99"], "shared_cache.c");
    archived::run("shared_cache.c", &[By::Caller]);
}

#[test]
fn shared_caches_from_cpp() {
    with_a_daemon("c++", &["-std=c++11"], "shared_cache.cpp");
}

#[test]
fn leases_from_cpp() {
    with_a_daemon("c++", &["-std=c++11"], "lease.cpp");
}
