//! [`Load`] is a client of many connections on one thread, with a fixed number of requests under
//! way on each.
//!
//! The client checks only the length of the answers: all keys exist, and values have one length.
//! [`super::recalls`] checks the bytes.

use std::io::{ErrorKind, Read, Write};
use std::net::TcpStream;
use std::time::Duration;

use rustix::event::{poll, PollFd, PollFlags};

use super::wire::Wire;
use crate::clock::{micros, wall};
use crate::reserve::keyed::Random;
use crate::summary::Summary;
use crate::{interrupt, Outcome};

const CONNS: usize = 16;
pub(super) const KEYS: u64 = 20_000;
const CHUNK: usize = 1 << 18;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Op {
    Get,
    Set,
    MetaGet,
}

impl Op {
    pub(super) const ALL: [Self; 3] = [Self::Get, Self::Set, Self::MetaGet];

    pub(super) const fn name(self) -> &'static str {
        match self {
            Self::Get => "get",
            Self::Set => "set",
            Self::MetaGet => "mg",
        }
    }

    pub(super) fn ask(self, key: u64, value: &[u8], out: &mut Vec<u8>) {
        let head = match self {
            Self::Get => format!("get key{key:08}\r\n"),
            Self::MetaGet => format!("mg key{key:08} v\r\n"),
            Self::Set => format!("set key{key:08} 0 0 {}\r\n", value.len()),
        };
        out.extend_from_slice(head.as_bytes());
        if self == Self::Set {
            out.extend_from_slice(value);
            out.extend_from_slice(b"\r\n");
        }
    }

    fn answer_len(self, len: usize) -> usize {
        let words = match self {
            Self::Set => return "STORED\r\n".len(),
            Self::Get => format!("VALUE key{:08} 0 {len}\r\n\r\nEND\r\n", 0),
            Self::MetaGet => format!("VA {len}\r\n\r\n"),
        };
        words.len() + len
    }
}

#[derive(Clone, Copy, Debug)]
pub(super) struct Done {
    pub(super) requests: u64,
    pub(super) wall: Duration,
    /// 99th percentile of waits, from the first request of a batch to the last answer.
    pub(super) p99_us: f64,
}

struct Conn {
    stream: Wire,
    sent: Duration,
    came: usize,
}

pub(super) struct Load {
    conns: Vec<Conn>,
    value: Vec<u8>,
    random: Random,
    request: Vec<u8>,
    buf: Vec<u8>,
}

pub(super) fn ask_version(mut stream: &TcpStream) -> Outcome {
    stream.write_all(b"version\r\n")?;
    let mut answer = [0; 64];
    let len = stream.read(&mut answer)?;
    match answer[..len].starts_with(b"VERSION") {
        true => Ok(()),
        false => Err("no version".into()),
    }
}

/// Returns false for requests that are longer than one record of TLS: memcached 1.6.18 may wait for
/// ever for the bytes that OpenSSL has already read.
pub(super) const fn fits_a_record(with_tls: bool, size: usize, op: Op, depth: usize) -> bool {
    !with_tls || !matches!(op, Op::Set) || (size + 64) * depth <= 16 << 10
}

impl Load {
    /// Stores a value of `size` bytes for each key, then opens the connections.
    pub(super) fn new(port: u16, with_tls: bool, size: usize) -> Outcome<Self> {
        let mut load = Self {
            conns: Vec::new(),
            value: vec![b'v'; size],
            random: Random::new(7),
            request: Vec::new(),
            buf: vec![0; CHUNK],
        };
        let mut stream = Wire::to(port, with_tls)?;
        let batch = if fits_a_record(with_tls, size, Op::Set, CONNS) { CONNS } else { 1 };
        for first in (0..KEYS).step_by(batch) {
            let mut request = Vec::new();
            (first..first + batch as u64)
                .for_each(|key| Op::Set.ask(key, &load.value, &mut request));
            stream.write_all(&request)?;
            stream.flush()?;
            let mut answers = vec![0; Op::Set.answer_len(size) * batch];
            stream.read_exact(&mut answers)?;
            if answers != b"STORED\r\n".repeat(batch) {
                let said = String::from_utf8_lossy(&answers).into_owned();
                return Err(format!("a set was refused: {said}").into());
            }
        }
        for _ in 0..CONNS {
            let stream = Wire::to(port, with_tls)?;
            load.conns.push(Conn { stream, sent: Duration::ZERO, came: 0 });
        }
        Ok(load)
    }

    pub(super) fn run(&mut self, op: Op, depth: usize, time: Duration) -> Outcome<Done> {
        let (start, mut waits) = (wall(), Vec::new());
        let whole = op.answer_len(self.value.len()) * depth;
        for nth in 0..CONNS {
            self.send(nth, op, depth)?;
        }
        let (mut busy, mut requests) = (CONNS, 0);
        while busy > 0 {
            interrupt::check();
            for nth in self.ready()? {
                if !self.receive(nth, whole)? {
                    continue;
                }
                requests += depth as u64;
                let now = wall();
                waits.push(micros(now - self.conns[nth].sent));
                if now - start < time {
                    self.send(nth, op, depth)?;
                } else {
                    busy -= 1;
                }
            }
        }
        let p99_us = Summary::of(&waits).map_or(f64::NAN, |summary| summary.p99);
        Ok(Done { requests, wall: wall() - start, p99_us })
    }

    fn send(&mut self, nth: usize, op: Op, depth: usize) -> Outcome {
        self.request.clear();
        for _ in 0..depth {
            op.ask(self.random.below(KEYS), &self.value, &mut self.request);
        }
        let conn = &mut self.conns[nth];
        (conn.sent, conn.came) = (wall(), 0);
        conn.stream.write_all(&self.request)?;
        Ok(conn.stream.flush()?)
    }

    fn ready(&self) -> Outcome<Vec<usize>> {
        let streams = self.conns.iter().map(|conn| &conn.stream);
        let mut fds: Vec<PollFd<'_>> =
            streams.map(|stream| PollFd::new(stream, PollFlags::IN)).collect();
        poll(&mut fds, None)?;
        let is_ready = |(nth, fd): (usize, &PollFd<'_>)| (!fd.revents().is_empty()).then_some(nth);
        Ok(fds.iter().enumerate().filter_map(is_ready).collect())
    }

    /// Returns true if the answers to the connection's last batch are complete.
    fn receive(&mut self, nth: usize, whole: usize) -> Outcome<bool> {
        let conn = &mut self.conns[nth];
        loop {
            let len = match conn.stream.read(&mut self.buf) {
                Ok(0) => return Err("the server closed a connection".into()),
                Ok(len) => len,
                Err(e) if e.kind() == ErrorKind::Interrupted => 0,
                Err(e) => return Err(e.into()),
            };
            conn.came += len;
            if conn.came > whole {
                let said = String::from_utf8_lossy(&self.buf[..len.min(60)]).into_owned();
                return Err(format!("an answer of another length: {said:?}").into());
            }
            if conn.came == whole || !conn.stream.keeps_bytes() {
                return Ok(conn.came == whole);
            }
        }
    }
}
