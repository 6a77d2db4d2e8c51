//! [`Lending`]: a `glebe serve --leases` with enough zeroed pages for one program.

use std::fs::File;
use std::os::unix::fs::chown;
use std::path::PathBuf;
use std::time::Duration;

use glebe::units::Bytes;
use glebe_lease::Client;

use super::stage::Stage;
use super::PAGE;
use crate::child::Child;
use crate::{clock, interrupt, Outcome};

const PATIENCE: Duration = Duration::from_secs(60);
const LOOK_EVERY: Duration = Duration::from_micros(200);
const MIB: u64 = 1 << 20;

pub(super) struct Lending {
    pub(super) socket: PathBuf,
    pub(super) client: Client,
    stock: Bytes,
    _child: Child,
}

impl Lending {
    /// Starts a server that can lend `pages` pages that it has zeroed ahead.
    pub(super) fn start(stage: &Stage, name: &str, pages: u64) -> Outcome<Self> {
        let (socket, log) = (stage.path(name), stage.path(&format!("{name}.log")));
        let stock = Bytes::new(pages * PAGE.bytes().get());
        // At most a half can be zeroed ahead, after an eighth for the cache's answers.
        let mib = stock.get().div_ceil(MIB) * 2 * 8 / 7 + 16;
        let mut command = stage.command("KILL", true);
        command.arg(&stage.glebe).args(["serve", "--leases", "--no-stats", "-s"]);
        command.arg(stage.path(&format!("{name}.cache"))).arg("--lease-socket").arg(&socket);
        command.args(["-m", &mib.to_string(), "--lease-zeroed", &stock.get().to_string()]);
        command.stderr(File::create(&log)?);
        let mut child = Child::of(&mut command)?;
        loop {
            match child.line()? {
                Some(line) if line.starts_with("listening") => break,
                Some(_) => {}
                None => {
                    let said = std::fs::read_to_string(&log).unwrap_or_default();
                    return Err(format!("no server of {mib} MiB: {}", said.trim()).into());
                }
            }
        }
        chown(&socket, None, Some(stage.user.1))?;
        let client = Client::connect_to(&socket, "bench")?;
        Ok(Self { socket, client, stock, _child: child })
    }

    pub(super) fn held(&self) -> Outcome<Bytes> {
        Ok(Bytes::new(self.gauge("held")?))
    }

    /// Waits until the server has zeroed pages ahead, and has nothing else to do.
    pub(super) fn wait_for_stock(&self) -> Outcome {
        self.wait(|this| Ok(this.is_free()? && this.gauge("stock")? >= this.stock.get()))
    }

    /// Waits until the stock of zeroed pages is full again, while a program holds pages.
    pub(super) fn wait_for_all_zeroed(&self) -> Outcome {
        self.wait(|this| Ok(this.gauge("stock")? >= this.stock.get()))
    }

    /// Waits until the server knows that no program has a page.
    pub(super) fn wait_until_seen(&self) -> Outcome {
        self.wait(|this| Ok(this.gauge("held")? == 0))
    }

    /// Waits until the server has zeroed each page that a program had.
    pub(super) fn wait_until_free(&self) -> Outcome {
        self.wait(Self::is_free)
    }

    fn is_free(&self) -> Outcome<bool> {
        Ok(self.gauge("held")? == 0 && self.gauge("returning")? == 0)
    }

    fn wait(&self, is_so: impl Fn(&Self) -> Outcome<bool>) -> Outcome {
        let end = clock::wall() + PATIENCE;
        while !is_so(self)? {
            interrupt::check();
            if clock::wall() > end {
                return Err(
                    format!("the server is not ready again: {}", self.client.stats()?).into()
                );
            }
            std::thread::sleep(LOOK_EVERY);
        }
        Ok(())
    }

    fn gauge(&self, what: &str) -> Outcome<u64> {
        let (stats, name) = (self.client.stats()?, format!("glebe_lease_{what}_bytes "));
        let value = stats.lines().find_map(|line| line.strip_prefix(name.as_str()));
        Ok(value.ok_or_else(|| format!("no {name}in {stats}"))?.parse()?)
    }
}
