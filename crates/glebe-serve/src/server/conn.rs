//! [`Conn`] is a connection with its input that is not yet executed and its unsent answers.
//!
//! An idle connection has no buffers. While answers are unsent, the worker reads only the rest of a
//! line of keys, because a client may send the whole line before reading an answer. A worker limits
//! the sum of [`Conn::kept`].

use std::io::{self, ErrorKind, Read, Write};
use std::os::fd::AsRawFd;
use std::sync::atomic::{AtomicU32, AtomicU8, Ordering};
use std::sync::Arc;
use std::time::Instant;

use mio::net::{TcpStream, UnixStream};
use mio::{Interest, Registry, Token};

use super::listing::Dump;
use super::tls::{Records, Session};
use crate::watch::Watcher;

/// Data for `stats conns`.
#[derive(Debug)]
pub(super) struct Shown {
    pub(super) number: u64,
    pub(super) addr: String,
    pub(super) listen_addr: String,
    pub(super) state: AtomicU8,
    /// Time of the last command, or of the last bytes of a value or an answer, in seconds of the
    /// store's clock.
    pub(super) last: AtomicU32,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(super) enum State {
    Listening,
    Idle,
    Value,
    Skipping,
    Sending,
}

impl State {
    pub(super) const NAMES: [&'static str; 5] =
        ["conn_listening", "conn_read", "conn_nread", "conn_swallow", "conn_mwrite"];
}

#[derive(Debug)]
pub(super) enum Stream {
    Tcp(TcpStream),
    Unix(UnixStream),
    Tls(Box<Session>),
}

impl Stream {
    pub(super) fn register(
        &mut self,
        registry: &Registry,
        token: Token,
        interest: Interest,
    ) -> io::Result<()> {
        match self {
            Self::Tcp(stream) => registry.register(stream, token, interest),
            Self::Unix(stream) => registry.register(stream, token, interest),
            Self::Tls(session) => registry.register(&mut session.socket, token, interest),
        }
    }

    /// Returns the descriptor's number.
    pub(super) fn number(&self) -> u64 {
        (match self {
            Self::Tcp(tcp) => tcp.as_raw_fd(),
            Self::Unix(unix) => unix.as_raw_fd(),
            Self::Tls(session) => session.socket.as_raw_fd(),
        }) as u64
    }

    fn session(&self) -> Option<&Session> {
        match self {
            Self::Tls(session) => Some(session),
            _ => None,
        }
    }

    /// Returns true until the end of a handshake.
    pub(super) fn is_handshaking(&self) -> bool {
        self.session().is_some_and(Session::is_handshaking)
    }

    /// Returns the bytes that went through the socket. Returns zeros without TLS: reads and writes
    /// then return the bytes themselves.
    pub(super) fn records(&self) -> Records {
        self.session().map_or_else(Records::default, Session::records)
    }

    /// Returns true if the socket may have bytes after a read that did not fill its buffer.
    pub(super) fn has_more(&self) -> bool {
        self.session().is_some_and(Session::has_more)
    }
}

impl Read for Stream {
    fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
        match self {
            Self::Tcp(stream) => stream.read(buf),
            Self::Unix(stream) => stream.read(buf),
            Self::Tls(session) => session.read(buf),
        }
    }
}

impl Write for Stream {
    fn write(&mut self, buf: &[u8]) -> io::Result<usize> {
        match self {
            Self::Tcp(stream) => stream.write(buf),
            Self::Unix(stream) => stream.write(buf),
            Self::Tls(session) => session.write(buf),
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[derive(Debug)]
pub(super) struct Conn {
    pub(super) stream: Stream,
    pub(super) shown: Arc<Shown>,
    /// The client may use the server: it logged in, or the server has no passwords.
    pub(super) is_known: bool,
    pub(super) failed_logins: u8,
    /// Bytes received and not yet executed.
    pub(super) input: Vec<u8>,
    /// Bytes that `input` must have before it is parsed again.
    pub(super) need: usize,
    /// Bytes to discard from what the client sends next.
    pub(super) skip: u64,
    /// The next bytes may be the rest of a malformed value.
    pub(super) is_doubtful: bool,
    /// Lines to send, if the client watches the server.
    pub(super) watcher: Option<Arc<Watcher>>,
    /// A listing to send before `input` is handled.
    pub(super) dump: Option<Dump>,
    /// Answers that the client has not taken in full. The first `sent` bytes are already sent.
    out: Vec<u8>,
    sent: usize,
    /// The worker's queue has the connection.
    pub(super) is_queued: bool,
    /// The client sends no more.
    pub(super) has_end: bool,
    /// The connection ends after its answers are sent.
    pub(super) is_ending: bool,
    /// The connection ends for what the client sent.
    pub(super) has_failed: bool,
    /// When the connection began to wait for other connections' values.
    pub(super) waits_since: Option<Instant>,
    /// Bytes charged for a value that is being received.
    pub(super) charged: u64,
    /// When the value was charged.
    pub(super) charged_at: Instant,
    /// When the last bytes of the value came.
    pub(super) came_at: Instant,
    /// Bytes counted as kept after the last turn.
    pub(super) kept: u64,
    /// Number of the worker's turn in which the client last took bytes or had none to take.
    pub(super) took_at: u64,
}

impl Conn {
    pub(super) fn new(stream: Stream, shown: Arc<Shown>, is_known: bool) -> Self {
        Self {
            stream,
            shown,
            is_known,
            failed_logins: 0,
            input: Vec::new(),
            need: 0,
            skip: 0,
            is_doubtful: false,
            watcher: None,
            dump: None,
            out: Vec::new(),
            sent: 0,
            is_queued: false,
            has_end: false,
            is_ending: false,
            has_failed: false,
            waits_since: None,
            charged: 0,
            charged_at: Instant::now(),
            came_at: Instant::now(),
            kept: 0,
            took_at: 0,
        }
    }

    pub(super) fn show(&self, state: State) {
        self.shown.state.store(state as u8, Ordering::Relaxed);
    }

    /// Returns true if the client has to send the rest of a value. For an incomplete line, `need`
    /// is one byte more than its input.
    pub(super) fn is_receiving(&self) -> bool {
        self.skip > 0 || self.need > self.input.len() + 1
    }

    pub(super) fn is_sending(&self) -> bool {
        self.sent < self.out.len() || self.stream.session().is_some_and(Session::is_pending)
    }

    /// Returns the capacity of both buffers in bytes if answers are unsent, otherwise 0, and the
    /// bytes of TLS.
    pub(super) fn kept(&self) -> u64 {
        let of_tls = self.stream.session().map_or(0, Session::kept);
        if self.is_sending() {
            (self.out.capacity() + self.input.capacity()) as u64 + of_tls
        } else {
            of_tls
        }
    }

    /// Sends the kept answers, then `answers`. Keeps the answers that the socket does not take.
    /// Returns the bytes sent.
    pub(super) fn send(&mut self, answers: &[u8]) -> io::Result<u64> {
        let mut bytes = 0;
        if let Stream::Tls(session) = &mut self.stream {
            session.push()?;
        }
        while self.sent < self.out.len() {
            let n = self.write_from_out()?;
            if n == 0 {
                self.out.extend_from_slice(answers);
                return Ok(bytes);
            }
            self.sent += n;
            bytes += n as u64;
        }
        if self.sent > 0 {
            (self.out, self.sent) = (Vec::new(), 0);
        }
        let mut rest = answers;
        while !rest.is_empty() {
            let n = write(&mut self.stream, rest)?;
            bytes += n as u64;
            rest = &rest[n..];
            if n == 0 {
                self.out.extend_from_slice(rest);
                break;
            }
        }
        Ok(bytes)
    }

    fn write_from_out(&mut self) -> io::Result<usize> {
        write(&mut self.stream, &self.out[self.sent..])
    }
}

/// Writes `bytes`. Returns how many of them the socket took, 0 if it is full.
fn write(stream: &mut Stream, bytes: &[u8]) -> io::Result<usize> {
    loop {
        return match stream.write(bytes) {
            Ok(0) => Err(ErrorKind::WriteZero.into()),
            Err(e) if e.kind() == ErrorKind::Interrupted => continue,
            Err(e) if e.kind() == ErrorKind::WouldBlock => Ok(0),
            other => other,
        };
    }
}
