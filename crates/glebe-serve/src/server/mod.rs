//! [`Server`] owns sockets, workers and their shared state.
//!
//! The accepting thread gives connections to workers in turn, and waits for signals. The upkeep
//! thread ticks the store. Each worker serves its own connections.

mod accept;
mod access;
mod admin;
mod answer;
mod carry;
mod conn;
mod control;
mod counters;
mod counting;
mod execute;
mod listing;
mod logged;
mod login;
mod meta;
mod metrics;
mod passwords;
mod prefixes;
mod quota;
mod settings;
mod shares;
mod stats;
#[cfg(feature = "tls")]
mod tls;
#[cfg(not(feature = "tls"))]
#[path = "no_tls.rs"]
mod tls;
mod watching;
mod worker;

use std::collections::BTreeMap;
use std::error::Error;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

pub use access::{Access, ClientCertificates, Tls};
pub use control::{ask as ask_control, in_dir as controls_in};
pub use settings::{Settings, PORT, TURN};

use conn::{Conn, Shown};
use counters::Counters;
use logged::{tell, Verbosity};
use passwords::Passwords;
use prefixes::Prefixes;
use shares::Shares;
use tls::Keys;
use worker::Worker;

use crate::store::{Limits, Room, Store};
use crate::watch::Topic;

const TICK: Duration = Duration::from_millis(100);

/// Begins with a memcached version, because clients choose commands by it.
const VERSION: &str = concat!("1.6.45-glebe-", env!("CARGO_PKG_VERSION"));

/// An error for a person to read.
pub type Failure = Box<dyn Error + Send + Sync>;

struct Shared {
    settings: Settings,
    shares: Shares,
    store: Store,
    counters: Vec<Counters>,
    prefixes: Prefixes,
    passwords: Option<Passwords>,
    keys: Option<Keys>,
    verbosity: Verbosity,
    /// Connections and listening sockets by descriptor.
    shown: Mutex<BTreeMap<u64, Arc<Shown>>>,
    totals: Totals,
    is_ending: AtomicBool,
    /// Bytes charged for values that are being received.
    under_way: AtomicU64,
    /// Length in bytes of a value that has waited long for room, or 0.
    wanted: AtomicU64,
    /// Bytes of the buffers of connections whose clients have not taken their answers.
    answers: AtomicU64,
    waker: mio::Waker,
}

#[derive(Debug, Default)]
struct Totals {
    now: AtomicU64,
    all: AtomicU64,
    refused: AtomicU64,
    /// Times when the server did not accept because it was full.
    paused: AtomicU64,
}

impl Shared {
    fn end(&self) {
        self.is_ending.store(true, Ordering::Release);
        // If waking fails, a signal still ends the server.
        let _ = self.waker.wake();
    }

    /// Reads the files of users and certificates again, after SIGHUP.
    fn refresh(&self) {
        if let Some(Err(e)) = self.keys.as_ref().map(Keys::refresh) {
            tell(format_args!("the certificate stays as it was: {e}"));
        }
        if let Some(Err(e)) = self.passwords.as_ref().map(Passwords::refresh) {
            tell(format_args!("the users stay as they were: {e}"));
        }
    }

    fn shown(&self) -> MutexGuard<'_, BTreeMap<u64, Arc<Shown>>> {
        self.shown.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn listeners(&self) -> u64 {
        let is_listening = |shown: &&Arc<Shown>| {
            shown.state.load(Ordering::Relaxed) == conn::State::Listening as u8
        };
        self.shown().values().filter(is_listening).count() as u64
    }

    /// Notes that a connection ends, and why.
    fn note_end(&self, conn: &Conn, why: &str) {
        let number = conn.shown.number;
        self.verbosity.trace(format_args!("<{number} connection closed ({why})."));
        if self.store.watch.wants(Topic::Connections) {
            let remote = watching::remote(&conn.shown.addr);
            self.store.watch.note(Topic::Connections, |text| {
                let line = format!("conn_close {remote} reason={why} cfd={number}");
                text.extend_from_slice(line.as_bytes());
            });
        }
    }

    fn forget(&self, conn: &Conn) {
        if let Some(watcher) = &conn.watcher {
            self.store.watch.leave(watcher);
        }
        self.under_way.fetch_sub(conn.charged, Ordering::Relaxed);
        self.shown().remove(&conn.shown.number);
        let before = self.totals.now.fetch_sub(1, Ordering::Relaxed);
        if before >= self.settings.conns as u64 {
            // The server was full and can accept another connection.
            let _ = self.waker.wake();
        }
    }

    /// Counts `now` kept bytes of a connection instead of `before`.
    fn keep(&self, before: u64, now: u64) {
        self.answers.fetch_add(now, Ordering::Relaxed);
        self.answers.fetch_sub(before, Ordering::Relaxed);
    }

    /// Charges `bytes` for a value that is being received. Returns false if all such values would
    /// exceed their share. A value is always allowed if no other is being received.
    fn may_charge(&self, conn: &mut Conn, bytes: u64) -> bool {
        let most = self.shares.values(self.store.own());
        let own = bytes.max(conn.charged);
        let charge = |all: u64| {
            let others = all - conn.charged;
            (others == 0 || others + own <= most).then_some(others + own)
        };
        let (set, seen) = (Ordering::Relaxed, Ordering::Relaxed);
        if self.under_way.fetch_update(set, seen, charge).is_err() {
            return false;
        }
        conn.charged = own;
        conn.charged_at = Instant::now();
        conn.came_at = conn.charged_at;
        // A connection that still waits sets it again at its next try.
        self.wanted.store(0, Ordering::Relaxed);
        true
    }

    /// Returns true if a value has waited long for room, and still has none.
    fn is_short(&self) -> bool {
        let (wanted, all) = (&self.wanted, &self.under_way);
        let (wanted, all) = (wanted.load(Ordering::Relaxed), all.load(Ordering::Relaxed));
        wanted > 0 && all > 0 && all + wanted > self.shares.values(self.store.own())
    }

    /// Removes the connection's charge unless a value is being received.
    fn charge(&self, conn: &mut Conn) {
        if conn.need <= carry::CHARGED && conn.charged > 0 {
            self.under_way.fetch_sub(conn.charged, Ordering::Relaxed);
            conn.charged = 0;
        }
    }
}

/// A memcached server. The drop ends it.
pub struct Server {
    shared: Arc<Shared>,
    door: accept::Door,
    hired: Vec<worker::Hired>,
    threads: Vec<thread::JoinHandle<()>>,
    control: Option<PathBuf>,
}

impl Server {
    /// Starts the store and the workers, then listens.
    ///
    /// # Errors
    /// If a resource is missing, such as an address, memory or descriptors.
    pub fn start(settings: Settings) -> Result<Self, Failure> {
        Self::prepare(settings)?.listen()
    }

    /// Starts a server and binds its TCP addresses, but does not listen yet.
    ///
    /// # Errors
    /// See [`Server::start`].
    pub fn prepare(settings: Settings) -> Result<Self, Failure> {
        let shares = Shares::new(&settings);
        let limits = Limits {
            bytes: settings.memory,
            reserve_bytes: shares.reserve,
            brick: settings.brick,
            more: settings.more,
            nodes: settings.nodes.clone(),
            item_bytes: settings.item_max,
            evict: settings.evict,
        };
        let passwords = settings.access.passwords.as_deref().map(Passwords::read).transpose()?;
        let keys = settings.access.tls.as_ref().map(Keys::read).transpose()?;
        let (door, waker) = accept::Door::open(&settings)?;
        let store = Store::new(limits)?;
        let threads = settings.threads;
        let shared = Arc::new(Shared {
            prefixes: Prefixes::new(settings.delimiter),
            verbosity: Verbosity::new(settings.verbose),
            passwords,
            keys,
            settings,
            shares,
            store,
            counters: (0..threads).map(|_| Counters::default()).collect(),
            shown: Mutex::new(BTreeMap::new()),
            totals: Totals::default(),
            is_ending: AtomicBool::new(false),
            under_way: AtomicU64::new(0),
            wanted: AtomicU64::new(0),
            answers: AtomicU64::new(0),
            waker,
        });
        let mut server =
            Self { shared, door, hired: Vec::new(), threads: Vec::new(), control: None };
        for nth in 0..threads {
            let (worker, hired) = Worker::new(&server.shared, nth)?;
            server.hired.push(hired);
            server.spawn("glebe-worker", move |_| worker.run())?;
        }
        server.spawn("glebe-upkeep", |shared| {
            let mut room = Room::default();
            while !shared.is_ending.load(Ordering::Acquire) {
                shared.store.tick(&mut room);
                thread::sleep(TICK);
            }
        })?;
        server.serve_others();
        Ok(server)
    }

    /// Listens.
    ///
    /// # Errors
    /// If an address is not available.
    pub fn listen(mut self) -> Result<Self, Failure> {
        self.door.listen(self.shared.settings.backlog)?;
        self.door.show(&self.shared);
        Ok(self)
    }

    fn spawn(
        &mut self,
        name: &str,
        work: impl FnOnce(&Shared) + Send + 'static,
    ) -> std::io::Result<()> {
        let shared = Arc::clone(&self.shared);
        let run = move || work(&shared);
        self.threads.push(thread::Builder::new().name(name.into()).spawn(run)?);
        Ok(())
    }

    /// Serves statistics and the control socket. The cache works without them, so errors are only
    /// printed.
    fn serve_others(&mut self) {
        if !self.shared.settings.serve_stats {
            return;
        }
        let beside = match self.shared.store.reserve().serve_stats() {
            Ok(path) => Some(path.with_extension("control")),
            Err(e) => {
                tell(format_args!("no statistics for `glebe stats`: {e}"));
                None
            }
        };
        let Some(path) = self.shared.settings.control.clone().or(beside) else {
            return tell(format_args!("no control socket for `glebe recall`; give --control"));
        };
        match control::listen(&path, &self.shared) {
            Ok(()) => self.control = Some(path),
            Err(e) => tell(format_args!("no control socket: {}: {e}", path.display())),
        }
    }

    /// Returns the control socket's path.
    #[must_use]
    pub fn control(&self) -> Option<&Path> {
        self.control.as_deref()
    }

    /// Takes the descriptors that a service manager handed over with their names, as far as the
    /// server leaves them to its caller: files, and Unix sockets of packets.
    #[must_use]
    pub fn take_others(&mut self) -> Vec<(String, OwnedFd)> {
        self.door.take_others()
    }

    /// Returns the addresses that the server listens at.
    #[must_use]
    pub fn addresses(&self) -> Vec<String> {
        self.door.addresses()
    }

    /// Returns the first TCP port.
    #[must_use]
    pub fn port(&self) -> Option<u16> {
        self.door.port()
    }

    /// Returns the store.
    #[must_use]
    pub fn store(&self) -> &Store {
        &self.shared.store
    }

    /// Returns a function that returns the statistics of the cache as OpenMetrics text without its
    /// end mark. The names begin with `glebe_serve_`. Costs as much as `stats`.
    pub fn metrics(&self) -> impl Fn() -> String + Send + 'static {
        let shared = Arc::clone(&self.shared);
        move || metrics::families(&shared)
    }

    /// Returns a function that ends the server.
    pub fn stopper(&self) -> impl Fn() + Send + Sync + 'static {
        let shared = Arc::clone(&self.shared);
        move || shared.end()
    }

    /// Serves until a signal, a client's `shutdown` or [`Server::stopper`] ends it.
    ///
    /// # Errors
    /// If waiting for events fails.
    pub fn run(self) -> Result<(), Failure> {
        self.run_until(|| {})
    }

    /// Serves like [`Server::run`], and calls `is_ending` when the end begins.
    ///
    /// # Errors
    /// See [`Server::run`].
    pub fn run_until(mut self, is_ending: impl FnOnce()) -> Result<(), Failure> {
        let done = self.door.run(&self.shared, &self.hired);
        is_ending();
        self.end();
        done.map_err(Into::into)
    }

    /// Ends the threads and removes the sockets. A second call does nothing.
    fn end(&mut self) {
        self.shared.end();
        for worker in &self.hired {
            // A worker that is not woken ends at its next event.
            let _ = worker.waker.wake();
        }
        for thread in self.threads.drain(..) {
            // The message of a panic was already printed.
            let _ = thread.join();
        }
        self.shared.verbosity.end();
        if let Some(path) = self.control.take() {
            let _ = std::fs::remove_file(path);
        }
        self.door.close();
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.end();
    }
}
