//! [`CacheServer`] runs a server as a child process that dies with this program.

use std::fs;
use std::io::Write;
use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::Command;
use std::time::Duration;

use glebe_serve::server::{Server, Settings, Tls};
use rustix::process::{getrlimit, setrlimit, Resource, Rlimit};

use super::wire;
use crate::child::Child;
use crate::clock::wall;
use crate::report::Report;
use crate::{interrupt, Outcome};

const CONNS: usize = 4096;
const PATIENCE: Duration = Duration::from_secs(30);
const MEMCACHED: &str = "memcached";
const TLS: &str = "tls";

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
    pub(super) with_tls: bool,
    /// glebe's socket for first-class requests.
    pub(super) control: PathBuf,
    child: Child,
    // Dropped after the server, which has its socket in this directory.
    _dir: tempfile::TempDir,
}

impl CacheServer {
    /// Starts glebe and, if installed, memcached.
    pub(super) fn all(
        mib: u64,
        threads: usize,
        tls: bool,
        report: &mut Report,
    ) -> Outcome<Vec<Self>> {
        let mut all = vec![Self::start(ServerKind::Glebe, mib, threads, tls)?];
        match is_installed(tls) {
            true => all.push(Self::start(ServerKind::Memcached, mib, threads, tls)?),
            false => report.remark(
                if tls { "tls_get_100" } else { "get_100" },
                MEMCACHED,
                super::UNIT,
                "not on this machine, or without TLS: apt-get install memcached",
            ),
        }
        Ok(all)
    }

    pub(super) fn start(who: ServerKind, mib: u64, threads: usize, tls: bool) -> Outcome<Self> {
        // The port is free; another program is unlikely to take it before the server does.
        let free = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?;
        let port = free.local_addr()?.port();
        drop(free);
        let dir = tempfile::tempdir()?;
        let control = dir.path().join("control");
        let path = control.to_str().ok_or("a temporary directory whose name is no text")?;
        let numbers = [u64::from(port), mib, threads as u64].map(|number| number.to_string());
        let [port_word, mib, threads] = numbers.each_ref().map(String::as_str);
        let words = [port_word, mib, threads, path, if tls { TLS } else { "plain" }];
        let child = Child::start(&format!("serve-{}", who.name()), &words)?;
        let mut peer = Self { who, port, with_tls: tls, control, child, _dir: dir };
        peer.wait_until_it_listens()?;
        Ok(peer)
    }

    fn wait_until_it_listens(&mut self) -> Outcome {
        let end = wall() + PATIENCE;
        loop {
            interrupt::check();
            let last = match wire::connect(self.port) {
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

/// Distributions may build memcached without TLS.
fn is_installed(with_tls: bool) -> bool {
    let Ok(output) = Command::new(MEMCACHED).arg("-h").output() else { return false };
    !with_tls || String::from_utf8_lossy(&output.stdout).contains("ssl_chain_cert")
}

/// Raises the limit on open files to the maximum, for children too.
pub(super) fn let_many_be_open() -> Outcome {
    let Rlimit { maximum, .. } = getrlimit(Resource::Nofile);
    Ok(setrlimit(Resource::Nofile, Rlimit { current: maximum, maximum })?)
}

pub(crate) fn be(who: &str, words: &[&str]) -> Outcome {
    let [port, mib, threads, control, tls] = words else { return Err("five words".into()) };
    let [chain, key] = ["server.pem", "server.key"].map(wire::file);
    if who == MEMCACHED {
        let mut command = Command::new(MEMCACHED);
        command.args(["-l", "127.0.0.1", "-U", "0", "-u", "root"]);
        command.args(["-p", port, "-m", mib, "-t", threads, "-c", &CONNS.to_string()]);
        if *tls == TLS {
            let [chain, key] = [chain, key].map(|path| path.display().to_string());
            let files = [format!("ssl_chain_cert={chain}"), format!("ssl_key={key}")];
            command.args(["-Z", "-o", &files.join(",")]);
        }
        return Err(command.exec().into());
    }
    let mut settings = Settings {
        memory: mib.parse::<u64>()? << 20,
        threads: threads.parse()?,
        conns: CONNS,
        listen: vec![SocketAddr::from((Ipv4Addr::LOCALHOST, port.parse()?))],
        control: Some(control.into()),
        ..Settings::default()
    };
    if *tls == TLS {
        settings.access.tls = Some(Tls { chain, key: Some(key), ..Tls::default() });
    }
    let server = Server::start(settings).map_err(|why| why.to_string())?;
    writeln!(std::io::stdout(), "serving")?;
    Ok(server.run().map_err(|why| why.to_string())?)
}
