//! [`Running`] is a daemon on a small reserve, and programs that run with the library.

use std::fs;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use glebe::contig::{Contig, Error};
use glebe::reserve::{Reserve, ReserveError};
use glebe::units::{Bytes, PageSize};
use glebe_lease::Client;
use glebe_testing::time::wait_until;
use glebe_testing::turn::{Turn, POOL};
use glebe_testing::{tools, Scratch};
use glebed::{Daemon, Settings};

#[path = "../../../glebe-preload/tests/it/libraries.rs"]
mod libraries;

/// Bytes of the daemon.
const RESERVE: Bytes = Bytes::mib(48);
const PATIENCE: Duration = Duration::from_secs(20);
const NOBODY: u32 = 65534;

pub struct Running {
    _daemon: Daemon,
    _reserve: Reserve,
    socket: PathBuf,
    program: PathBuf,
    library: PathBuf,
    scratch: Scratch,
    _turn: Option<Turn>,
}

impl Running {
    /// Starts a daemon and compiles a program of the tests, or prints why this machine cannot.
    pub fn new(source: &str) -> Option<Self> {
        if !tools::has("cc") {
            return None;
        }
        let (turn, scratch) = (Turn::alone(POOL), Scratch::readable("huge"));
        let page = PageSize::new(2 << 20).expect("a power of two");
        let memory = Contig::options().bricks_of(page);
        let reserve = match Reserve::options().memory(memory).room(RESERVE).build(RESERVE) {
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
        let at = |name: &str| scratch.path().join(name);
        let settings = Settings { path: at("leases"), mode: 0o666, ..Settings::default() };
        let daemon = Daemon::start(&reserve, settings).expect("a daemon");
        // Another user may not enter the folder of the sources.
        let (program, library) = (at("program"), at("libglebe_huge.so"));
        let sources = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/files");
        let options = ["-O1", "-Wall", "-Wextra", "-Werror", "-pthread", "-o"];
        tools::run(Command::new("cc").args(options).arg(&program).arg(sources.join(source)));
        let built = libraries::folder().join("libglebe_huge.so");
        fs::copy(built, &library).expect("cargo made the library");
        Some(Self {
            _daemon: daemon,
            _reserve: reserve,
            socket: at("leases"),
            program,
            library,
            scratch,
            _turn: turn,
        })
    }

    pub fn program(&self) -> &Path {
        &self.program
    }

    pub fn library(&self) -> &Path {
        &self.library
    }

    pub fn folder(&self) -> &Path {
        self.scratch.path()
    }

    /// Returns a command with the library.
    pub fn command(&self, program: impl AsRef<Path>, words: &str) -> Command {
        let mut command = Command::new(program.as_ref());
        command.env("LD_PRELOAD", &self.library).env("GLEBE_LEASES", &self.socket);
        command.env("GLEBE_HUGE", words).current_dir("/");
        command
    }

    /// Runs a check of the program. Returns what the library told about it at its end.
    pub fn check(&self, name: &str) -> String {
        let mut command = self.command(&self.program, "verbose");
        self.told(command.arg(name))
    }

    /// Runs a check as a user without privileges, if the caller is root.
    pub fn check_as_nobody(&self, name: &str) -> Option<String> {
        if glebe::internal::sys::processes::process::effective_user() != 0 {
            return None;
        }
        let mut command = self.command(&self.program, "verbose");
        command.arg(name).uid(NOBODY).gid(NOBODY);
        Some(self.told(&mut command))
    }

    /// Runs a command, which has to end well and to leave no lease. Returns its last line.
    pub fn told(&self, command: &mut Command) -> String {
        let output = command.output().expect("the program starts");
        let told = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(output.status.success(), "{}: {told}", output.status);
        self.has_all_back();
        told.lines().last().unwrap_or_default().to_owned()
    }

    /// Waits until no lease is left.
    pub fn has_all_back(&self) {
        let client = Client::connect_to(&self.socket, "test").expect("a daemon");
        wait_until("all memory is back", PATIENCE, || {
            let stats = client.stats().expect("an answer");
            stats.contains("glebe_lease_held_bytes 0\n")
        });
    }
}
