//! [`Cluster`]: PostgreSQL, started with pages of each origin.
//!
//! Nothing is synced to the disk, whose times are not those of memory.

use std::fs::{self, File, OpenOptions};
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use rustix::process::Signal;

use super::lending::Lending;
use super::origin::Origin;
use super::process::{cpu_of, Process};
use super::session::Session;
use super::stage::Stage;
use crate::{clock, interrupt, Outcome};

const VERSIONS: &str = "/usr/lib/postgresql";
const MISSING: &str = "no PostgreSQL in /usr/lib/postgresql: apt-get install postgresql";
const SETTINGS: &str = "
listen_addresses = ''
fsync = off
autovacuum = off
max_connections = 20
";
const USER: &str = "postgres";
const SOCKET: &str = ".s.PGSQL.5432";
const PATIENCE: Duration = Duration::from_secs(60);
const LOOK_EVERY: Duration = Duration::from_micros(200);

pub(super) struct Cluster<'a> {
    stage: &'a Stage,
    programs: PathBuf,
    folder: PathBuf,
    /// Huge pages that the server needs.
    pub(super) pages: u64,
}

/// A running server that has answered a query.
pub(super) struct Postgres<'a> {
    cluster: &'a Cluster<'a>,
    process: Process,
}

/// Transactions in a second, and in a second of the server's CPU time.
pub(super) struct Rate {
    pub(super) wall: f64,
    pub(super) cpu: f64,
}

impl<'a> Cluster<'a> {
    pub(super) fn new(stage: &'a Stage, shared_buffers: &str) -> Outcome<Self> {
        let programs = newest(Path::new(VERSIONS)).ok_or(MISSING)?;
        let folder = stage.folder("postgres")?;
        let this = Self { stage, programs, folder, pages: 0 };
        let mut make = stage.command("KILL", false);
        make.arg(this.programs.join("initdb")).arg("-D").arg(this.data());
        answered(make.args(["-A", "trust", "-N", "-E", "UTF8", "--locale=C", "-U", USER]))?;
        let mut settings =
            OpenOptions::new().append(true).open(this.data().join("postgresql.conf"))?;
        writeln!(settings, "{SETTINGS}shared_buffers = {shared_buffers}")?;
        writeln!(settings, "unix_socket_directories = '{}'", this.folder.display())?;
        let mut count = stage.command("KILL", false);
        count.arg(this.programs.join("postgres")).arg("-D").arg(this.data());
        let pages = answered(count.args(["-C", "shared_memory_size_in_huge_pages"]))?;
        Ok(Self { pages: pages.trim().parse()?, ..this })
    }

    fn data(&self) -> PathBuf {
        self.folder.join("data")
    }

    /// Starts the server, and returns when it has answered a query.
    pub(super) fn start(&self, origin: Origin, lending: &Lending) -> Outcome<Postgres<'_>> {
        let log = self.stage.path("postgres.log");
        let mut command = self.stage.command("QUIT", false);
        self.stage.start(&mut command, origin, lending, &self.programs.join("postgres"));
        let huge = if origin == Origin::Without { "off" } else { "on" };
        command.arg("-D").arg(self.data()).args(["-c", &format!("huge_pages={huge}")]);
        let output = File::create(&log)?;
        command.stdout(output.try_clone()?).stderr(output);
        let process = Process::start(&mut command, Signal::QUIT)?;
        let mut this = Postgres { cluster: self, process };
        let end = clock::wall() + PATIENCE;
        while this.query("SELECT 6 * 7").is_err() {
            interrupt::check();
            if let Some(status) = this.process.ended()? {
                let said = fs::read_to_string(&log).unwrap_or_default();
                let first = said.lines().next().unwrap_or_default();
                return Err(format!("it ended with {status}: {first}").into());
            }
            if clock::wall() > end {
                return Err(format!("no answer within {PATIENCE:?}").into());
            }
            std::thread::sleep(LOOK_EVERY);
        }
        Ok(this)
    }
}

impl Postgres<'_> {
    pub(super) fn id(&self) -> u32 {
        self.process.id()
    }

    fn query(&self, text: &str) -> Outcome<String> {
        Session::open(&self.cluster.folder.join(SOCKET))?.query(text)
    }

    /// Ends the server as `pg_ctl stop` does, and waits for its end.
    pub(super) fn stop(mut self) -> Outcome {
        self.process.end_by(Signal::INT)
    }

    /// Makes the tables of pgbench.
    pub(super) fn fill(&self, scale: u64) -> Outcome {
        answered(self.pgbench().args(["-i", "-q", "-s", &scale.to_string()])).map(drop)
    }

    /// Runs pgbench with `words`.
    pub(super) fn rate(&self, words: &[&str], seconds: u64) -> Outcome<Rate> {
        let before = cpu_of(self.id())?;
        let mut command = self.pgbench();
        command.args(["-n", "-c", "2", "--random-seed=1", "-T", &seconds.to_string()]);
        let text = answered(command.args(words))?;
        let cpu = cpu_of(self.id())? - before;
        let done = number(&text, "number of transactions actually processed: ")?;
        Ok(Rate { wall: number(&text, "tps = ")?, cpu: done / cpu })
    }

    fn pgbench(&self) -> Command {
        let mut command = self.cluster.stage.command("KILL", false);
        command.arg(self.cluster.programs.join("pgbench"));
        command.arg("-h").arg(&self.cluster.folder).args(["-U", USER]);
        command.env("PGDATABASE", USER);
        command
    }
}

impl Drop for Postgres<'_> {
    /// Ends a server that nobody stopped, so that the next one need not recover.
    fn drop(&mut self) {
        if matches!(self.process.ended(), Ok(None)) {
            let _ = self.process.end_by(Signal::INT);
        }
    }
}

/// Returns the folder of the newest version's programs.
fn newest(versions: &Path) -> Option<PathBuf> {
    let found = fs::read_dir(versions).ok()?.flatten().filter_map(|entry| {
        let version: u32 = entry.file_name().to_str()?.parse().ok()?;
        Some((version, entry.path().join("bin")))
    });
    found.filter(|(_, bin)| bin.join("postgres").exists()).max().map(|(_, bin)| bin)
}

/// Returns a command's output. Fails if the command fails.
pub(super) fn answered(command: &mut Command) -> Outcome<String> {
    let output = command.output()?;
    let said = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    match output.status.success() {
        true => Ok(said(&output.stdout)),
        false => {
            Err(format!("{:?}: {}", command.get_program(), said(&output.stderr).trim()).into())
        }
    }
}

fn number(text: &str, name: &str) -> Outcome<f64> {
    let after = text.lines().find_map(|line| line.strip_prefix(name));
    let word = after.and_then(|after| after.split([' ', '/']).next());
    Ok(word.ok_or_else(|| format!("pgbench says no {name}"))?.parse()?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn figures_of_pgbench() {
        let text = "number of transactions actually processed: 120\n\
            tps = 59.5 (without initial connection time)\n";
        assert_eq!(number(text, "tps = ").unwrap(), 59.5);
        assert_eq!(number(text, "number of transactions actually processed: ").unwrap(), 120.0);
        assert!(number(text, "latency").is_err());
    }

    #[test]
    fn the_newest_version_is_found() {
        let scratch = glebe_testing::Scratch::new("versions");
        for version in ["9", "15", "16"] {
            fs::create_dir_all(scratch.path().join(version).join("bin")).unwrap();
        }
        assert_eq!(newest(scratch.path()), None);
        let bin = |version: &str| scratch.path().join(version).join("bin");
        ["9", "15"]
            .iter()
            .for_each(|version| fs::write(bin(version).join("postgres"), "").unwrap());
        assert_eq!(newest(scratch.path()), Some(bin("15")));
    }
}
