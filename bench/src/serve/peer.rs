//! [`CacheServer`] runs a server as a child process that dies with this program.

use std::fs;
use std::io::Write;
use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::Command;
use std::time::Duration;

use glebe_serve::server::{Server, Settings};
use rustix::process::{getrlimit, setrlimit, Resource, Rlimit};

use super::load;
use crate::child::Child;
use crate::clock::wall;
use crate::report::Report;
use crate::{interrupt, Outcome};

const CONNS: usize = 4096;
const PATIENCE: Duration = Duration::from_secs(30);
const MEMCACHED: &str = "memcached";

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ServerKind {
    Glebe,
    Memcached,
}

impl ServerKind {
    pub(super) const fn name(self) -> &'static str {
        match self {
            Self::Glebe => "glebe",
            Self::Memcached => MEMCACHED,
        }
    }
}

pub(super) struct CacheServer {
    pub(super) who: ServerKind,
    pub(super) port: u16,
    /// glebe's socket for first-class requests.
    pub(super) control: PathBuf,
    child: Child,
    // Dropped after the server, which has its socket in this directory.
    _dir: tempfile::TempDir,
}

impl CacheServer {
    /// Starts glebe and, if installed, memcached.
    pub(super) fn all(mib: u64, threads: usize, report: &mut Report) -> Outcome<Vec<Self>> {
        let mut all = vec![Self::start(ServerKind::Glebe, mib, threads)?];
        match is_installed() {
            true => all.push(Self::start(ServerKind::Memcached, mib, threads)?),
            false => report.remark(
                "get_100",
                MEMCACHED,
                super::UNIT,
                "not on this machine: apt-get install memcached",
            ),
        }
        Ok(all)
    }

    pub(super) fn start(who: ServerKind, mib: u64, threads: usize) -> Outcome<Self> {
        // The port is free; another program is unlikely to take it before the server does.
        let free = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?;
        let port = free.local_addr()?.port();
        drop(free);
        let dir = tempfile::tempdir()?;
        let control = dir.path().join("control");
        let path = control.to_str().ok_or("a temporary directory whose name is no text")?;
        let numbers = [u64::from(port), mib, threads as u64].map(|number| number.to_string());
        let [port_word, mib, threads] = numbers.each_ref().map(String::as_str);
        let words = [port_word, mib, threads, path];
        let child = Child::start(&format!("serve-{}", who.name()), &words)?;
        let mut peer = Self { who, port, control, child, _dir: dir };
        peer.wait_until_it_listens()?;
        Ok(peer)
    }

    fn wait_until_it_listens(&mut self) -> Outcome {
        let end = wall() + PATIENCE;
        loop {
            interrupt::check();
            let last = match load::connect(self.port) {
                Ok(_) => return Ok(()),
                Err(last) => last,
            };
            if wall() > end {
                return Err(format!("{} does not listen: {last}", self.who.name()).into());
            }
            std::thread::sleep(Duration::from_millis(10));
        }
    }

    pub(super) fn cpu(&self) -> Outcome<Duration> {
        let mut nanos = 0;
        for task in fs::read_dir(format!("/proc/{}/task", self.child.id()))? {
            let text = fs::read_to_string(task?.path().join("schedstat"))?;
            let first = text.split(' ').next().unwrap_or_default();
            nanos += first.parse::<u64>().map_err(|e| format!("schedstat {text:?}: {e}"))?;
        }
        Ok(Duration::from_nanos(nanos))
    }

    /// Returns resident bytes, without the reserve's hugetlb pages.
    pub(super) fn resident(&self) -> Outcome<u64> {
        let status = fs::read_to_string(format!("/proc/{}/status", self.child.id()))?;
        let kib = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
        let kib = kib.and_then(|kib| kib.trim().trim_end_matches(" kB").parse::<u64>().ok());
        Ok(kib.ok_or("no VmRSS")? << 10)
    }
}

fn is_installed() -> bool {
    Command::new(MEMCACHED).arg("-V").output().is_ok_and(|output| output.status.success())
}

/// Raises the limit on open files to the maximum, for children too.
pub(super) fn let_many_be_open() -> Outcome {
    let Rlimit { maximum, .. } = getrlimit(Resource::Nofile);
    Ok(setrlimit(Resource::Nofile, Rlimit { current: maximum, maximum })?)
}

pub(crate) fn be(who: &str, words: &[&str]) -> Outcome {
    let [port, mib, threads, control] = words else { return Err("four words".into()) };
    if who == MEMCACHED {
        let mut command = Command::new(MEMCACHED);
        command.args(["-l", "127.0.0.1", "-U", "0", "-u", "root"]);
        command.args(["-p", port, "-m", mib, "-t", threads, "-c", &CONNS.to_string()]);
        return Err(command.exec().into());
    }
    let settings = Settings {
        memory: mib.parse::<u64>()? << 20,
        threads: threads.parse()?,
        conns: CONNS,
        listen: vec![SocketAddr::from((Ipv4Addr::LOCALHOST, port.parse()?))],
        control: Some(control.into()),
        ..Settings::default()
    };
    let server = Server::start(settings).map_err(|why| why.to_string())?;
    writeln!(std::io::stdout(), "serving")?;
    Ok(server.run().map_err(|why| why.to_string())?)
}
