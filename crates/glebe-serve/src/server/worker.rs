//! [`Worker`] is a thread with an event loop and its connections.
//!
//! Events are edge-triggered, so a worker reads from a connection until the socket is empty, the
//! client takes no answers, or the turn ends and the worker queues the connection. The answers to
//! the commands of a read are sent in one write. If the bytes kept for answers exceed a limit, the
//! worker ends the connections whose clients have taken nothing for longest.

mod kicks;
mod watchers;

use std::collections::VecDeque;
use std::io::{self, ErrorKind, Read};
use std::sync::atomic::Ordering;
use std::sync::mpsc::Receiver;
use std::sync::Arc;
use std::time::{Duration, Instant};

use mio::{Events, Interest, Poll, Token, Waker};
use slab::Slab;

use super::carry::{carry_out, Fate};
use super::conn::{Conn, State};
use super::execute::{Hands, ANSWERS_MAX};
use super::listing::Dump;
use super::logged::tell;
use super::Shared;
use crate::protocol;
use crate::store::Room;

/// Maximum bytes of a read into the worker's buffer.
pub(super) const READ: usize = 64 << 10;
const EVENTS: usize = 256;
const WAKE: Token = Token(usize::MAX);
/// A longer buffer of answers is shrunk to this many bytes.
const KEPT: usize = 4 * ANSWERS_MAX;
/// Interval at which `Worker::later` is queued.
const RETRY: Duration = Duration::from_millis(5);
/// Interval at which watchers get new lines.
const WATCH_LOOK: Duration = Duration::from_millis(20);
/// Interval of looks for values that have stalled, while values are being received.
const STALL_LOOK: Duration = Duration::from_millis(100);
const IDLE_LOOK: Duration = Duration::from_secs(1);

#[derive(Debug)]
pub(super) struct Hired {
    pub(super) sender: std::sync::mpsc::Sender<Conn>,
    pub(super) waker: Arc<Waker>,
}

pub(super) struct Worker {
    poll: Poll,
    /// Connections by number. Numbers are reused. `None` during the connection's turn.
    conns: Slab<Option<Box<Conn>>>,
    /// Connections to serve next, each at most once.
    queue: VecDeque<usize>,
    /// Connections that wait until other connections' values are complete.
    later: Vec<usize>,
    /// Connections that watch the server.
    watching: Vec<usize>,
    tried_at: Instant,
    /// Connections with a charge for a value.
    charged: usize,
    searched_at: Instant,
    /// Second of the store's clock of the last look at idle connections.
    looked_at: u32,
    receiver: Receiver<Conn>,
    read: Vec<u8>,
    out: Vec<u8>,
    nth: usize,
    turns: u64,
    /// Bytes kept for clients that do not take answers.
    kept: u64,
    kept_max: u64,
    shared: Arc<Shared>,
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
            later: Vec::new(),
            watching: Vec::new(),
            tried_at: Instant::now(),
            charged: 0,
            searched_at: Instant::now(),
            looked_at: 0,
            receiver,
            read: vec![0; READ],
            out: Vec::new(),
            nth,
            turns: 0,
            kept: 0,
            kept_max: shared.shares.answers,
            shared: Arc::clone(shared),
        };
        Ok((worker, Hired { sender, waker }))
    }

    pub(super) fn run(mut self) {
        let shared = Arc::clone(&self.shared);
        let counters = &shared.counters[self.nth];
        let (room, key) = (Room::default(), Vec::new());
        let mut hands = Hands { shared: &shared, counters, room, key, conn: 0, waiting: 0 };
        let mut events = Events::with_capacity(EVENTS);
        let idle = shared.settings.idle;
        let looks = idle.is_some() || shared.keys.is_some();
        while !shared.is_ending.load(Ordering::Acquire) {
            let wait = match () {
                () if !self.queue.is_empty() => Some(Duration::ZERO),
                () if !self.later.is_empty() => Some(RETRY),
                () if !self.watching.is_empty() => Some(WATCH_LOOK),
                () if self.charged > 0 => Some(STALL_LOOK),
                () => looks.then_some(IDLE_LOOK),
            };
            // Bytes that came later may wait unread.
            let (polled_at, second) = (Instant::now(), shared.store.clock().now());
            match self.poll.poll(&mut events, wait) {
                Err(e) if e.kind() != ErrorKind::Interrupted => {
                    tell(format_args!("a worker ends: epoll_wait: {e}"));
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
                        self.enqueue(number);
                    }
                }
            }
            self.try_again();
            for _ in 0..self.queue.len() {
                if let Some(number) = self.queue.pop_front() {
                    self.turn(number, &mut hands);
                }
            }
            self.serve_watchers(&hands);
            self.kick_stalled(polled_at, &hands);
            if looks {
                self.kick_idle(second, idle, &hands);
            }
        }
        self.conns.drain().flatten().for_each(|conn| shared.forget(&conn));
    }

    /// Queues the connections of `later`, at most once per [`RETRY`] because each try copies their
    /// input. They stay in `later`, and so count as waiting, until their turns.
    fn try_again(&mut self) {
        if !self.later.is_empty() && self.tried_at.elapsed() >= RETRY {
            self.tried_at = Instant::now();
            for nth in 0..self.later.len() {
                self.enqueue(self.later[nth]);
            }
        }
    }

    /// Queues a connection, unless the queue has it already.
    fn enqueue(&mut self, number: usize) {
        let conn = self.conns.get_mut(number).and_then(Option::as_mut);
        if let Some(conn) = conn.filter(|conn| !conn.is_queued) {
            debug_assert!(!self.queue.contains(&number), "queued twice");
            conn.is_queued = true;
            self.queue.push_back(number);
        }
    }

    fn welcome(&mut self) {
        while let Ok(mut conn) = self.receiver.try_recv() {
            let number = self.conns.vacant_key();
            let interest = Interest::READABLE | Interest::WRITABLE;
            let registry = self.poll.registry();
            match conn.stream.register(registry, Token(number), interest) {
                Ok(()) => drop(self.conns.insert(Some(Box::new(conn)))),
                Err(e) => {
                    let from = &conn.shown.addr;
                    self.shared.verbosity.warn(format_args!("{from}: ended, epoll_ctl: {e}"));
                    self.shared.forget(&conn);
                }
            }
        }
    }

    /// Notes that the client sends no more, because no later event reports it.
    fn note_end(&mut self, number: usize) {
        if let Some(conn) = self.conns.get_mut(number).and_then(Option::as_mut) {
            conn.has_end = true;
        }
    }

    fn turn(&mut self, number: usize, hands: &mut Hands<'_>) {
        let Some(mut conn) = self.conns.get_mut(number).and_then(Option::take) else { return };
        self.turns += 1;
        conn.is_queued = false;
        let waited = self.later.iter().position(|waits| *waits == number);
        waited.map(|at| self.later.remove(at));
        hands.waiting = self.later.len();
        let (read, written) = (hands.counters.bytes_read.get(), hands.counters.bytes_written.get());
        let (charged, was_receiving) = (conn.charged, conn.is_receiving());
        let before = conn.stream.records();
        let mut fate = self.serve(&mut conn, hands);
        if fate.as_ref().is_ok_and(|fate| *fate == Fate::Waits) && conn.is_sending() {
            fate = self.read_ahead(&mut conn, hands);
        }
        let after = conn.stream.records();
        let has_taken = hands.counters.bytes_written.get() > written || after.sent > before.sent;
        let has_sent = hands.counters.bytes_read.get() > read || after.received > before.received;
        if has_taken || conn.kept == 0 {
            conn.took_at = self.turns;
        }
        let goes_on = has_taken || was_receiving && has_sent;
        if goes_on && !conn.stream.is_handshaking() {
            conn.shown.last.store(hands.shared.store.clock().now(), Ordering::Relaxed);
        }
        if conn.charged > 0 && has_sent {
            conn.came_at = Instant::now();
        }
        self.charged += usize::from(conn.charged > 0);
        self.charged -= usize::from(charged > 0);
        match &fate {
            Ok(Fate::Waits | Fate::Again) => {}
            // Keeps its place.
            Ok(Fate::Later) => self.later.insert(waited.unwrap_or(self.later.len()), number),
            Ok(Fate::Ends) | Err(_) => {
                self.conns.remove(number);
                hands.counters.ssl_handshake_errors.add(conn.stream.is_handshaking().into());
                let why = match &fate {
                    Err(e) => {
                        let from = &conn.shown.addr;
                        self.shared.verbosity.warn(format_args!("{from}: {e}"));
                        "error"
                    }
                    Ok(_) if conn.has_failed => "error",
                    Ok(_) => "normal",
                };
                self.shared.note_end(&conn, why);
                return self.forget(number, &mut conn);
            }
        }
        if conn.watcher.is_some() && !self.watching.contains(&number) {
            self.watching.push(number);
        }
        let kept = conn.kept();
        self.keep(&mut conn, kept);
        self.conns[number] = Some(conn);
        if fate.is_ok_and(|fate| fate == Fate::Again) {
            self.enqueue(number);
        }
        while self.kept > self.kept_max && self.kick_slowest(hands) {}
    }

    fn keep(&mut self, conn: &mut Conn, kept: u64) {
        if kept != conn.kept {
            self.kept = self.kept - conn.kept + kept;
            self.shared.keep(conn.kept, kept);
            conn.kept = kept;
        }
    }

    fn forget(&mut self, number: usize, conn: &mut Conn) {
        if conn.is_queued {
            self.queue.retain(|queued| *queued != number);
        }
        self.later.retain(|waits| *waits != number);
        self.keep(conn, 0);
        self.charged -= usize::from(conn.charged > 0);
        self.shared.forget(conn);
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
        if conn.watcher.is_some() {
            return self.ignore(conn);
        }
        if conn.dump.is_some() {
            return self.list(conn, hands);
        }
        // An earlier turn may have left input.
        if !conn.input.is_empty() && conn.input.len() >= conn.need {
            let input = std::mem::take(&mut conn.input);
            let fate = self.work_off(conn, &input, hands)?;
            if fate != Fate::Waits || conn.is_sending() {
                return Ok(fate);
            }
        }
        let in_place = conn.skip == 0 && conn.need > conn.input.len() + READ;
        let got = match if in_place { read_on(conn) } else { conn.stream.read(&mut self.read) } {
            // After a short read, a TLS session does not look at the socket again, which may have
            // the client's end.
            Err(e) if e.kind() == ErrorKind::WouldBlock && conn.has_end => return Ok(Fate::Again),
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
        // After a short read the socket is empty; more bytes cause an event.
        let was_all = !in_place && got < READ && !conn.has_end && !conn.stream.has_more();
        Ok(if fate == Fate::Waits && !was_all && !conn.is_sending() { Fate::Again } else { fate })
    }

    /// Reads more of a line of keys while its first answers wait, because the client may send the
    /// whole line before it reads.
    fn read_ahead(&mut self, conn: &mut Conn, hands: &Hands<'_>) -> io::Result<Fate> {
        if !protocol::is_open(&conn.input) {
            return Ok(Fate::Waits);
        }
        match conn.stream.read(&mut self.read) {
            Err(e) if e.kind() == ErrorKind::WouldBlock => Ok(Fate::Waits),
            Err(e) if e.kind() == ErrorKind::Interrupted => Ok(Fate::Again),
            Err(e) => Err(e),
            Ok(0) => Ok(Fate::Ends),
            Ok(got) => {
                hands.counters.bytes_read.add(got as u64);
                // [`Conn::kept`] counts the capacity, so the buffer grows in small steps.
                if conn.input.capacity() - conn.input.len() < got {
                    conn.input.reserve_exact(got.max(conn.input.len() / 4));
                }
                conn.input.extend_from_slice(&self.read[..got]);
                Ok(Fate::Again)
            }
        }
    }

    fn list(&mut self, conn: &mut Conn, hands: &mut Hands<'_>) -> io::Result<Fate> {
        self.out.clear();
        let more = |dump: &mut Dump| dump.piece(hands.shared, &mut hands.room, &mut self.out);
        if !conn.dump.as_mut().is_some_and(more) {
            conn.dump = None;
        }
        hands.counters.bytes_written.add(conn.send(&self.out)?);
        conn.shown.last.store(hands.shared.store.clock().now(), Ordering::Relaxed);
        conn.show(State::Sending);
        Ok(if conn.is_sending() { Fate::Waits } else { Fate::Again })
    }

    fn take_in(&mut self, conn: &mut Conn, got: usize, hands: &mut Hands<'_>) -> io::Result<Fate> {
        let skipped = conn.skip.min(got as u64) as usize;
        conn.skip -= skipped as u64;
        if !conn.input.is_empty() {
            conn.input.extend_from_slice(&self.read[skipped..got]);
            return self.go_on(conn, hands);
        }
        // `work_off` borrows the whole worker, so the buffer is taken out.
        let read = std::mem::take(&mut self.read);
        let fate = self.work_off(conn, &read[skipped..got], hands);
        self.read = read;
        fate
    }

    fn go_on(&mut self, conn: &mut Conn, hands: &mut Hands<'_>) -> io::Result<Fate> {
        if conn.input.len() < conn.need {
            return Ok(Fate::Waits);
        }
        let input = std::mem::take(&mut conn.input);
        self.work_off(conn, &input, hands)
    }

    /// Executes the commands of `input`, and sends the answers in one write. Keeps the rest in
    /// `conn.input`, which must be empty on entry.
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
        let state = match (conn.skip, conn.need) {
            (1.., _) => State::Skipping,
            (0, 1..) => State::Value,
            (0, 0) => State::Idle,
        };
        let number = conn.shown.number;
        let name = State::NAMES[state as usize];
        self.shared.verbosity.detail(format_args!("{number}: going to {name}"));
        conn.show(state);
        match fate {
            Fate::Ends if conn.is_sending() => {
                conn.is_ending = true;
                Ok(Fate::Waits)
            }
            Fate::Again | Fate::Later if conn.is_sending() => {
                // Waits for its own client first.
                conn.waits_since = None;
                Ok(Fate::Waits)
            }
            fate => Ok(fate),
        }
    }
}

fn read_on(conn: &mut Conn) -> io::Result<usize> {
    let (have, need) = (conn.input.len(), conn.need);
    // The buffer grows with the bytes received, because a client may announce a value and not send
    // it.
    conn.input.resize((have + READ.max(have / 4)).min(need), 0);
    let got = conn.stream.read(&mut conn.input[have..]);
    conn.input.truncate(have + got.as_ref().map_or(0, |got| *got));
    got
}
