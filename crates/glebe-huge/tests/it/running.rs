//! [`Running`] is a daemon, and a program to run with the library preloaded.

use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use glebe::contig::{Contig, Error};
use glebe::reserve::{Reserve, ReserveError};
use glebe::units::{Bytes, PageSize};
use glebe_lease::Client;
use glebe_testing::time::wait_until;
use glebe_testing::tools::{has, run};
use glebe_testing::turn::{Turn, POOL};
use glebe_testing::Scratch;
use glebed::{Daemon, Settings};

#[path = "../../../glebe-preload/tests/it/libraries.rs"]
mod libraries;

pub const BRICK: u64 = 2 << 20;
const PATIENCE: Duration = Duration::from_secs(20);
const NOBODY: u32 = 65_534;

pub struct Running {
    daemon: Option<Daemon>,
    path: PathBuf,
    program: PathBuf,
    library: PathBuf,
    reserve: Reserve,
    _turn: Option<Turn>,
    scratch: Scratch,
}

impl Running {
    /// Starts a daemon and compiles a program of the tests, or prints what this machine lacks.
    pub fn new(source: &str, bricks: u64, settings: Settings) -> Option<Self> {
        if !has("cc") {
            println!("skipped: no C compiler");
            return None;
        }
        let (turn, scratch) = (Turn::alone(POOL), Scratch::readable("huge"));
        let reserve = reserve(bricks)?;
        let path = scratch.path().join("leases");
        // Another user cannot read the folder of the build.
        let [program, library] =
            [source.trim_end_matches(".c"), "libglebe_huge.so"].map(|it| scratch.path().join(it));
        std::fs::copy(compiled(source), &program).unwrap();
        std::fs::copy(libraries::folder().join("libglebe_huge.so"), &library).unwrap();
        let (daemon, _turn) = (None, turn);
        let mut running = Self { daemon, path, program, library, reserve, _turn, scratch };
        running.start(settings);
        Some(running)
    }

    /// Starts a daemon after the end of the one before.
    pub fn start(&mut self, settings: Settings) {
        self.daemon = None;
        let settings = Settings { path: self.path.clone(), mode: 0o666, ..settings };
        self.daemon = Some(Daemon::start(&self.reserve, settings).unwrap());
    }

    pub fn client(&self) -> Client {
        Client::connect_to(&self.path, "test").unwrap().patience(Duration::ZERO)
    }

    /// Returns a command with the library.
    pub fn with_library(&self, program: impl AsRef<OsStr>, options: &str) -> Command {
        let mut command = Command::new(program);
        command.env("LD_PRELOAD", &self.library).env("GLEBE_HUGE", options);
        command.env("GLEBE_LEASES", &self.path).current_dir("/");
        command
    }

    /// Returns a command that runs a case of the program.
    pub fn command(&self, case: &str, options: &str) -> Command {
        let mut command = self.with_library(&self.program, options);
        command.arg(case);
        command
    }

    /// Runs a case that must hold. Returns its standard error. All memory must come back.
    pub fn holds(&self, case: &str, options: &str) -> String {
        self.told(&mut self.command(case, options))
    }

    /// As [`Running::holds`], as a user without privileges, if the caller is root.
    pub fn holds_as_nobody(&self, case: &str) -> Option<String> {
        let is_root = rustix::process::geteuid().is_root();
        let mut command = self.command(case, "verbose");
        is_root.then(|| self.told(command.uid(NOBODY).gid(NOBODY)))
    }

    /// Runs a case as both users. Its last line must tell of leases, and no line of a refusal.
    pub fn passes(&self, case: &str) {
        let own = self.holds(case, "verbose");
        for said in [Some(own), self.holds_as_nobody(case)].into_iter().flatten() {
            let last = said.lines().last().unwrap_or_default();
            assert!(last.contains(": leased ") && !said.contains("refused"), "{said}");
        }
    }

    /// Runs a command, which has to end well and to leave no lease. Returns its standard error.
    pub fn told(&self, command: &mut Command) -> String {
        let output = command.output().unwrap();
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        let failed = String::from_utf8_lossy(&output.stdout).into_owned();
        assert!(output.status.success(), "{command:?}: {}\n{failed}{said}", output.status);
        self.wait_until_all_is_back();
        said
    }

    pub fn wait_until_all_is_back(&self) {
        self.wait_until_all_is_back_but(0);
    }

    pub fn wait_until_all_is_back_but(&self, held: u64) {
        let client = self.client();
        let is_back = || {
            let stats = client.stats().unwrap();
            let all = [("held_bytes", held), ("returning_bytes", 0)];
            all.iter().all(|(name, is)| stats.contains(&format!("glebe_lease_{name} {is}\n")))
        };
        wait_until("all memory is back", PATIENCE, is_back);
    }

    pub fn scratch(&self) -> &Path {
        self.scratch.path()
    }

    pub fn program(&self) -> &Path {
        &self.program
    }

    pub fn library(&self) -> &Path {
        &self.library
    }
}

fn reserve(bricks: u64) -> Option<Reserve> {
    let memory = Contig::options().bricks_of(PageSize::new(BRICK).unwrap());
    match Reserve::options().memory(memory).build(Bytes::new(bricks * BRICK)) {
        Ok(reserve) => Some(reserve),
        Err(ReserveError::Contig(
            error @ (Error::PoolShort { .. }
            | Error::TooLarge { .. }
            | Error::NoSuchSize { .. }
            | Error::CgroupLimit { .. }),
        )) => {
            println!("skipped: {error}");
            None
        }
        Err(error) => panic!("{error}"),
    }
}

/// Returns the program of a source, compiled once by this process.
fn compiled(source: &str) -> PathBuf {
    static COMPILED: Mutex<BTreeMap<String, PathBuf>> = Mutex::new(BTreeMap::new());
    let mut compiled = COMPILED.lock().unwrap_or_else(PoisonError::into_inner);
    let make = || {
        let name = format!("glebe-huge-{source}-{}", std::process::id());
        let program = Path::new(env!("CARGO_TARGET_TMPDIR")).join(name);
        let [sources, headers] =
            ["tests", "include"].map(|it| Path::new(env!("CARGO_MANIFEST_DIR")).join(it));
        let options = ["-O1", "-pthread", "-Wall", "-Wextra", "-Werror", "-o"];
        let mut cc = Command::new("cc");
        run(cc.args(options).arg(&program).arg(sources.join(source)).arg("-I").arg(headers));
        program
    };
    compiled.entry(source.to_owned()).or_insert_with(make).clone()
}
