//! [`Daemon`] owns the socket and the threads.

use std::os::fd::OwnedFd;
use std::path::Path;
use std::sync::Arc;
use std::thread::JoinHandle;

use glebe::internal::sync::Ordering;
use glebe::internal::sys::processes::time_slice;
use glebe::internal::ClosedBlock;
use glebe::reserve::Reserve;
use rustix::event::{eventfd, EventfdFlags};

use crate::growth::{self, Growth};
use crate::keeper::{self, Kept};
use crate::listening::Listening;
use crate::server::Server;
use crate::settings::Settings;
use crate::store;
use crate::Failure;

/// A running daemon. The drop ends it: the socket goes, and clients keep their leases.
#[derive(Debug)]
pub struct Daemon {
    listening: Arc<Listening>,
    kept: Arc<Kept>,
    wake: Arc<OwnedFd>,
    threads: Vec<JoinHandle<()>>,
}

impl Daemon {
    /// Serves leases of a reserve that is made of bricks.
    ///
    /// # Errors
    /// If the reserve has no bricks, or another daemon serves at the path.
    pub fn start(reserve: &Reserve, settings: Settings) -> Result<Self, Failure> {
        Self::start_with(Vec::new(), reserve, settings)
    }

    /// Serves leases with what a service manager handed over: a listening socket, whose path the
    /// daemon leaves alone, and connections and files of an earlier daemon's leases.
    ///
    /// # Errors
    /// See [`Daemon::start`]; if there are several listening sockets.
    pub fn start_with(
        handed: Vec<(String, OwnedFd)>,
        reserve: &Reserve,
        settings: Settings,
    ) -> Result<Self, Failure> {
        let (mut sockets, stored): (Vec<_>, Vec<_>) =
            handed.into_iter().partition(|(name, _)| !store::is_ours(name));
        let listening = match (sockets.pop(), sockets.is_empty()) {
            (None, _) => Listening::bind(&settings)?,
            (Some((_, socket)), true) => Listening::handed_over(socket)?,
            _ => return Err("the service manager has several sockets for leases".into()),
        };
        Self::start_at(listening, reserve, settings, stored)
    }

    fn start_at(
        listening: Listening,
        reserve: &Reserve,
        settings: Settings,
        stored: Vec<(String, OwnedFd)>,
    ) -> Result<Self, Failure> {
        let listening = Arc::new(listening);
        let brick = ClosedBlock::brick(reserve)?.bytes(glebe::page_size());
        let (len, room) = (reserve.len().bytes(glebe::page_size()), reserve.room());
        if settings.grow > room.saturating_sub(len) {
            let grow = settings.grow;
            return Err(
                format!("{len} may not grow by {grow}: the reserve has {room} of room").into()
            );
        }
        let wake = Arc::new(eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?);
        let growth = Growth::new(len, &settings);
        // Caches need the rest.
        let target = settings.zeroed.get().div_ceil(brick.get()).min(len.get() / brick.get() / 2);
        let kept = Kept { target: target as usize, ..Kept::of_growth(growth, brick) };
        let kept = Arc::new(kept);
        let mut daemon = Self {
            listening: Arc::clone(&listening),
            kept: Arc::clone(&kept),
            wake: Arc::clone(&wake),
            threads: Vec::new(),
        };
        let (ended, blocks) = std::sync::mpsc::channel();
        let (grower, tasks) = std::sync::mpsc::channel();
        let threads = (ended, grower.clone());
        let mut server =
            Server::new(reserve, settings, Arc::clone(&kept), threads, (listening, wake))?;
        server.adopt(stored);
        let (growing, of_growth) = (reserve.clone(), Arc::clone(&kept));
        daemon.spawn("glebed-grower", move || growth::run(&growing, &of_growth, &tasks))?;
        let reserve = reserve.clone();
        daemon.spawn("glebed-keeper", move || keeper::run(&reserve, &kept, &blocks, &grower))?;
        daemon.spawn("glebed", move || {
            time_slice::shorten();
            if let Err(error) = server.run() {
                eprintln!("glebed: leases are no longer served: {error}");
            }
            server.leave();
        })?;
        Ok(daemon)
    }

    fn spawn(&mut self, name: &str, work: impl FnOnce() + Send + 'static) -> Result<(), Failure> {
        self.threads.push(std::thread::Builder::new().name(name.to_owned()).spawn(work)?);
        Ok(())
    }

    /// Returns the path of the socket.
    #[must_use]
    pub fn path(&self) -> &Path {
        self.listening.path()
    }
}

impl Drop for Daemon {
    fn drop(&mut self) {
        self.kept.is_ending.store(1, Ordering::Release);
        let _ = rustix::io::write(&*self.wake, &1_u64.to_ne_bytes());
        for thread in self.threads.drain(..).rev() {
            // The message of a panic was already printed.
            let _ = thread.join();
        }
    }
}
