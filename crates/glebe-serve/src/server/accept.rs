//! [`Door`] owns the listening sockets, and receives the signals that end the server.

use std::io::{self, ErrorKind, Read, Write};
use std::net::SocketAddr;
use std::os::fd::AsRawFd;
use std::os::unix::fs::{FileTypeExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, AtomicU8, Ordering};
use std::sync::Arc;
use std::time::Duration;

use glebe::internal::sys::files::handed_over::{self, Handed};
use mio::net::{TcpListener, UnixListener, UnixStream};
use mio::{Events, Interest, Poll, Registry, Token, Waker};
use rustix::io::Errno;
use rustix::net::{sockopt, AddressFamily, SocketType};
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use socket2::{Domain, SockRef, Socket, Type};

use super::conn::{Conn, Shown, State, Stream};
use super::tls::Keys;
use super::worker::Hired;
use super::{watching, Failure, Settings, Shared};
use crate::watch::Topic;

const WAKE: Token = Token(usize::MAX);
const SIGNAL: Token = Token(usize::MAX - 1);
const HANG_UP: Token = Token(usize::MAX - 2);
/// Pause after a failed accept, for example when the process has no descriptors left.
const PAUSE: Duration = Duration::from_millis(10);
/// Descriptors that the process needs beside those of connections and workers.
const OWN_DESCRIPTORS: u64 = 64;
/// Most connections that are accepted or refused before the next look at signals.
const ACCEPTS: usize = 256;
const REFUSAL: &[u8] = b"ERROR Too many open connections\r\n";

/// What is left of the connections that waited at a listener.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Queue {
    Empty,
    /// More may wait.
    Long,
    /// They must wait because the server is full.
    Full,
}

enum Listener {
    /// With true, connections use TLS.
    Tcp(TcpListener, bool),
    Unix(UnixListener, Option<PathBuf>),
}

pub(super) struct Door {
    poll: Poll,
    /// Bound sockets that do not listen yet.
    bound: Vec<(SocketAddr, Socket)>,
    unix: Option<(PathBuf, u32)>,
    listeners: Vec<Listener>,
    signals: UnixStream,
    hang_ups: UnixStream,
    next_worker: usize,
    others: Handed,
    /// Connections over TCP use TLS, but for these addresses.
    is_tls: bool,
    without_tls: Vec<SocketAddr>,
}

impl Door {
    /// Takes a service manager's sockets, or else binds the settings' TCP addresses. Bound sockets
    /// listen only from [`Door::listen`] on, because clients must not connect before the server can
    /// answer.
    pub(super) fn open(settings: &Settings) -> Result<(Self, Waker), Failure> {
        allow_descriptors(settings)?;
        let poll = Poll::new()?;
        let waker = Waker::new(poll.registry(), WAKE)?;
        let is_tls = settings.access.tls.is_some();
        let (listeners, others) = handed_over(is_tls)?;
        let (mut bound, mut unix) = (Vec::new(), None);
        if listeners.is_empty() {
            for address in &settings.listen {
                let failed = |e| format!("cannot listen at {address}: {e}");
                bound.push((*address, tcp(*address).map_err(failed)?));
            }
            if let Some((path, _)) = &settings.unix {
                if std::os::unix::net::UnixStream::connect(path).is_ok() {
                    return Err(format!("cannot listen at {}: in use", path.display()).into());
                }
            }
            unix.clone_from(&settings.unix);
        }
        let registry = poll.registry();
        let signals = caught(registry, SIGNAL, &[SIGTERM, SIGINT])?;
        let hang_ups = caught(registry, HANG_UP, &[SIGHUP])?;
        let door = Self {
            poll,
            bound,
            unix,
            listeners,
            signals,
            hang_ups,
            next_worker: 0,
            others,
            is_tls,
            without_tls: settings.access.without_tls.clone(),
        };
        Ok((door, waker))
    }

    /// Takes the descriptors of the service manager that this server does not serve.
    pub(super) fn take_others(&mut self) -> Handed {
        std::mem::take(&mut self.others)
    }

    pub(super) fn listen(&mut self, backlog: i32) -> Result<(), Failure> {
        for (address, socket) in self.bound.drain(..) {
            socket.listen(backlog).map_err(|e| format!("cannot listen at {address}: {e}"))?;
            let is_tls = self.is_tls && !self.without_tls.contains(&address);
            self.listeners.push(Listener::Tcp(TcpListener::from_std(socket.into()), is_tls));
        }
        if let Some((path, mode)) = self.unix.take() {
            let failed = |e| format!("cannot listen at {}: {e}", path.display());
            let listener = unix(&path, mode, backlog).map_err(failed)?;
            self.listeners.push(Listener::Unix(listener, Some(path)));
        }
        let registry = self.poll.registry();
        for (nth, listener) in self.listeners.iter_mut().enumerate() {
            match listener {
                Listener::Tcp(tcp, _) => registry.register(tcp, Token(nth), Interest::READABLE)?,
                Listener::Unix(unix, _) => {
                    registry.register(unix, Token(nth), Interest::READABLE)?;
                }
            }
        }
        Ok(())
    }

    pub(super) fn show(&mut self, shared: &Shared) {
        for listener in &self.listeners {
            let (number, addr) = (listener.number(), listener.address());
            shared.shown().insert(
                number,
                Arc::new(Shown {
                    number,
                    listen_addr: addr.clone(),
                    addr,
                    state: AtomicU8::new(State::Listening as u8),
                    last: AtomicU32::new(shared.store.clock().now()),
                }),
            );
        }
    }

    pub(super) fn addresses(&self) -> Vec<String> {
        self.listeners.iter().map(Listener::address).collect()
    }

    pub(super) fn port(&self) -> Option<u16> {
        self.listeners.iter().find_map(|listener| match listener {
            Listener::Tcp(tcp, _) => Some(tcp.local_addr().ok()?.port()),
            Listener::Unix(..) => None,
        })
    }

    pub(super) fn run(&mut self, shared: &Shared, workers: &[Hired]) -> io::Result<()> {
        let mut events = Events::with_capacity(64);
        // Listeners to try again, because connections that already wait cause no further event.
        let mut waiting: Vec<usize> = (0..self.listeners.len()).collect();
        let mut wait = Some(Duration::ZERO);
        loop {
            match self.poll.poll(&mut events, wait) {
                Err(e) if e.kind() != ErrorKind::Interrupted => return Err(e),
                _ => {}
            }
            for event in &events {
                match event.token() {
                    SIGNAL => {
                        let mut byte = [0; 8];
                        if self.signals.read(&mut byte).is_ok_and(|n| n > 0) {
                            return Ok(());
                        }
                    }
                    HANG_UP => {
                        while self.hang_ups.read(&mut [0; 64]).is_ok_and(|n| n > 0) {}
                        shared.refresh();
                    }
                    WAKE => {}
                    Token(nth) if !waiting.contains(&nth) => waiting.push(nth),
                    Token(_) => {}
                }
            }
            if shared.is_ending.load(Ordering::Acquire) {
                return Ok(());
            }
            let (mut is_starved, mut has_more) = (false, false);
            for nth in std::mem::take(&mut waiting) {
                match self.accept_some(nth, shared, workers) {
                    Ok(Queue::Empty) => {}
                    Ok(Queue::Full) => waiting.push(nth),
                    Ok(Queue::Long) => {
                        has_more = true;
                        waiting.push(nth);
                    }
                    Err(e) => {
                        shared.verbosity.warn(format_args!("accept: {e}"));
                        is_starved = true;
                        waiting.push(nth);
                    }
                }
            }
            wait = match has_more {
                true => Some(Duration::ZERO),
                false => is_starved.then_some(PAUSE),
            };
        }
    }

    /// Accepts or refuses waiting connections, at most [`ACCEPTS`], because signals and other
    /// listeners must not wait for a flood to end.
    fn accept_some(&mut self, nth: usize, shared: &Shared, workers: &[Hired]) -> io::Result<Queue> {
        for _ in 0..ACCEPTS {
            let most = shared.settings.conns as u64;
            let is_full = shared.totals.now.load(Ordering::Relaxed) >= most;
            if is_full && !shared.settings.refuse_fast {
                shared.totals.paused.fetch_add(1, Ordering::Relaxed);
                return Ok(Queue::Full);
            }
            let (mut stream, addr) =
                match self.listeners[nth].accept(shared.keys.as_ref().filter(|_| !is_full)) {
                    Err(e) if e.kind() == ErrorKind::WouldBlock => return Ok(Queue::Empty),
                    // A signal came, or the client has left.
                    Err(e)
                        if matches!(
                            e.kind(),
                            ErrorKind::Interrupted | ErrorKind::ConnectionAborted
                        ) =>
                    {
                        continue;
                    }
                    other => other?,
                };
            if is_full {
                shared.totals.refused.fetch_add(1, Ordering::Relaxed);
                shared.verbosity.warn(format_args!("{addr}: refused, {most} connections"));
                // If the write fails, the client only sees the connection end.
                let _ = stream.write(REFUSAL);
                continue;
            }
            let number = stream.number();
            let shown = Arc::new(Shown {
                number,
                addr,
                listen_addr: self.listeners[nth].address(),
                state: AtomicU8::new(State::Idle as u8),
                last: AtomicU32::new(shared.store.clock().now()),
            });
            shared.verbosity.trace(format_args!("<{number} new client connection"));
            if shared.store.watch.wants(Topic::Connections) {
                let remote = watching::remote(&shown.addr);
                shared.store.watch.note(Topic::Connections, |text| {
                    let line = format!("conn_new {remote} cfd={number}");
                    text.extend_from_slice(line.as_bytes());
                });
            }
            shared.shown().insert(number, Arc::clone(&shown));
            shared.totals.now.fetch_add(1, Ordering::Relaxed);
            shared.totals.all.fetch_add(1, Ordering::Relaxed);
            let worker = &workers[self.next_worker % workers.len()];
            self.next_worker += 1;
            if let Err(returned) =
                worker.sender.send(Conn::new(stream, shown, shared.passwords.is_none()))
            {
                shared.forget(&returned.0);
            }
            worker.waker.wake()?;
        }
        Ok(Queue::Long)
    }

    pub(super) fn close(&mut self) {
        for listener in self.listeners.drain(..) {
            if let Listener::Unix(_, Some(path)) = listener {
                let _ = std::fs::remove_file(path);
            }
        }
    }
}

impl Listener {
    /// Accepts a connection, over TLS if the listener and the caller have keys for it.
    fn accept(&self, keys: Option<&Keys>) -> io::Result<(Stream, String)> {
        match self {
            Self::Tcp(listener, is_tls) => {
                let (stream, addr) = listener.accept()?;
                // Answers are written whole, so the kernel need not collect small writes.
                let _ = stream.set_nodelay(true);
                let stream = match keys.filter(|_| *is_tls) {
                    Some(keys) => Stream::Tls(Box::new(keys.session(stream)?)),
                    None => Stream::Tcp(stream),
                };
                Ok((stream, format!("tcp:{addr}")))
            }
            Self::Unix(listener, _) => {
                let (stream, _) = listener.accept()?;
                Ok((Stream::Unix(stream), self.address()))
            }
        }
    }

    fn address(&self) -> String {
        match self {
            Self::Tcp(tcp, _) => {
                tcp.local_addr().map_or_else(|e| e.to_string(), |a| format!("tcp:{a}"))
            }
            Self::Unix(unix, _) => {
                let path = unix.local_addr().ok();
                let path = path.as_ref().and_then(|addr| addr.as_pathname());
                format!("unix:{}", path.unwrap_or(Path::new("")).display())
            }
        }
    }

    fn number(&self) -> u64 {
        match self {
            Self::Tcp(tcp, _) => tcp.as_raw_fd() as u64,
            Self::Unix(unix, _) => unix.as_raw_fd() as u64,
        }
    }
}

/// Returns a socket that becomes readable at each of `signals`.
fn caught(registry: &Registry, token: Token, signals: &[i32]) -> io::Result<UnixStream> {
    let (caught, sender) = std::os::unix::net::UnixStream::pair()?;
    caught.set_nonblocking(true)?;
    let mut caught = UnixStream::from_std(caught);
    registry.register(&mut caught, token, Interest::READABLE)?;
    for signal in signals {
        signal_hook::low_level::pipe::register(*signal, sender.try_clone()?)?;
    }
    Ok(caught)
}

/// Returns the listening sockets of streams that a service manager handed over, and the rest.
fn handed_over(is_tls: bool) -> Result<(Vec<Listener>, Handed), Failure> {
    let (mut listeners, mut others) = (Vec::new(), Vec::new());
    for (nth, (name, fd)) in handed_over::take()?.into_iter().enumerate() {
        let kind = sockopt::socket_domain(&fd).and_then(|of| Ok((of, sockopt::socket_type(&fd)?)));
        match kind {
            Ok((AddressFamily::INET | AddressFamily::INET6, SocketType::STREAM)) => {
                let tcp = std::net::TcpListener::from(fd);
                tcp.set_nonblocking(true)?;
                SockRef::from(&tcp).set_keepalive(true)?;
                listeners.push(Listener::Tcp(TcpListener::from_std(tcp), is_tls));
            }
            Ok((AddressFamily::UNIX, SocketType::STREAM)) => {
                let unix = std::os::unix::net::UnixListener::from(fd);
                unix.set_nonblocking(true)?;
                listeners.push(Listener::Unix(UnixListener::from_std(unix), None));
            }
            // Other programs' files, and sockets of packets.
            Ok((AddressFamily::UNIX, SocketType::SEQPACKET)) | Err(Errno::NOTSOCK) => {
                others.push((name, fd));
            }
            _ => {
                let text = "is neither TCP nor a Unix stream nor a Unix socket of packets";
                return Err(format!("socket {nth} of the service manager {text}").into());
            }
        }
    }
    Ok((listeners, others))
}

fn tcp(address: SocketAddr) -> io::Result<Socket> {
    let socket = Socket::new(Domain::for_address(address), Type::STREAM.nonblocking(), None)?;
    socket.set_reuse_address(true)?;
    // Accepted sockets inherit it. Without it, a client's machine that vanished stays connected.
    socket.set_keepalive(true)?;
    if address.is_ipv6() {
        socket.set_only_v6(true)?;
    }
    socket.bind(&address.into())?;
    Ok(socket)
}

fn unix(path: &Path, mode: u32, backlog: i32) -> io::Result<UnixListener> {
    let is_socket = std::fs::symlink_metadata(path).is_ok_and(|meta| meta.file_type().is_socket());
    if is_socket && std::os::unix::net::UnixStream::connect(path).is_err() {
        // No server listens at `path` any more.
        std::fs::remove_file(path)?;
    }
    let socket = Socket::new(Domain::UNIX, Type::STREAM.nonblocking(), None)?;
    socket.bind(&socket2::SockAddr::unix(path)?)?;
    std::fs::set_permissions(path, PermissionsExt::from_mode(mode))?;
    socket.listen(backlog)?;
    Ok(UnixListener::from_std(socket.into()))
}

fn allow_descriptors(settings: &Settings) -> Result<(), Failure> {
    use rustix::process::{getrlimit, setrlimit, Resource};
    let needed = (settings.conns + settings.threads * 4) as u64 + OWN_DESCRIPTORS;
    let mut limit = getrlimit(Resource::Nofile);
    if limit.current.is_none_or(|current| current >= needed) {
        return Ok(());
    }
    limit.current = Some(needed);
    limit.maximum = limit.maximum.map(|maximum| maximum.max(needed));
    setrlimit(Resource::Nofile, limit).map_err(|e| {
        let conns = settings.conns;
        format!(
            "{conns} connections need {needed} descriptors, more than this process may have: {e}; \
             raise `ulimit -n`, or have fewer by `-c`"
        )
        .into()
    })
}

#[cfg(test)]
mod tests {
    use std::net::TcpStream;

    use super::*;

    #[test]
    fn nobody_is_let_in_before_it_listens() {
        let scratch = glebe_testing::Scratch::new("door");
        let path = scratch.path().join("socket");
        let settings = Settings {
            listen: vec![SocketAddr::from(([127, 0, 0, 1], 0))],
            unix: Some((path.clone(), 0o700)),
            ..Settings::default()
        };
        let (mut door, _waker) = Door::open(&settings).expect("a free port");
        let address = door.bound[0].1.local_addr().ok().and_then(|addr| addr.as_socket());
        let address = address.expect("an address");
        assert!(door.bound[0].1.keepalive().expect("a socket"), "dead clients are found");
        let refused = |e: io::Error| matches!(e.kind(), ErrorKind::ConnectionRefused);
        assert!(TcpStream::connect(address).is_err_and(refused));
        assert!(std::os::unix::net::UnixStream::connect(&path).is_err());
        door.listen(1).expect("it listens");
        assert_eq!(door.port(), Some(address.port()));
        assert!(TcpStream::connect(address).is_ok());
        assert!(std::os::unix::net::UnixStream::connect(&path).is_ok());
        door.close();
    }
}
