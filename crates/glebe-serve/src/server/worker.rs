//! A worker: a thread with an event loop and its connections.
//!
//! Events are edges, so a connection is read until it has nothing more, or its turn is over and it
//! waits in a queue, or its answers are not taken. All answers of what one read brought go out in
//! one write.

use std::collections::VecDeque;
use std::io::{self, ErrorKind, Read};
use std::sync::atomic::Ordering;
use std::sync::mpsc::Receiver;
use std::sync::Arc;
use std::time::Duration;

use mio::{Events, Interest, Poll, Token, Waker};
use slab::Slab;

use super::conn::{Conn, State, Stream};
use super::execute::{Hands, Next, ANSWERS_MAX};
use super::Shared;
use crate::protocol::{self, Command, Line};
use crate::store::Room;

/// Bytes that one read may bring.
const READ: usize = 64 << 10;
/// Beyond that a value under way is charged.
const CHARGED: usize = READ;
const EVENTS: usize = 256;
const WAKE: Token = Token(usize::MAX);
/// A buffer that has grown beyond is not kept.
const KEPT: usize = 4 * ANSWERS_MAX;
/// How often idle connections are looked for.
const IDLE_LOOK: Duration = Duration::from_secs(1);

/// What the thread that accepts has of a worker.
#[derive(Debug)]
pub(super) struct Hired {
    pub(super) sender: std::sync::mpsc::Sender<Conn>,
    pub(super) waker: Arc<Waker>,
}

/// See the module.
pub(super) struct Worker {
    poll: Poll,
    /// By its number, which another one may have after it; `None` while it has its turn.
    conns: Slab<Option<Box<Conn>>>,
    /// Connections whose turn was over before their input.
    queue: VecDeque<usize>,
    receiver: Receiver<Conn>,
    read: Vec<u8>,
    out: Vec<u8>,
    nth: usize,
    shared: Arc<Shared>,
}

/// What becomes of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Fate {
    Waits,
    /// It has more to do, after the others.
    Again,
    Ends,
}

impl Worker {
    pub(super) fn new(shared: &Arc<Shared>, nth: usize) -> io::Result<(Self, Hired)> {
        let poll = Poll::new()?;
        let waker = Arc::new(Waker::new(poll.registry(), WAKE)?);
        let (sender, receiver) = std::sync::mpsc::channel();
        let worker = Self {
            poll,
            conns: Slab::new(),
            queue: VecDeque::new(),
            receiver,
            read: vec![0; READ],
            out: Vec::new(),
            nth,
            shared: Arc::clone(shared),
        };
        Ok((worker, Hired { sender, waker }))
    }

    /// Serves until the server ends.
    pub(super) fn run(mut self) {
        let shared = Arc::clone(&self.shared);
        let counters = &shared.counters[self.nth];
        let mut hands = Hands { shared: &shared, counters, room: Room::default(), key: Vec::new() };
        let mut events = Events::with_capacity(EVENTS);
        let idle = shared.settings.idle;
        while !shared.is_ending.load(Ordering::Acquire) {
            let wait = match (self.queue.is_empty(), idle) {
                (false, _) => Some(Duration::ZERO),
                (true, Some(_)) => Some(IDLE_LOOK),
                (true, None) => None,
            };
            match self.poll.poll(&mut events, wait) {
                Err(e) if e.kind() != ErrorKind::Interrupted => {
                    eprintln!("glebe serve: a worker ends: epoll_wait: {e}");
                    shared.end();
                    return;
                }
                _ => {}
            }
            for event in &events {
                match event.token() {
                    WAKE => self.welcome(),
                    Token(number) => {
                        if event.is_read_closed() {
                            self.note_end(number);
                        }
                        self.turn(number, &mut hands);
                    }
                }
            }
            for _ in 0..self.queue.len() {
                if let Some(number) = self.queue.pop_front() {
                    self.turn(number, &mut hands);
                }
            }
            if let Some(idle) = idle {
                self.kick_idle(idle, &hands);
            }
        }
        self.conns.drain().flatten().for_each(|conn| shared.forget(&conn));
    }

    fn welcome(&mut self) {
        while let Ok(mut conn) = self.receiver.try_recv() {
            let number = self.conns.vacant_key();
            let interest = Interest::READABLE | Interest::WRITABLE;
            let registry = self.poll.registry();
            let registered = match &mut conn.stream {
                Stream::Tcp(stream) => registry.register(stream, Token(number), interest),
                Stream::Unix(stream) => registry.register(stream, Token(number), interest),
            };
            match registered {
                Ok(()) => drop(self.conns.insert(Some(Box::new(conn)))),
                Err(e) => {
                    eprintln!("glebe serve: a connection is closed: epoll_ctl: {e}");
                    self.shared.forget(&conn);
                }
            }
        }
    }

    fn kick_idle(&mut self, idle: Duration, hands: &Hands<'_>) {
        let now = self.shared.store.clock().now();
        let is_idle = |conn: &Conn| {
            let last = conn.shown.last.load(Ordering::Relaxed);
            u64::from(now.saturating_sub(last)) > idle.as_secs()
        };
        let shared = &self.shared;
        self.conns.retain(|_, conn| {
            let idle = conn.as_ref().filter(|conn| is_idle(conn));
            if let Some(conn) = idle {
                hands.counters.idle_kicks.add(1);
                shared.forget(conn);
            }
            idle.is_none()
        });
    }

    /// The client sends no more: what it sent is followed by an end, of which no event comes.
    fn note_end(&mut self, number: usize) {
        if let Some(conn) = self.conns.get_mut(number).and_then(Option::as_mut) {
            conn.has_end = true;
        }
    }

    /// A connection's turn, if there is one of that number: it may have ended since.
    fn turn(&mut self, number: usize, hands: &mut Hands<'_>) {
        let Some(mut conn) = self.conns.get_mut(number).and_then(Option::take) else { return };
        match self.serve(&mut conn, hands) {
            Ok(Fate::Waits) => {}
            Ok(Fate::Again) => self.queue.push_back(number),
            // The other side has gone, or is told to.
            Ok(Fate::Ends) | Err(_) => {
                self.conns.remove(number);
                return self.shared.forget(&conn);
            }
        }
        self.conns[number] = Some(conn);
    }

    fn serve(&mut self, conn: &mut Conn, hands: &mut Hands<'_>) -> io::Result<Fate> {
        if conn.is_sending() {
            hands.counters.bytes_written.add(conn.send(b"")?);
        }
        if conn.is_sending() {
            conn.show(State::Sending);
            return Ok(Fate::Waits);
        }
        if conn.is_ending {
            return Ok(Fate::Ends);
        }
        // What was left for now.
        if !conn.input.is_empty() && conn.input.len() >= conn.need {
            let input = std::mem::take(&mut conn.input);
            let fate = self.work_off(conn, &input, hands)?;
            if fate != Fate::Waits || conn.is_sending() {
                return Ok(fate);
            }
        }
        let in_place = conn.skip == 0 && conn.need > conn.input.len() + READ;
        let got = match if in_place { read_on(conn) } else { conn.stream.read(&mut self.read) } {
            Err(e) if e.kind() == ErrorKind::WouldBlock => return Ok(Fate::Waits),
            Err(e) if e.kind() == ErrorKind::Interrupted => return Ok(Fate::Again),
            Err(e) => return Err(e),
            Ok(0) => return Ok(Fate::Ends),
            Ok(got) => got,
        };
        hands.counters.bytes_read.add(got as u64);
        let fate = match in_place {
            true => self.go_on(conn, hands)?,
            false => self.take_in(conn, got, hands)?,
        };
        // A short read has emptied the socket, and what comes after is another event.
        let was_all = !in_place && got < READ && !conn.has_end;
        Ok(if fate == Fate::Waits && !was_all && !conn.is_sending() { Fate::Again } else { fate })
    }

    /// Does what can be done with the bytes that were read to the common buffer.
    fn take_in(&mut self, conn: &mut Conn, got: usize, hands: &mut Hands<'_>) -> io::Result<Fate> {
        let skipped = conn.skip.min(got as u64) as usize;
        conn.skip -= skipped as u64;
        if !conn.input.is_empty() {
            conn.input.extend_from_slice(&self.read[skipped..got]);
            return self.go_on(conn, hands);
        }
        // In place of the buffer that others use meanwhile.
        let read = std::mem::take(&mut self.read);
        let fate = self.work_off(conn, &read[skipped..got], hands);
        self.read = read;
        fate
    }

    /// Does what can be done with the bytes that were left, and those that came since.
    fn go_on(&mut self, conn: &mut Conn, hands: &mut Hands<'_>) -> io::Result<Fate> {
        if conn.input.len() < conn.need {
            return Ok(Fate::Waits);
        }
        let input = std::mem::take(&mut conn.input);
        self.work_off(conn, &input, hands)
    }

    /// Carries out the commands of `input`, and sends the answers in one write. What is left over
    /// is kept in the connection, which has none.
    fn work_off(
        &mut self,
        conn: &mut Conn,
        input: &[u8],
        hands: &mut Hands<'_>,
    ) -> io::Result<Fate> {
        let mut out = std::mem::take(&mut self.out);
        out.clear();
        let (rest, fate) = carry_out(conn, input, hands, &mut out);
        let sent = conn.send(&out);
        out.clear();
        out.shrink_to(KEPT);
        self.out = out;
        hands.counters.bytes_written.add(sent?);
        if conn.input.is_empty() && !rest.is_empty() {
            conn.input = rest.to_vec();
        }
        self.shared.charge(conn);
        conn.show(match (conn.skip, conn.need) {
            (1.., _) => State::Skipping,
            (0, 1..) => State::Value,
            (0, 0) => State::Idle,
        });
        match fate {
            Fate::Ends if conn.is_sending() => {
                conn.is_ending = true;
                Ok(Fate::Waits)
            }
            Fate::Again if conn.is_sending() => Ok(Fate::Waits),
            fate => Ok(fate),
        }
    }
}

/// Reads more of a long value straight to where it is put together.
fn read_on(conn: &mut Conn) -> io::Result<usize> {
    let (have, need) = (conn.input.len(), conn.need);
    // Room comes with the bytes: who promises many and sends few costs little.
    conn.input.resize((have + READ.max(have / 4)).min(need), 0);
    let got = conn.stream.read(&mut conn.input[have..]);
    conn.input.truncate(have + got.as_ref().map_or(0, |got| *got));
    got
}

/// Looks at what comes behind a value that did not end where it should, and whose client wants no
/// answer: the bytes of an empty line, which end the value; 0 at a command. `None`: it is no
/// command, so the client would take what it is told for the answer to another one.
fn clear_up(rest: &[u8]) -> Option<usize> {
    match protocol::line(rest) {
        Line::Whole(b"", used) => Some(used),
        Line::Whole(text, _) if matches!(protocol::parse(text), Command::Wrong { .. }) => None,
        Line::Binary(_) | Line::TooLong => None,
        Line::Whole(..) | Line::Keys(_) | Line::Partial => Some(0),
    }
}

/// Carries out commands; what of `input` is left, and how it goes on. Where the rest of `input` is
/// not as it was sent, it is in the connection.
fn carry_out<'i>(
    conn: &mut Conn,
    input: &'i [u8],
    hands: &mut Hands<'_>,
    out: &mut Vec<u8>,
) -> (&'i [u8], Fate) {
    let mut rest = input;
    conn.need = 0;
    let mut left = hands.shared.settings.turn.max(1);
    while !rest.is_empty() {
        if out.len() > ANSWERS_MAX || left == 0 {
            hands.counters.conn_yields.add(1);
            return (rest, Fate::Again);
        }
        left -= 1;
        if conn.is_doubtful && protocol::line(rest) != Line::Partial {
            match clear_up(rest) {
                Some(0) => conn.is_doubtful = false,
                Some(used) => {
                    rest = &rest[used..];
                    continue;
                }
                None => return (&[], Fate::Ends),
            }
        }
        match hands.execute(rest, conn.shown.number, out) {
            Next::Go(used) => rest = &rest[used..],
            Next::Skip(used, skip) => {
                let here = (rest.len() - used).min(usize::try_from(skip).unwrap_or(usize::MAX));
                conn.skip = skip - here as u64;
                rest = &rest[used + here..];
            }
            Next::Need(need) => {
                if need > CHARGED && !hands.shared.may_charge(conn, need as u64) {
                    hands.refuse(rest, out);
                    conn.skip = (need - rest.len()) as u64;
                    return (&[], Fate::Waits);
                }
                conn.need = need;
                break;
            }
            Next::Keys(words, keys) => {
                conn.input = [&rest[..words], &rest[keys..]].concat();
                return (&[], Fate::Again);
            }
            Next::Doubt(used) => {
                conn.is_doubtful = true;
                rest = &rest[used..];
            }
            Next::Close => return (&[], Fate::Ends),
            Next::Stop => {
                hands.shared.end();
                return (&[], Fate::Ends);
            }
        }
    }
    conn.shown.last.store(hands.shared.store.clock().now(), Ordering::Relaxed);
    (rest, Fate::Waits)
}
