//! [`Client`] asks the daemon for memory.

use std::fs::File;
use std::io::ErrorKind::WouldBlock;
use std::os::fd::{AsFd, BorrowedFd};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use rustix::io::Errno;

use crate::connection::Connection;
use crate::error::LeaseError;
use crate::lease::{Lease, Received};
use crate::socket::Packets;
use crate::wire::{Answer, Malformed, Name, Request, Row, Wish};
use glebe_os::internal::sys::processes::process::effective_user;
use glebe_os::units::Bytes;

/// Default of [`Client::patience`].
const PATIENCE: Duration = Duration::from_secs(2);
/// First and longest pause between two requests for memory that is on its way.
const PAUSES: [Duration; 2] = [Duration::from_millis(1), Duration::from_millis(50)];

/// Returns the path of the daemon's socket: `$GLEBE_LEASES`, else `/run/glebed/leases` if that
/// exists or the caller is root, else `glebed/leases` in `$XDG_RUNTIME_DIR`. An empty variable
/// counts as unset.
#[must_use]
pub fn socket_path() -> PathBuf {
    let variable = |name| std::env::var_os(name).filter(|value| !value.is_empty());
    if let Some(given) = variable("GLEBE_LEASES") {
        return given.into();
    }
    let machine = PathBuf::from("/run/glebed/leases");
    match variable("XDG_RUNTIME_DIR") {
        Some(dir) if effective_user() != 0 && !machine.exists() => {
            Path::new(&dir).join("glebed/leases")
        }
        _ => machine,
    }
}

/// A connection to the daemon. Threads may share it; a call excludes others.
#[derive(Clone, Debug)]
pub struct Client {
    connection: Arc<Connection>,
    brick: Bytes,
    free: Bytes,
    patience: Duration,
}

impl Client {
    /// Connects to the daemon at [`socket_path`].
    ///
    /// # Errors
    /// [`LeaseError::NoDaemon`].
    pub fn connect() -> Result<Self, LeaseError> {
        let name = std::env::args_os().next().unwrap_or_default();
        let name = Path::new(&name).file_name().unwrap_or_default();
        Self::connect_to(&socket_path(), &name.to_string_lossy())
    }

    /// Connects to the daemon at `path`. Lists show `name`, cut to 32 bytes.
    ///
    /// # Errors
    /// [`LeaseError::NoDaemon`]; [`LeaseError::Refused`] if the user has too many connections.
    pub fn connect_to(path: &Path, name: &str) -> Result<Self, LeaseError> {
        Self::connect_with(path, name, None, 0, true)
    }

    /// Connects as [`Client::connect_to`] does. Each call then waits at most for `limit`, and fails
    /// if the daemon does not answer. Requests for memory wait 10 s longer for each GiB.
    ///
    /// # Errors
    /// See [`Client::connect_to`]; [`LeaseError::Silent`].
    pub fn connect_within(path: &Path, name: &str, limit: Duration) -> Result<Self, LeaseError> {
        Self::connect_with(path, name, Some(limit), 0, true)
    }

    pub(crate) fn connect_with(
        path: &Path,
        name: &str,
        limit: Option<Duration>,
        least: i32,
        keeps_events: bool,
    ) -> Result<Self, LeaseError> {
        let path = path.to_owned();
        let packets = match Packets::connect(&path, limit).map(|packets| packets.above(least)) {
            Ok(packets) => packets,
            Err(source) if source.kind() == WouldBlock => return Err(LeaseError::Silent { path }),
            Err(source) => return Err(LeaseError::NoDaemon { path, source }),
        };
        let connection = Arc::new(Connection::new(path, limit, packets, keeps_events));
        let hello = Request::Hello { name: Name::new(name) };
        match connection.hello(hello)?.body {
            Answer::Welcome { brick, free, .. } => {
                let [brick, free] = [brick, free].map(Bytes::new);
                Ok(Self { connection, brick, free, patience: PATIENCE })
            }
            _ => Err(Malformed::Answer.into()),
        }
    }

    /// Sets how long a request for memory is repeated while the daemon refuses it with EAGAIN:
    /// memory is being taken back or added. Default: 2 s.
    #[must_use]
    pub fn patience(self, patience: Duration) -> Self {
        Self { patience, ..self }
    }

    /// Returns the unit of leases: the daemon rounds lengths up to it.
    #[must_use]
    pub fn brick(&self) -> Bytes {
        self.brick
    }

    /// Leases memory and maps it. A number of [`Bytes`] asks for any pages, adjacent if possible.
    ///
    /// # Errors
    /// [`LeaseError::Refused`]: ENOMEM with the longest free run; EAGAIN if memory is still on its
    /// way after [`Client::patience`], so that a later call may succeed; EDQUOT with the user's
    /// limit; EINVAL for a bad request.
    pub fn lease(&self, wish: impl Into<Wish>) -> Result<Lease, LeaseError> {
        let got = self.leased(wish.into())?;
        Lease::map(got, Arc::clone(&self.connection))
    }

    /// Leases one file without mapping it, for another program. The lease ends with the last clone
    /// of this client, and of its descriptor.
    ///
    /// # Errors
    /// See [`Client::lease`].
    pub fn file(&self, wish: impl Into<Wish>) -> Result<(File, Bytes), LeaseError> {
        let mut wish = wish.into();
        wish.flags.one_file = true;
        let mut got = self.leased(wish)?;
        let file = got.files.pop().ok_or(Malformed::Answer)?;
        Ok((file, got.bytes))
    }

    /// Sets memory aside for a later lease, which then cannot fail for lack of memory.
    ///
    /// # Errors
    /// See [`Client::lease`].
    pub fn promise(&self, wish: impl Into<Wish>) -> Result<Promise, LeaseError> {
        let wish = wish.into();
        let (answer, _) = self.repeated(|| self.connection.call(0, Request::Promise(wish)))?;
        match answer.body {
            Answer::Promised { bytes } => {
                let connection = Some(Arc::clone(&self.connection));
                Ok(Promise { connection, number: answer.lease, bytes: Bytes::new(bytes) })
            }
            _ => Err(Malformed::Answer.into()),
        }
    }

    /// Lists this user's leases; root sees all.
    ///
    /// # Errors
    /// If the connection fails.
    pub fn list(&self) -> Result<Vec<Row>, LeaseError> {
        let mut all: Vec<Row> = Vec::new();
        loop {
            let from = all.last().map_or(0, |row| row.lease + 1);
            match self.connection.call(from, Request::List)?.0.body {
                Answer::Listed(rows) if rows.is_empty() => return Ok(all),
                Answer::Listed(rows) if rows.iter().all(|row| row.lease >= from) => {
                    all.extend(rows)
                }
                _ => return Err(Malformed::Answer.into()),
            }
        }
    }
}

impl Client {
    /// Returns the daemon's statistics as OpenMetrics text.
    ///
    /// # Errors
    /// If the connection fails.
    pub fn stats(&self) -> Result<String, LeaseError> {
        match self.connection.call(0, Request::Stats)?.0.body {
            Answer::Stats(text) => Ok(text),
            _ => Err(Malformed::Answer.into()),
        }
    }
}

impl Client {
    fn leased(&self, wish: Wish) -> Result<Received, LeaseError> {
        let size = Bytes::new(wish.bytes);
        self.repeated(|| self.connection.leased(0, size, Request::Lease(wish)))
    }

    /// Repeats a request while its memory is on its way, within the patience.
    pub(crate) fn repeated<T>(
        &self,
        mut ask: impl FnMut() -> Result<T, LeaseError>,
    ) -> Result<T, LeaseError> {
        let begin = Instant::now();
        let [mut pause, longest] = PAUSES;
        loop {
            let answer = ask();
            let left = self.patience.saturating_sub(begin.elapsed());
            let is_under_way = matches!(&answer, Err(LeaseError::Refused { errno, .. })
                if *errno == Errno::AGAIN.raw_os_error());
            if left.is_zero() || !is_under_way {
                return answer;
            }
            std::thread::sleep(pause.min(left));
            pause = (pause * 2).min(longest);
        }
    }
}

impl AsFd for Client {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.connection.as_fd()
    }
}

/// A named cache of the daemon.
#[derive(Debug)]
pub(crate) struct Opened {
    pub(crate) number: u64,
    pub(crate) places: u64,
    pub(crate) place: u64,
    pub(crate) control: File,
}

/// Named caches.
impl Client {
    pub(crate) fn cache(&self, len: Bytes, name: Name) -> Result<Opened, LeaseError> {
        let request = Request::Cache { bytes: len.get(), name };
        let (answer, mut files) = self.connection.call(0, request)?;
        match (answer.body, files.pop()) {
            (Answer::Cache { places, place }, Some(control)) => {
                Ok(Opened { number: answer.lease, places, place, control })
            }
            _ => Err(Malformed::Answer.into()),
        }
    }

    pub(crate) fn place(&self, cache: u64, index: u64) -> Result<(u64, File), LeaseError> {
        let (answer, mut files) = self.connection.call(cache, Request::Place { index })?;
        match (answer.body, files.pop()) {
            (Answer::Place { generation }, Some(file)) => Ok((generation, file)),
            _ => Err(Malformed::Answer.into()),
        }
    }

    pub(crate) fn end_cache(&self, cache: u64) -> Result<(), LeaseError> {
        self.connection.call(cache, Request::Release).map(drop)
    }

    /// Returns the bytes that were free when this client connected.
    pub(crate) fn free(&self) -> Bytes {
        self.free
    }

    pub(crate) fn connection(&self) -> &Arc<Connection> {
        &self.connection
    }

    pub(crate) fn is_inherited(&self) -> bool {
        self.connection.is_inherited()
    }

    pub(crate) fn has_ended(&self) -> bool {
        self.connection.has_ended()
    }
}

/// Memory set aside for a lease; until then the daemon's caches use it.
#[derive(Debug)]
#[must_use = "a promise that is dropped is given up"]
pub struct Promise {
    /// `None` once taken.
    connection: Option<Arc<Connection>>,
    number: u64,
    bytes: Bytes,
}

impl Promise {
    /// Returns the length of the later lease.
    #[must_use]
    pub fn len(&self) -> Bytes {
        self.bytes
    }

    /// Leases the memory. An error ends the promise.
    ///
    /// # Errors
    /// If the connection fails, or the kernel refuses a call.
    pub fn take(mut self) -> Result<Lease, LeaseError> {
        let connection = self.connection.take().ok_or(LeaseError::Forked)?;
        let got = connection.leased(self.number, self.bytes, Request::Take)?;
        Lease::map(got, connection)
    }
}

impl Drop for Promise {
    fn drop(&mut self) {
        if let Some(connection) = &self.connection {
            let _ = connection.tell(self.number, Request::Release);
        }
    }
}

impl From<Bytes> for Wish {
    fn from(bytes: Bytes) -> Self {
        Self { bytes: bytes.get(), ..Self::default() }
    }
}
