//! [`Served`] is a daemon in a child process.

use std::io::Write;
use std::path::{Path, PathBuf};
use std::time::Duration;

use glebe::contig::Contig;
use glebe::reserve::Reserve;
use glebe::units::Bytes;
use glebe_lease::Client;
use glebe_testing::Scratch;
use glebed::{Daemon, Settings};

use super::PAGE;
use crate::child::Child;
use crate::{clock, Outcome};

/// Pages zeroed ahead, and pages of the reserve.
pub(super) const STOCK: u64 = 130;
pub(super) const ALL: u64 = 280;
const PATIENCE: Duration = Duration::from_secs(30);

pub(super) struct Served {
    pub(super) path: PathBuf,
    _child: Child,
    _scratch: Scratch,
}

/// Serves leases at `path` until standard input ends.
pub(crate) fn be_daemon(path: &Path, out: &mut dyn Write) -> Outcome {
    let bytes = |pages| Bytes::new(pages * PAGE.bytes().get());
    let options = Reserve::options().memory(Contig::options().bricks()).room(bytes(ALL));
    let reserve = options.build(bytes(ALL))?;
    let path = path.to_owned();
    let notice = Duration::ZERO;
    let settings = Settings { path, zeroed: bytes(STOCK), notice, ..Settings::default() };
    let _daemon = Daemon::start(&reserve, settings)?;
    writeln!(out, "ready")?;
    out.flush()?;
    std::io::copy(&mut std::io::stdin(), &mut std::io::sink())?;
    Ok(())
}

impl Served {
    pub(super) fn start() -> Outcome<Self> {
        let scratch = Scratch::new("bench-lease");
        let path = scratch.path().join("leases");
        let mut child = Child::start("lease-daemon", &[&path.to_string_lossy()])?;
        match child.line()?.as_deref() {
            Some("ready") => Ok(Self { path, _child: child, _scratch: scratch }),
            _ => Err("the daemon did not start: it needs 560 MiB of a hugetlb pool".into()),
        }
    }

    pub(super) fn client(&self) -> Outcome<Client> {
        // Refusals are seen at once.
        Ok(Client::connect_to(&self.path, "bench")?.patience(Duration::ZERO))
    }

    /// Waits until the daemon has zeroed pages ahead, and has nothing else to do.
    pub(super) fn wait_for_stock(&self, client: &Client) -> Outcome {
        let full = format!("glebe_lease_stock_bytes {}\n", STOCK * PAGE.bytes().get());
        self.wait_for(client, &[&full, "glebe_lease_returning_bytes 0\n"])
    }

    pub(super) fn wait_for(&self, client: &Client, lines: &[&str]) -> Outcome {
        let end = clock::wall() + PATIENCE;
        loop {
            let stats = client.stats()?;
            if lines.iter().all(|line| stats.contains(line)) {
                return Ok(());
            }
            if clock::wall() > end {
                return Err(format!("the daemon never came to {lines:?}: {stats}").into());
            }
            std::thread::sleep(Duration::from_millis(1));
        }
    }
}
