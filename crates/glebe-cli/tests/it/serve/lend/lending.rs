//! [`Lending`] is a server, a master's port, and a lender with the double of the package.

use std::fs;
use std::net::{Ipv4Addr, SocketAddr, SocketAddrV4, TcpListener};
use std::os::fd::OwnedFd;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use glebe_testing::time::{slowed, wait_until};
use glebe_testing::turn::{Turn, POOL};
use glebe_testing::Scratch;
use rustix::net::{bind, getsockname, socket, sockopt, AddressFamily, SocketType};
use serde_json::Value;

use super::super::leases::lacks_memory;
use super::super::{glebe, Serving};

pub const PATIENCE: Duration = Duration::from_secs(30);
/// Longer than a test, in milliseconds.
pub const LONG: &str = "600000";
/// Segments are of 8 MiB.
pub const SEGMENT: u64 = 8 << 20;
const DOUBLE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/double");

pub struct Lending {
    pub lender: Child,
    pub server: Serving,
    pub scratch: Scratch,
    _turn: Option<Turn>,
    _port: Option<OwnedFd>,
}

/// Starts a server of 64 MiB, which lends 54 MiB. With a long notice, only the lender gives
/// its memory back.
pub fn serving(scratch: &Scratch, notice: &str) -> Option<Serving> {
    serving_by(glebe(), scratch, notice, &["-m", "64"])
}

/// Starts a server by a command that is `glebe`, or executes it.
pub fn serving_by(
    mut command: Command,
    scratch: &Scratch,
    notice: &str,
    more: &[&str],
) -> Option<Serving> {
    let at = |name: &str| scratch.path().join(name).to_string_lossy().into_owned();
    command.args(["serve", "--no-stats", "--leases", "-s", &at("cache")]).args(more);
    command.args(["--lease-socket", &at("leases"), "--lease-zeroed", "4M"]);
    command.args(["--lease-notice", notice]);
    let wrong = scratch.path().join("wrong");
    command.stderr(fs::File::create(&wrong).expect("a file"));
    let server = Serving::start(&mut command, 3);
    if server.said[0].is_empty() {
        lacks_memory(&fs::read_to_string(&wrong).expect("text"));
        return None;
    }
    Some(server)
}

/// Returns a command that lends to a master at `port`.
pub fn lend(scratch: &Path, port: u16, more: &[&str]) -> Command {
    let at = |name: &str| scratch.join(name).to_string_lossy().into_owned();
    let mut command = glebe();
    command.args(["lend", "--mooncake", &format!("127.0.0.1:{port}"), "--share", "35M"]);
    for option in [["--segment", "8M"], ["--rest", "0.5"], ["--rest-max", "2"]] {
        if !more.contains(&option[0]) {
            command.args(option);
        }
    }
    command.args(["--every", "0.2", "--socket", &at("leases"), "--control", &at("control")]);
    command.args(more);
    // A helper that imports this file of the current folder is not set up.
    fs::write(at("ctypes.py"), "raise ImportError('of the current folder')").expect("written");
    command.current_dir(scratch);
    command.env("PYTHONPATH", DOUBLE).env("PYTHONDONTWRITEBYTECODE", "1").env("DOUBLE", scratch);
    let log = fs::File::options().create(true).append(true).open(at("lend.log"));
    command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(log.expect("a file"));
    command
}

/// Takes a free port. Listeners may use it, and no other program gets it between two of them.
fn port() -> (OwnedFd, SocketAddr) {
    let taken = socket(AddressFamily::INET, SocketType::STREAM, None).expect("a socket");
    sockopt::set_socket_reuseaddr(&taken, true).expect("a socket");
    bind(&taken, &SocketAddrV4::new(Ipv4Addr::LOCALHOST, 0)).expect("a port");
    let address = getsockname(&taken).expect("an address");
    (taken, address.try_into().expect("an address"))
}

impl Lending {
    /// Starts all, or prints that this user has no huge pages. The agent has `patience`, in
    /// milliseconds.
    pub fn start(mode: &str, notice: &str, patience: &str) -> Option<(Self, TcpListener)> {
        let (turn, scratch) = (Turn::alone(POOL), Scratch::new("lend"));
        let server = serving(&scratch, notice)?;
        fs::write(scratch.path().join("mode"), mode).expect("written");
        let (reserved, address) = port();
        let (master, port) = (TcpListener::bind(address).expect("the port"), address.port());
        let more = ["--patience", patience];
        let lender = lend(scratch.path(), port, &more).spawn().expect("the program starts");
        Some((Self { lender, server, scratch, _turn: turn, _port: Some(reserved) }, master))
    }

    /// Starts a lender. `server` may be a program that serves nothing.
    pub fn to(server: Serving, scratch: Scratch, mode: &str, port: u16, more: &[&str]) -> Self {
        fs::write(scratch.path().join("mode"), mode).expect("written");
        let lender = lend(scratch.path(), port, more).spawn().expect("the program starts");
        Self { lender, server, scratch, _turn: None, _port: None }
    }

    /// Starts all, and waits until four segments are lent. No agent is killed.
    pub fn started() -> Option<(Self, TcpListener)> {
        Self::started_with(LONG, LONG)
    }

    pub fn started_with(notice: &str, patience: &str) -> Option<(Self, TcpListener)> {
        let (lending, master) = Self::start("", notice, patience)?;
        lending.wait("all is lent", |it| it.lent() == 4);
        Some((lending, master))
    }

    /// Starts a server, and a lender with Mooncake's package.
    pub fn real(python: &Path, port: u16) -> Option<Self> {
        let (turn, scratch) = (Turn::alone(POOL), Scratch::new("lend"));
        let server = serving(&scratch, LONG)?;
        let more = ["--patience", LONG, "--python", &python.to_string_lossy()];
        let mut command = lend(scratch.path(), port, &more);
        let lender = command.env_remove("PYTHONPATH").spawn().expect("the program starts");
        Some(Self { lender, server, scratch, _turn: turn, _port: None })
    }

    pub fn mode(&self, mode: &str) {
        fs::write(self.scratch.path().join("mode"), mode).expect("written");
    }

    /// Returns the lines of the double, or of the lender.
    pub fn lines(&self, name: &str) -> Vec<String> {
        let text = fs::read_to_string(self.scratch.path().join(name)).unwrap_or_default();
        text.lines().map(str::to_owned).collect()
    }

    pub fn has_said(&self, what: &str) -> bool {
        self.lines("lend.log").iter().any(|line| line.contains(what))
    }

    pub fn at(&self, name: &str) -> String {
        self.scratch.path().join(name).to_string_lossy().into_owned()
    }

    pub fn status(&self) -> Option<Shown> {
        let args = ["lend", "status", "--json", "--control", &self.at("control")];
        let output = glebe().args(args).output().expect("glebe starts");
        output
            .status
            .success()
            .then(|| Shown(serde_json::from_slice(&output.stdout).expect("JSON")))
    }

    pub fn wait(&self, what: &str, mut is_so: impl FnMut(&Shown) -> bool) {
        let until = std::time::Instant::now() + slowed(PATIENCE);
        let mut last = None;
        while !last.as_ref().is_some_and(&mut is_so) {
            let log = || self.lines("lend.log").join("\n");
            let shown = || last.as_ref().map_or(String::new(), |it: &Shown| it.0.to_string());
            assert!(std::time::Instant::now() < until, "{what}: {}\n{}", shown(), log());
            std::thread::sleep(Duration::from_millis(20));
            last = self.status();
        }
    }

    /// Starts a program with a lease that needs segments, and returns what it prints.
    pub fn leased(&self, size: &str, script: &str) -> String {
        let args =
            ["lease", "--socket", &self.at("leases"), "--wait", "60", size, "--", "sh", "-c"];
        let output = glebe().args(args).arg(script).output().expect("glebe starts");
        assert!(output.status.success(), "{output:?}\n{}", self.lines("lend.log").join("\n"));
        String::from_utf8(output.stdout).expect("text")
    }

    /// Starts a program with a lease, which may have to wait for its memory.
    pub fn leasing(&self, size: &str) -> Child {
        let args = ["lease", "--socket", &self.at("leases"), "--wait", "60", size, "--", "true"];
        glebe().args(args).spawn().expect("glebe starts")
    }

    /// Returns the number of lines of the lender's log with these words.
    pub fn said(&self, what: &str) -> usize {
        self.lines("lend.log").iter().filter(|line| line.contains(what)).count()
    }

    /// Returns the names of leases.
    pub fn leases(&self) -> Vec<String> {
        let args = ["leases", "--json", "--socket", &self.at("leases")];
        let output = glebe().args(args).output().expect("glebe starts");
        let rows: Vec<Value> = serde_json::from_slice(&output.stdout).unwrap_or_default();
        rows.iter().map(|row| row["name"].as_str().unwrap_or_default().to_owned()).collect()
    }

    pub fn signal(&self, name: &str, pid: u32) {
        let status = Command::new("kill").args(["-s", name, &pid.to_string()]).status();
        assert!(status.expect("kill").success());
    }

    /// Waits for the lender's end. Returns its exit status.
    pub fn ended(&mut self) -> Option<i32> {
        let mut ended = None;
        wait_until("the lender's end", PATIENCE, || {
            ended = self.lender.try_wait().expect("a child");
            ended.is_some()
        });
        ended.and_then(|status| status.code())
    }
}

impl Drop for Lending {
    fn drop(&mut self) {
        let _ = self.lender.kill();
        let _ = self.lender.wait();
    }
}

pub fn lives(pid: u32) -> bool {
    let state = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    let state = state.rsplit(')').next().map(str::trim_start).unwrap_or_default().to_owned();
    !state.is_empty() && !state.starts_with(['Z', 'X'])
}

/// The answer of `glebe lend status --json`.
pub struct Shown(pub Value);

impl Shown {
    pub fn number(&self, name: &str) -> u64 {
        self.0["statistics"][name].as_u64().unwrap_or_else(|| panic!("{name} in {}", self.0))
    }

    pub fn lent(&self) -> u64 {
        self.number("lent_bytes") / SEGMENT
    }

    /// Returns the number of segments in a state.
    pub fn words(&self, state: &str) -> usize {
        let all = self.0["segments"].as_array().expect("segments");
        all.iter().filter(|it| it.as_str().is_some_and(|it| it == state)).count()
    }

    pub fn agent(&self) -> u32 {
        self.0["agent"].as_u64().and_then(|pid| pid.try_into().ok()).expect("a number")
    }
}
