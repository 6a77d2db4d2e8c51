//! Tests that static programs get huge pages of the daemon by the supervisor of `glebe run`, though
//! the machine's pool is empty.

mod pages;
mod processes;

use std::io::{BufRead, BufReader, Lines};
use std::os::unix::fs::{chown, PermissionsExt};
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::{Child, ChildStdout, Command, Output, Stdio};
use std::time::Duration;

use glebe::contig::PoolLock;
use glebe::internal::sys::machine::hugetlb::{Pool, PoolCounts};
use glebe::internal::sys::processes::process::effective_user;
use glebe::internal::sys::processes::seccomp;
use glebe::units::PageSize;
use glebe_testing::time::wait_until;
use glebe_testing::turn::{Turn, POOL};
use glebe_testing::Scratch;

use crate::reachable::{Reachable, NOBODY};
use crate::serve::leases::lacks_memory;
use crate::serve::Serving;

/// Memory of the daemon: an eighth of `-m 64` stays with its cache.
const LENT_MIB: u64 = 54;

/// Returns the flags of `glebe run` for some wishes.
fn flags(wishes: &str) -> Vec<String> {
    let wishes = wishes.split(',').filter(|wish| !wish.is_empty()).map(|wish| format!("--{wish}"));
    ["--contig", "--supervise"].map(str::to_owned).into_iter().chain(wishes).collect()
}

fn pool() -> PoolCounts {
    Pool::of(PageSize::new(2 << 20).unwrap()).expect("a pool").counts().unwrap()
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Origin {
    /// Root's daemon adds surplus pages.
    Surplus,
    /// The pool has pages of its own for the daemon of this user.
    Pool(u32),
}

/// A daemon that has all pages of the pool.
struct Lender {
    origin: Origin,
    before: PoolCounts,
    server: Option<Serving>,
    program: Reachable,
    place: Scratch,
    _turn: Turn,
}

impl Lender {
    /// Starts a daemon, or prints why the test is skipped.
    fn new(origin: Origin) -> Option<Self> {
        let turn = Turn::alone(POOL)?;
        if effective_user() != 0 {
            println!("skipped: the caller is not root");
            return None;
        }
        if let Some(lack) = seccomp::lack() {
            println!("skipped: {lack}");
            return None;
        }
        let before = pool();
        // Pages that the pool is to keep would leave it, as surplus pages of others.
        if before.available() > 0 || before.surplus > 0 && origin != Origin::Surplus {
            println!("skipped: the pool has free or surplus pages of others: {before:?}");
            return None;
        }
        let (program, place) = (Reachable::new(), Scratch::readable("supervised"));
        let mut this = Self { origin, before, server: None, program, place, _turn: turn };
        this.compile()?;
        this.start()?;
        assert_eq!(pool().available(), 0, "the pool is empty");
        Some(this)
    }

    fn compile(&self) -> Option<()> {
        let source = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/it/supervised/asks.c");
        let mut cc = Command::new("cc");
        let output = cc.args(["-static", "-pthread", "-o"]).arg(self.asks()).arg(source).output();
        let said = match output {
            Ok(output) if output.status.success() => return Some(()),
            Ok(output) => String::from_utf8_lossy(&output.stderr).into_owned(),
            Err(error) => error.to_string(),
        };
        println!("skipped: cc -static: {}", said.lines().next().unwrap_or_default());
        None
    }

    fn start(&mut self) -> Option<()> {
        let user = match self.origin {
            Origin::Surplus => 0,
            Origin::Pool(user) => user,
        };
        if self.origin != Origin::Surplus {
            let len = format!("{LENT_MIB}M");
            let mut reserve = self.glebe();
            reserve.args(["contig", "reserve", &len, "--record"]);
            let output = reserve.arg(self.record()).output().expect("glebe starts");
            assert!(output.status.success(), "{output:?}");
        }
        let of_user = self.place.path().join("server");
        std::fs::create_dir(&of_user).unwrap();
        chown(&of_user, Some(user), Some(user)).unwrap();
        let wrong = std::fs::File::create(self.place.path().join("wrong")).unwrap();
        let mut command = self.glebe();
        command.args(["serve", "--no-stats", "--leases", "-m", "64", "--lease-zeroed", "4M", "-s"]);
        command.arg(of_user.join("cache")).arg("--lease-socket").arg(self.socket());
        let server = Serving::start(command.uid(user).gid(user).stderr(wrong), 3);
        let has_pages =
            server.said[0].starts_with(&format!("{LENT_MIB} MiB of memory from hugetlb"));
        if !has_pages {
            let said = std::fs::read_to_string(self.place.path().join("wrong")).unwrap();
            lacks_memory(&format!("{} {said}", server.said[0]));
            return None;
        }
        self.server = Some(server);
        Some(())
    }

    fn glebe(&self) -> Command {
        let mut command = Command::new(self.program.program());
        command.env("GLEBE_LEASES", self.socket()).current_dir("/");
        command
    }

    fn asks(&self) -> PathBuf {
        self.place.path().join("asks")
    }

    fn record(&self) -> PathBuf {
        self.place.path().join("record")
    }

    fn socket(&self) -> PathBuf {
        self.place.path().join("server/leases")
    }

    /// Lets other users connect.
    fn open_to_all(&self) {
        std::fs::set_permissions(self.socket(), PermissionsExt::from_mode(0o666)).unwrap();
    }

    /// Returns a supervised program that makes the requests of `words`.
    fn run(&self, wishes: &str, words: &[&str]) -> Command {
        let mut command = self.glebe();
        command.arg("run").args(flags(wishes)).arg("--").arg(self.asks()).args(words);
        command.stdin(Stdio::null());
        command
    }

    fn release(&self) {
        // The next holder of the lock undoes a change of the pool that a killed daemon began.
        drop(PoolLock::acquire());
        if self.record().exists() {
            let mut release = self.glebe();
            release.args(["contig", "release", "--record"]).arg(self.record());
            let _ = release.output();
        }
    }

    /// Asserts that the daemon has all its pages again.
    fn has_all_back(&self) {
        let said = |args: &[&str]| text(&self.glebe().args(args).output().expect("glebe starts"));
        wait_until("the leases end", Duration::from_secs(20), || {
            said(&["leases"]).0 == "no leases\n"
        });
        self.can_lend(LENT_MIB);
        wait_until("the pool is empty again", Duration::from_secs(20), || pool().available() == 0);
    }

    /// Asserts that the daemon can lend memory of this length.
    fn can_lend(&self, mib: u64) {
        let mut lease = self.glebe();
        lease.args(["lease", "--wait", "60", &format!("{mib}M"), "--", "true"]);
        // The daemon replaces pages that come back with other frames.
        wait_until("memory can be leased", Duration::from_secs(60), || {
            ran(&mut lease).2 == Some(0)
        });
    }
}

impl Drop for Lender {
    fn drop(&mut self) {
        self.server = None;
        if std::thread::panicking() {
            self.release();
            return;
        }
        let before = (self.before.persistent(), self.before.available());
        wait_until("the pool is as before", Duration::from_secs(20), || {
            // Releases nothing that the kernel has not freed yet.
            self.release();
            (pool().persistent(), pool().available()) == before
        });
    }
}

fn text(output: &Output) -> (String, String, Option<i32>) {
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    (text(&output.stdout), text(&output.stderr), output.status.code())
}

fn ran(command: &mut Command) -> (String, String, Option<i32>) {
    text(&command.output().expect("glebe starts"))
}

fn started(command: &mut Command) -> (Child, Lines<BufReader<ChildStdout>>) {
    let command = command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().expect("glebe starts");
    let lines = BufReader::new(child.stdout.take().expect("a pipe")).lines();
    (child, lines)
}
