//! [`Conn`]: one connection, with the bytes that are not yet handled or not yet sent.
//!
//! While it is idle it has no buffers. While answers wait to be sent nothing more is read, so what
//! it can hold is one command with its value, and the answers of one turn. What all connections of
//! a worker keep for clients that do not take it has a limit: see [`Conn::kept`].

use std::io::{self, ErrorKind, Read, Write};
use std::sync::atomic::{AtomicU32, AtomicU8, Ordering};
use std::sync::Arc;
use std::time::Instant;

use mio::net::{TcpStream, UnixStream};

use super::listing::Dump;

/// What a connection shows of itself to the others.
#[derive(Debug)]
pub(super) struct Shown {
    pub(super) number: u64,
    pub(super) addr: String,
    pub(super) listen_addr: String,
    pub(super) state: AtomicU8,
    /// Seconds of the clock at its last command.
    pub(super) last: AtomicU32,
}

/// What a connection does.
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

/// See [`Conn`].
#[derive(Debug)]
pub(super) enum Stream {
    Tcp(TcpStream),
    Unix(UnixStream),
}

impl Read for Stream {
    fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
        match self {
            Self::Tcp(stream) => stream.read(buf),
            Self::Unix(stream) => stream.read(buf),
        }
    }
}

impl Write for Stream {
    fn write(&mut self, buf: &[u8]) -> io::Result<usize> {
        match self {
            Self::Tcp(stream) => stream.write(buf),
            Self::Unix(stream) => stream.write(buf),
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// See the module.
#[derive(Debug)]
pub(super) struct Conn {
    pub(super) stream: Stream,
    pub(super) shown: Arc<Shown>,
    /// Bytes of commands that are not complete.
    pub(super) input: Vec<u8>,
    /// Bytes that are needed before `input` is looked at again.
    pub(super) need: usize,
    /// Bytes to come that nobody looks at.
    pub(super) skip: u64,
    /// The next bytes may be the rest of a value, which is not to be answered.
    pub(super) is_doubtful: bool,
    /// The listing that is being sent, before what `input` asks for.
    pub(super) dump: Option<Dump>,
    /// Answers that were not taken; some of them are sent.
    out: Vec<u8>,
    sent: usize,
    /// The other side has sent all that it will.
    pub(super) has_end: bool,
    /// It ends once its answers are sent.
    pub(super) is_ending: bool,
    /// When it began to wait for others' values to come to their end, before its own is read.
    pub(super) waits_since: Option<Instant>,
    /// Of the bytes that all values under way may take, its part.
    pub(super) charged: u64,
    /// Of the bytes that its worker keeps for clients, its part, as of its last turn.
    pub(super) kept: u64,
    /// The turn of its worker in which its client took something last.
    pub(super) took_at: u64,
}

impl Conn {
    pub(super) fn new(stream: Stream, shown: Arc<Shown>) -> Self {
        Self {
            stream,
            shown,
            input: Vec::new(),
            need: 0,
            skip: 0,
            is_doubtful: false,
            dump: None,
            out: Vec::new(),
            sent: 0,
            has_end: false,
            is_ending: false,
            waits_since: None,
            charged: 0,
            kept: 0,
            took_at: 0,
        }
    }

    pub(super) fn show(&self, state: State) {
        self.shown.state.store(state as u8, Ordering::Relaxed);
    }

    /// Whether answers wait to be sent.
    pub(super) fn is_sending(&self) -> bool {
        self.sent < self.out.len()
    }

    /// Bytes that are kept because the client does not take its answers, commands behind them too.
    pub(super) fn kept(&self) -> u64 {
        if self.is_sending() {
            (self.out.capacity() + self.input.capacity()) as u64
        } else {
            0
        }
    }

    /// Sends what waits, then `answers`, as far as the other side takes it; the bytes sent. What it
    /// does not take is kept.
    pub(super) fn send(&mut self, answers: &[u8]) -> io::Result<u64> {
        let mut bytes = 0;
        while self.is_sending() {
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

/// Bytes taken; 0 if there is no room now.
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
