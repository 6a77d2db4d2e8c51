//! [`Client`] asks the daemon for memory.

use std::collections::VecDeque;
use std::fs::File;
use std::io::{
    self,
    ErrorKind::{BrokenPipe, ConnectionReset},
};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use rustix::event::{poll, PollFd, PollFlags, Timespec};

use crate::error::LeaseError;
use crate::lease::{Lease, Received};
use crate::socket::Packets;
use crate::wire::{Answer, Malformed, Message, Name, Request, Row, Wish, MESSAGE_MAX};
use glebe_os::internal::sync::{lock, Mutex};
use glebe_os::internal::sys::processes::fork::ForkGuard;
use glebe_os::internal::sys::processes::process::effective_user;
use glebe_os::units::{Bytes, PageSize};

/// Returns the path of the daemon's socket: `$GLEBE_LEASES`, else `/run/glebed/leases` if that
/// exists or the caller is root, else `glebed/leases` in `$XDG_RUNTIME_DIR`.
#[must_use]
pub fn socket_path() -> PathBuf {
    if let Some(given) = std::env::var_os("GLEBE_LEASES") {
        return given.into();
    }
    let machine = PathBuf::from("/run/glebed/leases");
    match std::env::var_os("XDG_RUNTIME_DIR") {
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
}

#[derive(Debug)]
pub(crate) struct Connection {
    packets: Packets,
    guard: ForkGuard,
    calls: Mutex<Calls>,
}

#[derive(Debug)]
struct Calls {
    last: u32,
    bytes: Vec<u8>,
    files: Vec<OwnedFd>,
    events: VecDeque<Message<Answer>>,
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
        Self::connect_with(path, name, None)
    }

    /// Connects as [`Client::connect_to`] does. Each call then waits at most for `patience`, and
    /// fails if the daemon does not answer.
    ///
    /// # Errors
    /// See [`Client::connect_to`]; `WouldBlock` of the connection.
    pub fn connect_within(path: &Path, name: &str, patience: Duration) -> Result<Self, LeaseError> {
        Self::connect_with(path, name, Some(patience))
    }

    fn connect_with(
        path: &Path,
        name: &str,
        patience: Option<Duration>,
    ) -> Result<Self, LeaseError> {
        let refused = |source| LeaseError::NoDaemon { path: path.to_owned(), source };
        let packets = Packets::connect(path, patience).map_err(refused)?;
        let connection = Arc::new(Connection::new(packets));
        let hello = Request::Hello { name: Name::new(name) };
        match connection.hello(hello)?.body {
            Answer::Welcome { brick, .. } => Ok(Self { connection, brick: Bytes::new(brick) }),
            _ => Err(Malformed::Answer.into()),
        }
    }

    /// Returns the unit of leases: the daemon rounds lengths up to it.
    #[must_use]
    pub fn brick(&self) -> Bytes {
        self.brick
    }

    /// Leases memory and maps it. A number of [`Bytes`] asks for any pages, adjacent if possible.
    ///
    /// # Errors
    /// [`LeaseError::Refused`]: ENOMEM with the longest free run; EAGAIN if memory is on its way
    /// back, so that a later call may succeed; EDQUOT with the user's limit; EINVAL for a bad
    /// request.
    pub fn lease(&self, wish: impl Into<Wish>) -> Result<Lease, LeaseError> {
        let got = self.connection.leased(0, Request::Lease(wish.into()))?;
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
        let mut got = self.connection.leased(0, Request::Lease(wish))?;
        let file = got.files.pop().ok_or(Malformed::Answer)?;
        Ok((file, got.bytes))
    }

    /// Sets memory aside for a later lease, which then cannot fail for lack of memory.
    ///
    /// # Errors
    /// See [`Client::lease`].
    pub fn promise(&self, wish: impl Into<Wish>) -> Result<Promise, LeaseError> {
        let (answer, _) = self.connection.call(0, Request::Promise(wish.into()))?;
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

impl AsFd for Client {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.connection.packets.as_fd()
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

    pub(crate) fn is_inherited(&self) -> bool {
        self.connection.guard.is_child()
    }

    pub(crate) fn has_ended(&self) -> bool {
        self.connection.packets.has_ended()
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
        let got = connection.leased(self.number, Request::Take)?;
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

impl Connection {
    fn new(packets: Packets) -> Self {
        let (bytes, files, events) = (vec![0; MESSAGE_MAX], Vec::new(), VecDeque::new());
        let calls = Mutex::new(Calls { last: 0, bytes, files, events });
        Self { packets, guard: ForkGuard::new(), calls }
    }

    /// Sends a request that gets no answer.
    pub(crate) fn tell(&self, lease: u64, body: Request) -> Result<(), LeaseError> {
        if self.guard.is_child() {
            return Err(LeaseError::Forked);
        }
        let mut out = Vec::with_capacity(16);
        Message { call: 0, lease, body }.encode(&mut out);
        Ok(self.packets.send(&out, &[])?)
    }

    fn call(&self, lease: u64, body: Request) -> Result<(Message<Answer>, Vec<File>), LeaseError> {
        self.ask(&mut lock(&self.calls), lease, body)
    }

    /// A daemon that refuses a connection ends it, maybe before the hello. The refusal is there
    /// nevertheless, behind an error of the socket.
    fn hello(&self, hello: Request) -> Result<Message<Answer>, LeaseError> {
        let mut calls = lock(&self.calls);
        let mut answer = self.ask(&mut calls, 0, hello);
        for _ in 0..2 {
            match &answer {
                Err(LeaseError::Connection(error))
                    if matches!(error.kind(), BrokenPipe | ConnectionReset) =>
                {
                    let call = calls.last;
                    answer = calls.answer(&self.packets, call);
                }
                _ => break,
            }
        }
        Ok(answer?.0)
    }

    fn ask(
        &self,
        calls: &mut Calls,
        lease: u64,
        body: Request,
    ) -> Result<(Message<Answer>, Vec<File>), LeaseError> {
        if self.guard.is_child() {
            return Err(LeaseError::Forked);
        }
        calls.last = calls.last.wrapping_add(1).max(1);
        let call = calls.last;
        let mut out = Vec::with_capacity(128);
        Message { call, lease, body }.encode(&mut out);
        self.packets.send(&out, &[])?;
        calls.answer(&self.packets, call)
    }

    /// Holds the lock for the whole exchange, since an answer may have several messages.
    fn leased(&self, lease: u64, body: Request) -> Result<Received, LeaseError> {
        let mut calls = lock(&self.calls);
        let (answer, files) = self.ask(&mut calls, lease, body)?;
        let number = answer.lease;
        let got = calls.rest_of(&self.packets, answer, files);
        drop(calls);
        got.inspect_err(|_| drop(self.tell(number, Request::Release)))
    }

    /// Returns the next event of a lease, waiting at most for `wait`.
    pub(crate) fn event(&self, lease: u64, wait: Duration) -> Result<Option<Answer>, LeaseError> {
        if self.guard.is_child() {
            return Err(LeaseError::Forked);
        }
        let until = Instant::now().checked_add(wait);
        loop {
            {
                let mut calls = lock(&self.calls);
                calls.events_there(&self.packets)?;
                let at = calls.events.iter().position(|event| event.lease == lease);
                if let Some(event) = at.and_then(|at| calls.events.remove(at)) {
                    return Ok(Some(event.body));
                }
            }
            let left = until.map(|until| until.saturating_duration_since(Instant::now()));
            if left.is_some_and(|left| left.is_zero()) {
                return Ok(None);
            }
            let left = left.and_then(|left| Timespec::try_from(left).ok());
            let mut fds = [PollFd::new(&self.packets, PollFlags::IN)];
            match poll(&mut fds, left.as_ref()) {
                Ok(_) | Err(rustix::io::Errno::INTR) => {}
                Err(error) => return Err(io::Error::from(error).into()),
            }
        }
    }
}

impl Calls {
    fn rest_of(
        &mut self,
        packets: &Packets,
        answer: Message<Answer>,
        mut files: Vec<File>,
    ) -> Result<Received, LeaseError> {
        let number = answer.lease;
        let Answer::Leased { bytes, file, page, frames, .. } = answer.body else {
            return Err(Malformed::Answer.into());
        };
        let mut all = frames;
        let size = PageSize::new(page).filter(|page| page.bytes().get() <= file);
        let size = size.ok_or(Malformed::Answer)?;
        if file == 0 || bytes % file != 0 || file % page != 0 {
            return Err(Malformed::Answer.into());
        }
        while (files.len() as u64) < bytes / file {
            let (more, mut further) = self.answer(packets, answer.call)?;
            match more.body {
                Answer::Leased { first, frames, .. }
                    if first as usize == files.len() && !further.is_empty() =>
                {
                    files.append(&mut further);
                    all.extend(frames);
                }
                _ => return Err(Malformed::Answer.into()),
            }
        }
        let [bytes, file] = [bytes, file].map(Bytes::new);
        Ok(Received { number, bytes, file, page: size, files, frames: all })
    }

    fn answer(
        &mut self,
        packets: &Packets,
        call: u32,
    ) -> Result<(Message<Answer>, Vec<File>), LeaseError> {
        loop {
            let len = packets.receive(&mut self.bytes, &mut self.files)?;
            if len == 0 {
                return Err(io::Error::from(io::ErrorKind::UnexpectedEof).into());
            }
            let message = Message::<Answer>::decode(&self.bytes[..len])?;
            if message.call == 0 {
                self.events.push_back(message);
                continue;
            }
            let files = self.files.drain(..).map(File::from).collect();
            if message.call != call {
                continue; // the rest of an answer to a call that failed
            }
            return match message.body {
                Answer::Refused { errno, limit, text } => {
                    Err(LeaseError::Refused { errno, limit: Bytes::new(limit), text })
                }
                _ => Ok((message, files)),
            };
        }
    }

    fn events_there(&mut self, packets: &Packets) -> Result<(), LeaseError> {
        loop {
            match packets.poll(&mut self.bytes, &mut self.files) {
                Ok(0) => return Err(io::Error::from(io::ErrorKind::UnexpectedEof).into()),
                Ok(len) => self.events.push_back(Message::<Answer>::decode(&self.bytes[..len])?),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(()),
                Err(error) => return Err(error.into()),
            }
        }
    }
}
