//! [`Running`] is a daemon, and a program to run with the library preloaded.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;
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
const PATIENCE: Duration = Duration::from_secs(10);

pub struct Running {
    _daemon: Daemon,
    path: PathBuf,
    program: PathBuf,
    library: PathBuf,
    _reserve: Reserve,
    _turn: Option<Turn>,
    scratch: Scratch,
}

impl Running {
    /// Starts a daemon and compiles `traps.c`, or prints what this machine lacks.
    pub fn new(bricks: u64, settings: Settings) -> Option<Self> {
        if !has("cc") {
            println!("skipped: no C compiler");
            return None;
        }
        let (turn, scratch) = (Turn::alone(POOL), Scratch::readable("huge"));
        let reserve = reserve(bricks)?;
        let path = scratch.path().join("leases");
        let daemon = Daemon::start(&reserve, Settings { path: path.clone(), ..settings }).unwrap();
        // Another user cannot read the folder of the build.
        let [program, library] = ["traps", "libglebe_huge.so"].map(|it| scratch.path().join(it));
        std::fs::copy(compiled(), &program).unwrap();
        std::fs::copy(libraries::folder().join("libglebe_huge.so"), &library).unwrap();
        let (_daemon, _reserve, _turn) = (daemon, reserve, turn);
        Some(Self { _daemon, path, program, library, _reserve, _turn, scratch })
    }

    pub fn client(&self) -> Client {
        Client::connect_to(&self.path, "test").unwrap().patience(Duration::ZERO)
    }

    /// Returns a command that runs a case of `traps.c`.
    pub fn command(&self, case: &str, options: &str) -> Command {
        let mut command = Command::new(&self.program);
        command.arg(case).env("LD_PRELOAD", &self.library).env("GLEBE_HUGE", options);
        command.env("GLEBE_LEASES", &self.path).current_dir("/");
        command
    }

    /// Runs a case that must hold. Returns its standard error. All memory must come back.
    pub fn holds(&self, case: &str, options: &str) -> String {
        let output = self.command(case, options).output().unwrap();
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        let failed = String::from_utf8_lossy(&output.stdout).into_owned();
        assert!(output.status.success(), "{case}: {}\n{failed}{said}", output.status);
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

    pub fn socket(&self) -> &Path {
        &self.path
    }

    pub fn scratch(&self) -> &Path {
        self.scratch.path()
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

fn compiled() -> &'static Path {
    static PROGRAM: OnceLock<PathBuf> = OnceLock::new();
    PROGRAM.get_or_init(|| {
        let name = format!("glebe-huge-traps-{}", std::process::id());
        let program = Path::new(env!("CARGO_TARGET_TMPDIR")).join(name);
        let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/traps.c");
        let options = ["-O1", "-pthread", "-Wall", "-Wextra", "-Werror", "-o"];
        let headers = Path::new(env!("CARGO_MANIFEST_DIR")).join("include");
        run(Command::new("cc").args(options).arg(&program).arg(source).arg("-I").arg(headers));
        program
    })
}
