//! [`Daemon`] owns the socket and the threads.

use std::os::fd::OwnedFd;
use std::os::unix::fs::{DirBuilderExt, FileTypeExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;

use glebe::internal::sync::{MappedWord, Ordering};
use glebe::internal::ClosedBlock;
use glebe::reserve::Reserve;
use glebe_lease::socket::{bound, Packets};
use rustix::event::{eventfd, EventfdFlags};
use rustix::fs::Gid;

use crate::growth::{self, Growth};
use crate::keeper::{self, Kept};
use crate::server::Server;
use crate::settings::Settings;
use crate::stats::Counts;
use crate::stock::Stock;
use crate::Failure;

/// A running daemon. The drop ends it: the socket goes, and clients keep their leases.
#[derive(Debug)]
pub struct Daemon {
    path: PathBuf,
    kept: Arc<Kept>,
    wake: Arc<OwnedFd>,
    threads: Vec<JoinHandle<()>>,
}

impl Daemon {
    /// Serves leases of a reserve that is made of bricks.
    ///
    /// # Errors
    /// If the reserve has no bricks, or another daemon listens at the path.
    pub fn start(reserve: &Reserve, settings: Settings) -> Result<Self, Failure> {
        let brick = ClosedBlock::brick(reserve)?.bytes(glebe::page_size());
        let (len, room) = (reserve.len().bytes(glebe::page_size()), reserve.room());
        if settings.grow > room.saturating_sub(len) {
            let grow = settings.grow;
            return Err(
                format!("{len} may not grow by {grow}: the reserve has {room} of room").into()
            );
        }
        let wake = Arc::new(eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?);
        let listener = open(&settings)?;
        let kept = Arc::new(Kept {
            stock: Mutex::new(Stock::default()),
            filling: Mutex::new(()),
            target: settings.zeroed.get().div_ceil(brick.get()) as usize,
            returning: MappedWord::new(0),
            is_ending: MappedWord::new(0),
            counts: Counts::new(),
            making: MappedWord::new(0),
            placed: MappedWord::new(0),
            lost: MappedWord::new(0),
            growth: Growth::new(len, settings.grow, settings.idle),
        });
        let path = settings.path.clone();
        let mut daemon =
            Self { path, kept: Arc::clone(&kept), wake: Arc::clone(&wake), threads: Vec::new() };
        let (ended, blocks) = std::sync::mpsc::channel();
        let (grower, tasks) = std::sync::mpsc::channel();
        let threads = (ended, grower.clone());
        let mut server =
            Server::new(reserve, settings, Arc::clone(&kept), threads, (listener, wake))?;
        let (growing, of_growth) = (reserve.clone(), Arc::clone(&kept));
        daemon.spawn("glebed-grower", move || growth::run(&growing, &of_growth, &tasks))?;
        let reserve = reserve.clone();
        daemon.spawn("glebed-keeper", move || keeper::run(&reserve, &kept, &blocks, &grower))?;
        daemon.spawn("glebed", move || {
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
        &self.path
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
        let _ = std::fs::remove_file(&self.path);
    }
}

fn open(settings: &Settings) -> Result<OwnedFd, Failure> {
    let path = &settings.path;
    let failed = |what: &str, why: &dyn std::fmt::Display| -> Failure {
        format!("cannot serve leases at {}: {what}{why}", path.display()).into()
    };
    if let Some(dir) = path.parent().filter(|dir| !dir.as_os_str().is_empty() && !dir.exists()) {
        let made = std::fs::DirBuilder::new().recursive(true).mode(0o755).create(dir);
        made.map_err(|e| failed("", &e))?;
    }
    if Packets::connect(path).is_ok() {
        return Err(failed("another daemon does already", &""));
    }
    if path.symlink_metadata().is_ok_and(|meta| meta.file_type().is_socket()) {
        // No daemon listens there any more.
        std::fs::remove_file(path).map_err(|e| failed("", &e))?;
    }
    let socket = bound(path).map_err(|e| failed("", &e))?;
    let allow = || -> std::io::Result<()> {
        let mode = std::fs::Permissions::from_mode(settings.mode);
        std::fs::set_permissions(path, mode)?;
        let group = settings.group.as_deref().and_then(group_of);
        if let Some(group) = group {
            match rustix::fs::chown(path, None, Some(Gid::from_raw(group))) {
                // Only root and members may give a file to the group.
                Err(rustix::io::Errno::PERM) => {}
                other => other?,
            }
        }
        rustix::net::listen(&socket, 128)?;
        Ok(())
    };
    allow().map_err(|e| {
        let _ = std::fs::remove_file(path);
        failed("", &e)
    })?;
    Ok(socket)
}

/// Returns the number of a group of the machine.
fn group_of(name: &str) -> Option<u32> {
    let groups = std::fs::read_to_string("/etc/group").ok()?;
    groups.lines().find_map(|line| {
        let mut fields = line.split(':');
        (fields.next() == Some(name)).then(|| fields.nth(1)?.parse().ok()).flatten()
    })
}
