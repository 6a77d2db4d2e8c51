//! [`Server`] answers requests on one thread.
//!
//! It waits only for sockets and for deadlines of recalled leases. Memory that is not zeroed ahead
//! is zeroed before the answer; files for one-file leases are made on threads of their own.

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::mpsc::{Receiver, Sender};
use std::sync::Arc;
use std::time::{Duration, Instant};

use glebe::contig::Node;
use glebe::internal::stats::Histogram;
use glebe::internal::sync::Ordering;
use glebe::internal::sys::machine::numa;
use glebe::reserve::{ClosedBlock, Request as Run, Reserve, ReserveError};
use glebe::units::{Bytes, Pages};
use glebe_lease::socket::Packets;
use glebe_lease::wire::{
    Answer, Malformed, Message, Request, Wish, FILES_MAX, FRAMES_MAX, ROWS_MAX,
};
use glebe_lease::Row;
use rustix::event::epoll::{self, CreateFlags, EventData, EventFlags};
use rustix::event::Timespec;
use rustix::io::Errno;
use slab::Slab;

use crate::conn::{Conn, Waiting};
use crate::keeper::Kept;
use crate::leases::{Held, Lease, Leases};
use crate::quota::Users;
use crate::settings::Settings;
use crate::stats::{Counter, Stats};

const LISTENER: u64 = u64::MAX;
const WAKE: u64 = u64::MAX - 1;
const EVENTS: usize = 64;
/// Most messages of a connection before the others get their turn.
const TURN: usize = 16;
/// Most messages that wait for a client that does not read.
const WAITING_MAX: usize = 1024;
/// A pause of the clients in which the keeper works.
const QUIET: Duration = Duration::from_millis(1);
/// Longest time for which ended leases wait for a pause.
const DELAY_MAX: Duration = Duration::from_millis(20);
/// Pause without a free descriptor.
const PAUSE: Duration = Duration::from_millis(10);

/// A finished one-file lease.
pub(crate) struct Made {
    conn: usize,
    serial: u64,
    call: u32,
    wish: Wish,
    bytes: u64,
    block: Result<ClosedBlock, ReserveError>,
}

struct Refusal {
    errno: Errno,
    limit: u64,
    text: String,
}

pub(crate) struct Server {
    reserve: Reserve,
    settings: Settings,
    kept: Arc<Kept>,
    ended: Sender<Vec<ClosedBlock>>,
    made: (Sender<Made>, Receiver<Made>),
    poll: OwnedFd,
    listener: OwnedFd,
    wake: Arc<OwnedFd>,
    conns: Slab<Conn>,
    leases: Leases,
    users: Users,
    brick: Bytes,
    serial: u64,
    /// Memory for the keeper, and since when it waits.
    returned: Vec<ClosedBlock>,
    since: Option<Instant>,
    nodes: Vec<Node>,
    /// When to accept again, after a lack of descriptors.
    pause: Option<Instant>,
    out: Vec<u8>,
    answer_ns: Histogram,
}

impl Server {
    pub(crate) fn new(
        reserve: &Reserve,
        settings: Settings,
        kept: Arc<Kept>,
        ended: Sender<Vec<ClosedBlock>>,
        (listener, wake): (OwnedFd, Arc<OwnedFd>),
    ) -> Result<Self, crate::Failure> {
        let poll = epoll::create(CreateFlags::CLOEXEC)?;
        epoll::add(&poll, &listener, EventData::new_u64(LISTENER), EventFlags::IN)?;
        epoll::add(&poll, wake.as_fd(), EventData::new_u64(WAKE), EventFlags::IN)?;
        let brick = reserve.brick()?.bytes(glebe::page_size());
        Ok(Self {
            reserve: reserve.clone(),
            users: Users::new(settings.quota),
            settings,
            kept,
            ended,
            made: std::sync::mpsc::channel(),
            poll,
            listener,
            wake,
            conns: Slab::new(),
            leases: Leases::default(),
            brick,
            serial: 0,
            returned: Vec::new(),
            since: None,
            nodes: numa::online(),
            pause: None,
            out: Vec::new(),
            answer_ns: Histogram::new(),
        })
    }

    /// Serves until the daemon ends.
    pub(crate) fn run(&mut self) -> io::Result<()> {
        let mut events = Vec::with_capacity(EVENTS);
        let mut bytes = vec![0; 512];
        while self.kept.is_ending.load(Ordering::Acquire) == 0 {
            events.clear();
            let wait = self.wait().and_then(|wait| Timespec::try_from(wait).ok());
            match epoll::wait(
                &self.poll,
                rustix::buffer::spare_capacity(&mut events),
                wait.as_ref(),
            ) {
                Ok(_) | Err(Errno::INTR) => {}
                Err(error) => return Err(error.into()),
            }
            for event in &events {
                match event.data.u64() {
                    LISTENER => self.accept()?,
                    WAKE => self.woken(),
                    key => self.serve(key as usize, event.flags, &mut bytes),
                }
            }
            self.end_recalled();
            self.hand_over(events.is_empty());
            self.accept_after_pause()?;
        }
        Ok(())
    }

    fn wait(&self) -> Option<Duration> {
        let next = self.leases.next_end().into_iter().chain(self.pause).min();
        let next = next.map(|next| next.saturating_duration_since(Instant::now()));
        next.into_iter().chain(self.since.map(|_| QUIET)).min()
    }

    /// Wakes the keeper in a pause of the clients, because zeroing slows them down.
    fn hand_over(&mut self, is_quiet: bool) {
        if self.since.is_some_and(|since| is_quiet || since.elapsed() > DELAY_MAX) {
            self.since = None;
            // Without a keeper the drop gives the memory back.
            let _ = self.ended.send(std::mem::take(&mut self.returned));
        }
    }

    fn woken(&mut self) {
        let _ = rustix::io::read(&*self.wake, &mut [0; 8]);
        while let Ok(made) = self.made.1.try_recv() {
            self.finish(made);
        }
    }

    /// Lets clients keep what they hold; they do not notice the daemon's end.
    pub(crate) fn leave(&mut self) {
        let keys: Vec<usize> = self.conns.iter().map(|(key, _)| key).collect();
        for lease in keys.into_iter().flat_map(|key| self.leases.remove_all(key)) {
            if let Held::Given(blocks) = lease.held {
                blocks.into_iter().for_each(ClosedBlock::leave);
            }
        }
    }

    fn count(&self, counter: Counter) {
        self.kept.counts.add(counter, 1);
    }
}

/// Connections.
impl Server {
    fn accept(&mut self) -> io::Result<()> {
        loop {
            let packets = match Packets::accept(&self.listener) {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(()),
                Err(error) if error.kind() == io::ErrorKind::ConnectionAborted => continue,
                Err(_) => {
                    self.count(Counter::NotAccepted);
                    self.pause = Some(Instant::now() + PAUSE);
                    return Ok(epoll::delete(&self.poll, &self.listener)?);
                }
                Ok(packets) => packets,
            };
            self.serial += 1;
            let Ok(conn) = Conn::new(packets, self.serial) else { continue };
            if !self.users.connect(conn.uid) {
                self.count(Counter::OverQuota);
                let limit = self.settings.quota.connections as u64;
                let text = format!("user {} has {limit} connections, the limit", conn.uid);
                let refused = Answer::Refused { errno: libc_errno(Errno::DQUOT), limit, text };
                Message { call: 1, lease: 0, body: refused }.encode(&mut self.out);
                // If the client does not get the reason, it sees the connection end.
                let _ = conn.packets.send(&self.out, &[]);
                continue;
            }
            self.count(Counter::Accepted);
            let key = self.conns.insert(conn);
            let data = EventData::new_u64(key as u64);
            epoll::add(&self.poll, &self.conns[key].packets, data, EventFlags::IN)?;
        }
    }

    fn accept_after_pause(&mut self) -> io::Result<()> {
        if self.pause.is_some_and(|pause| pause <= Instant::now()) {
            self.pause = None;
            let data = EventData::new_u64(LISTENER);
            epoll::add(&self.poll, &self.listener, data, EventFlags::IN)?;
        }
        Ok(())
    }

    fn serve(&mut self, key: usize, flags: EventFlags, bytes: &mut [u8]) {
        if !self.conns.contains(key) {
            return;
        }
        let kept = match flags.contains(EventFlags::OUT) {
            true => self.flush(key),
            false => self.receive(key, bytes),
        };
        if kept.is_err() {
            self.close(key);
        }
    }

    /// Answers messages that are there. An error ends the connection.
    fn receive(&mut self, key: usize, bytes: &mut [u8]) -> io::Result<()> {
        let mut files = Vec::new();
        for _ in 0..TURN {
            let Some(conn) = self.conns.get(key).filter(|conn| !conn.waits_for_room) else {
                return Ok(());
            };
            let begin = Instant::now();
            let len = match conn.packets.receive(bytes, &mut files) {
                Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
                Ok(len) => len,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(()),
                Err(error) => return Err(error),
            };
            let handled = match Message::<Request>::decode(&bytes[..len]) {
                Ok(message) if files.is_empty() => self.handle(key, message, begin),
                Ok(_) => Err(Malformed::Answer.to_string()),
                Err(error) => Err(error.to_string()),
            };
            files.clear();
            if let Err(text) = handled {
                self.count(Counter::Malformed);
                let refused = Answer::Refused { errno: libc_errno(Errno::PROTO), limit: 0, text };
                self.send(key, Message { call: 1, lease: 0, body: refused })?;
                return Err(io::ErrorKind::InvalidData.into());
            }
            self.flush(key)?;
        }
        Ok(())
    }

    fn close(&mut self, key: usize) {
        let Some(conn) = self.conns.try_remove(key) else { return };
        let _ = epoll::delete(&self.poll, &conn.packets);
        for lease in self.leases.remove_all(key) {
            self.count(Counter::Left);
            self.end(lease);
        }
        self.users.disconnect(conn.uid);
    }

    /// Queues a message without files.
    fn send(&mut self, key: usize, message: Message<Answer>) -> io::Result<()> {
        let Some(conn) = self.conns.get_mut(key) else { return Ok(()) };
        message.encode(&mut self.out);
        if conn.waiting.is_empty() {
            match conn.packets.send(&self.out, &[]) {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                other => return other,
            }
        }
        if message.call == 0 {
            // A client may read no events; the deadline holds all the same.
            self.kept.counts.add(Counter::Unread, 1);
            return Ok(());
        }
        if conn.waiting.len() >= WAITING_MAX {
            return Err(io::ErrorKind::OutOfMemory.into());
        }
        conn.waiting.push_back(Waiting { bytes: self.out.clone(), lease: 0, files: 0..0 });
        Ok(())
    }

    /// Sends waiting messages, and waits for room if the client's queue is full.
    fn flush(&mut self, key: usize) -> io::Result<()> {
        let Some(conn) = self.conns.get_mut(key) else { return Ok(()) };
        let had_room = !conn.waits_for_room;
        let mut has_room = true;
        while let Some(first) = conn.waiting.front() {
            let files = match (first.files.is_empty(), self.leases.of(key, first.lease)) {
                (true, _) => Vec::new(),
                (false, Some(lease)) => lease.files(),
                (false, None) => return Err(io::ErrorKind::NotFound.into()),
            };
            let range = first.files.clone();
            let files = files.get(range).unwrap_or_default();
            if !conn.send_first(files)? {
                has_room = false;
                break;
            }
        }
        if has_room != had_room {
            conn.waits_for_room = !has_room;
            let flags = if has_room { EventFlags::IN } else { EventFlags::OUT };
            epoll::modify(&self.poll, &conn.packets, EventData::new_u64(key as u64), flags)?;
        }
        Ok(())
    }
}

fn libc_errno(errno: Errno) -> i32 {
    errno.raw_os_error()
}

/// Requests. An error is a breach of the protocol, in words.
impl Server {
    fn handle(
        &mut self,
        key: usize,
        message: Message<Request>,
        begin: Instant,
    ) -> Result<(), String> {
        let Message { call, lease, body } = message;
        let Some(conn) = self.conns.get_mut(key) else { return Ok(()) };
        if let Request::Hello { name } = body {
            if std::mem::replace(&mut conn.has_greeted, true) {
                return Err("a second hello".to_owned());
            }
            conn.name = name;
            let welcome = self.welcome();
            return self.answer(key, call, 0, welcome);
        }
        if !conn.has_greeted {
            return Err("no hello came first".to_owned());
        }
        let uid = conn.uid;
        match body {
            Request::Hello { .. } => Ok(()),
            Request::Lease(wish) => {
                let leased = self.lease(key, call, &wish);
                self.answer_ns.record(begin.elapsed().as_nanos() as u64);
                leased.map_or_else(|refusal| self.refuse(key, call, refusal), Ok)
            }
            Request::Promise(wish) => match self.promise(key, &wish) {
                Ok((lease, bytes)) => self.answer(key, call, lease, Answer::Promised { bytes }),
                Err(refusal) => self.refuse(key, call, refusal),
            },
            Request::Take => match self.take(key, call, lease) {
                Ok(()) => Ok(()),
                Err(refusal) => self.refuse(key, call, refusal),
            },
            Request::Mapped => match self.leases.of(key, lease).map(|it| &it.held) {
                Some(Held::Given(blocks)) => {
                    // A kernel without this seal leaves the client's other maps possible.
                    blocks.iter().for_each(|block| drop(block.seal()));
                    self.done(key, call, lease)
                }
                // It was revoked meanwhile.
                _ => self.done(key, call, lease),
            },
            Request::Release => {
                if self.leases.of(key, lease).is_some() {
                    let ended = self.leases.remove(lease);
                    self.count(Counter::Released);
                    ended.into_iter().for_each(|lease| self.end(lease));
                }
                self.done(key, call, lease)
            }
            Request::List => {
                let rows: Vec<Row> = self.leases.rows(uid, lease, ROWS_MAX);
                self.answer(key, call, 0, Answer::Listed(rows))
            }
            Request::Stats => {
                let text = self.stats().to_openmetrics();
                self.answer(key, call, 0, Answer::Stats(text))
            }
        }
    }

    fn answer(&mut self, key: usize, call: u32, lease: u64, body: Answer) -> Result<(), String> {
        self.send(key, Message { call, lease, body }).map_err(|error| error.to_string())
    }

    /// Answers unless the client wanted no answer.
    fn done(&mut self, key: usize, call: u32, lease: u64) -> Result<(), String> {
        match call {
            0 => Ok(()),
            call => self.answer(key, call, lease, Answer::Done),
        }
    }

    fn refuse(&mut self, key: usize, call: u32, refusal: Refusal) -> Result<(), String> {
        let Refusal { errno, limit, text } = refusal;
        self.count(match errno {
            Errno::DQUOT => Counter::OverQuota,
            _ => Counter::Refused,
        });
        self.answer(key, call, 0, Answer::Refused { errno: libc_errno(errno), limit, text })
    }

    fn welcome(&self) -> Answer {
        Answer::Welcome {
            brick: self.brick.get(),
            total: self.reserve.len().bytes(glebe::page_size()).get(),
            free: self.free(),
            longest: self.longest(),
        }
    }

    /// Returns the bytes that no client holds.
    fn free(&self) -> u64 {
        let stats = self.reserve.stats();
        let stock = self.kept.stock().len() as u64 * self.brick.get();
        (stats.free + stats.live).bytes(glebe::page_size()).get().saturating_add(stock)
    }

    fn longest(&self) -> u64 {
        let of_stock = self.kept.stock().longest() as u64 * self.brick.get();
        let page = glebe::page_size();
        self.reserve.largest_run().map_or(0, |run| run.bytes(page).get()).max(of_stock)
    }

    fn stats(&self) -> Stats {
        let pages = |bytes: u64| Bytes::new(bytes).pages_down(glebe::page_size());
        let mut stats = self.kept.counts.sum();
        stats.held = pages(self.leases.bytes(false));
        stats.promised = pages(self.leases.bytes(true));
        stats.stock = pages(self.kept.stock().len() as u64 * self.brick.get());
        stats.returning = pages(self.kept.returning.load(Ordering::Acquire));
        stats.lease_ns = self.answer_ns.snapshot();
        stats
    }
}

/// Leases.
impl Server {
    fn lease(&mut self, key: usize, call: u32, wish: &Wish) -> Result<(), Refusal> {
        let run = self.checked(key, wish)?;
        let bytes = run.0.bytes(glebe::page_size()).get();
        self.charge(key, bytes, false)?;
        let blocks = match self.blocks(wish, run) {
            Ok(blocks) => blocks,
            Err(refusal) => {
                self.discharge(key, bytes, false);
                return Err(refusal);
            }
        };
        if wish.flags.one_file {
            self.join(key, call, wish, (bytes, blocks));
            return Ok(());
        }
        self.give(key, call, wish, (bytes, blocks));
        Ok(())
    }

    /// Returns the pages and the alignment in pages.
    fn checked(&self, key: usize, wish: &Wish) -> Result<(Pages, Pages), Refusal> {
        let bad = |limit, text| Refusal { errno: Errno::INVAL, limit, text };
        if wish.bytes == 0 {
            return Err(bad(self.brick.get(), "a lease of 0 bytes; the least is 1".to_owned()));
        }
        let base = glebe::page_size();
        let align = wish.align.max(1);
        if !align.is_power_of_two() {
            return Err(bad(0, format!("alignment of {align} is not a power of two")));
        }
        if let Some(node) = wish.node.filter(|node| self.nodes != [Node(*node)]) {
            let text = format!("memory of NUMA node {node} alone; there are {:?}", self.nodes);
            return Err(bad(0, text));
        }
        let Some(conn) = self.conns.get(key) else { return Err(bad(0, String::new())) };
        let most = self.settings.quota.leases;
        if conn.uid != 0 && most > 0 && self.leases.count(key) + conn.under_way >= most {
            let text = format!("{most} leases of a connection, the limit");
            return Err(Refusal { errno: Errno::DQUOT, limit: most as u64, text });
        }
        let total = self.reserve.len().bytes(base).get();
        let bytes = wish.bytes.checked_next_multiple_of(self.brick.get());
        let bytes = bytes.filter(|bytes| *bytes <= total).ok_or_else(|| {
            let longest = self.longest();
            let [asked, total, run] = [wish.bytes, total, longest].map(Bytes::new);
            let text = format!("{asked} asked for; the reserve has {total}, its longest run {run}");
            Refusal { errno: Errno::NOMEM, limit: longest, text }
        })?;
        let pages = |bytes| Bytes::new(bytes).pages_up(base);
        Ok((pages(bytes), pages(align)))
    }

    fn charge(&mut self, key: usize, bytes: u64, promise: bool) -> Result<(), Refusal> {
        let Some(conn) = self.conns.get(key) else { return Ok(()) };
        self.users.add(conn.uid, bytes, promise).map_err(|exceeded| {
            let (uid, limit) = (conn.uid, exceeded.limit);
            let text = format!("{limit} is what {}; user {uid} asks for more", exceeded.what);
            Refusal { errno: Errno::DQUOT, limit: limit.get(), text }
        })
    }

    fn discharge(&mut self, key: usize, bytes: u64, promise: bool) {
        if let Some(conn) = self.conns.get(key) {
            self.users.remove(conn.uid, bytes, promise);
        }
    }

    /// Takes memory: from the stock, else from the reserve, else from both.
    fn blocks(
        &mut self,
        wish: &Wish,
        (pages, align): (Pages, Pages),
    ) -> Result<Vec<ClosedBlock>, Refusal> {
        let each = self.brick.pages_down(glebe::page_size()).get();
        let (count, contiguous) = ((pages.get() / each) as usize, wish.flags.contiguous);
        let ready = self.kept.stock().take(count, contiguous, align.get());
        if let Some(blocks) = ready {
            self.count(Counter::Ahead);
            self.since.get_or_insert_with(Instant::now);
            return Ok(blocks);
        }
        let largest = self.reserve.largest_run().unwrap_or_default();
        if self.free() < pages.bytes(glebe::page_size()).get() {
            return Err(self.refusal(pages, &ReserveError::NoRun { asked: pages, largest }));
        }
        let run = Run::new(pages).align(align);
        let close = |run: Run| self.reserve.close(run).map(|block| vec![block]);
        let kept = Arc::clone(&self.kept);
        let mut filling = None;
        let closed = close(run).or_else(|_| {
            // Bricks of the stock may complete a run.
            filling = Some(kept.filling());
            ClosedBlock::reopen(kept.stock().take_all());
            close(run)
        });
        let closed = match closed {
            Err(ReserveError::NoRun { .. } | ReserveError::NoAlignedRun { .. }) if !contiguous => {
                close(run.any()).or_else(|error| self.pieces(count).ok_or(error))
            }
            other => other,
        };
        drop(filling);
        closed.map_err(|error| self.refusal(pages, &error))
    }

    /// Takes bricks one by one; `None` if there are fewer than `count`.
    fn pieces(&self, count: usize) -> Option<Vec<ClosedBlock>> {
        let one = || self.reserve.close(Run::new(Pages::new(1)).any()).ok();
        let pieces: Vec<ClosedBlock> = std::iter::from_fn(one).take(count).collect();
        (pieces.len() == count).then_some(pieces)
    }

    fn refusal(&mut self, pages: Pages, error: &ReserveError) -> Refusal {
        let longest = self.longest();
        let shortage =
            matches!(error, ReserveError::NoRun { .. } | ReserveError::NoAlignedRun { .. });
        let bytes = pages.bytes(glebe::page_size()).get();
        let returning = self.kept.returning.load(Ordering::Acquire) > 0;
        if shortage && (returning || self.ask_back(bytes)) {
            let notice = self.settings.notice.as_millis();
            let text = format!("memory is being taken back; try again in {notice} ms");
            return Refusal { errno: Errno::AGAIN, limit: longest, text };
        }
        let [asked, run] = [bytes, longest].map(Bytes::new);
        let text = format!("{asked} asked for; the longest free run has {run}: {error}");
        Refusal { errno: Errno::NOMEM, limit: longest, text }
    }

    fn ask_back(&mut self, bytes: u64) -> bool {
        let until = Instant::now() + self.settings.notice;
        // Enough free memory in too short runs counts for nothing.
        let missing = bytes.checked_sub(self.free()).filter(|missing| *missing > 0);
        let asked = self.leases.recall(missing.unwrap_or(bytes), until);
        let Some(asked) = asked else { return false };
        let milliseconds = self.settings.notice.as_millis() as u64;
        for (lease, key) in asked {
            self.count(Counter::Recalled);
            let _ =
                self.send(key, Message { call: 0, lease, body: Answer::Recall { milliseconds } });
        }
        true
    }

    fn end_recalled(&mut self) {
        if self.leases.next_end().is_none() {
            return;
        }
        for number in self.leases.ended(Instant::now()) {
            let Some(lease) = self.leases.remove(number) else { continue };
            self.count(Counter::Revoked);
            let key = lease.conn;
            self.end(lease);
            let _ = self.send(key, Message { call: 0, lease: number, body: Answer::Revoked });
        }
    }

    /// Takes a lease's memory back, which cuts its files.
    fn end(&mut self, lease: Lease) {
        self.users.remove(lease.uid, lease.bytes, lease.is_promise());
        let is_revoked = lease.until.is_some_and(|until| until <= Instant::now());
        if let Held::Given(blocks) = lease.held {
            self.to_keeper(blocks, is_revoked);
        }
    }

    /// Passes memory on at once if its client still uses it.
    fn to_keeper(&mut self, mut blocks: Vec<ClosedBlock>, is_revoked: bool) {
        let pages: u64 = blocks.iter().map(|block| block.pages().get()).sum();
        self.kept.under_way(Pages::new(pages).bytes(glebe::page_size()).get(), true);
        if is_revoked {
            let _ = self.ended.send(blocks);
            return;
        }
        self.returned.append(&mut blocks);
        self.since.get_or_insert_with(Instant::now);
    }

    /// Enters the lease, and queues its messages.
    fn give(
        &mut self,
        key: usize,
        call: u32,
        wish: &Wish,
        (bytes, blocks): (u64, Vec<ClosedBlock>),
    ) {
        let Some(conn) = self.conns.get(key) else { return };
        let name = if wish.name.as_str().is_empty() { conn.name } else { wish.name };
        let (uid, pid, flags, until) = (conn.uid, conn.pid, wish.flags, None);
        let held = Held::Given(blocks);
        let mut lease = Lease { conn: key, uid, pid, held, bytes, flags, name, until };
        let (frames, count) = (lease.frames(), lease.files().len());
        let number = self.leases.add(lease);
        self.count(Counter::Leased);
        let file = bytes / (count as u64).max(1);
        let a_file = (file / self.brick.get()) as usize;
        let Some(conn) = self.conns.get_mut(key) else { return };
        for first in (0..count).step_by(FILES_MAX) {
            let files = first..(first + FILES_MAX).min(count);
            let shown = frames.iter().skip(first * a_file).take(files.len() * a_file);
            let body = Answer::Leased {
                bytes,
                file,
                page: self.brick.get(),
                first: first as u32,
                count: files.len() as u32,
                frames: shown.take(FRAMES_MAX).copied().collect(),
            };
            let mut out = Vec::with_capacity(64 + 8 * files.len());
            Message { call, lease: number, body }.encode(&mut out);
            conn.waiting.push_back(Waiting { bytes: out, lease: number, files });
        }
    }

    fn join(
        &mut self,
        key: usize,
        call: u32,
        wish: &Wish,
        (bytes, blocks): (u64, Vec<ClosedBlock>),
    ) {
        let Some(conn) = self.conns.get_mut(key) else { return };
        conn.under_way += 1;
        self.kept.under_way(bytes, true);
        let (serial, wish, made) = (conn.serial, *wish, self.made.0.clone());
        let wake = Arc::clone(&self.wake);
        let work = move || {
            let block = ClosedBlock::merged(blocks).joined();
            let _ = made.send(Made { conn: key, serial, call, wish, bytes, block });
            let _ = rustix::io::write(&*wake, &1_u64.to_ne_bytes());
        };
        let started = std::thread::Builder::new().name("glebed-file".to_owned()).spawn(work);
        if let Err(error) = started {
            if let Some(conn) = self.conns.get_mut(key) {
                conn.under_way -= 1;
            }
            self.discharge(key, bytes, false);
            self.kept.under_way(bytes, false);
            let text = format!("no thread to make the file: {error}");
            let refusal = Refusal { errno: Errno::AGAIN, limit: 0, text };
            let _ = self.refuse(key, call, refusal);
        }
    }

    fn finish(&mut self, made: Made) {
        let Made { conn: key, serial, call, wish, bytes, block } = made;
        let is_there = self.conns.get(key).is_some_and(|conn| conn.serial == serial);
        self.kept.under_way(bytes, false);
        match block {
            Ok(block) if is_there => self.give(key, call, &wish, (bytes, vec![block])),
            Ok(block) => self.to_keeper(vec![block], false),
            Err(error) if is_there => {
                self.discharge(key, bytes, false);
                let text = format!("the file could not be made: {error}");
                let _ = self.refuse(key, call, Refusal { errno: Errno::NOMEM, limit: 0, text });
            }
            Err(_) => {}
        }
        if let Some(conn) = self.conns.get_mut(key).filter(|_| is_there) {
            conn.under_way -= 1;
            if self.flush(key).is_err() {
                self.close(key);
            }
        }
    }

    fn promise(&mut self, key: usize, wish: &Wish) -> Result<(u64, u64), Refusal> {
        let (pages, align) = self.checked(key, wish)?;
        let bytes = pages.bytes(glebe::page_size()).get();
        self.charge(key, bytes, true)?;
        let run = Run::new(pages).align(align);
        let run = if wish.flags.contiguous { run } else { run.any() };
        let promised = self.reserve.promise_bricks(run).or_else(|_| {
            let _filling = self.kept.filling();
            ClosedBlock::reopen(self.kept.stock().take_all());
            self.reserve.promise_bricks(run)
        });
        let promise = match promised {
            Ok(promise) => promise,
            Err(error) => {
                self.discharge(key, bytes, true);
                return Err(self.refusal(pages, &error));
            }
        };
        let Some(conn) = self.conns.get(key) else { return Ok((0, 0)) };
        let name = if wish.name.as_str().is_empty() { conn.name } else { wish.name };
        let (uid, pid, flags, until) = (conn.uid, conn.pid, wish.flags, None);
        let held = Held::Promised(promise);
        let lease = Lease { conn: key, uid, pid, held, bytes, flags, name, until };
        Ok((self.leases.add(lease), bytes))
    }

    fn take(&mut self, key: usize, call: u32, number: u64) -> Result<(), Refusal> {
        let is_promise = self.leases.of(key, number).is_some_and(|lease| lease.is_promise());
        let lease = is_promise.then(|| self.leases.remove(number)).flatten();
        let Some(Lease { held: Held::Promised(promise), bytes, flags, name, .. }) = lease else {
            let text = format!("no promise has the number {number}");
            return Err(Refusal { errno: Errno::INVAL, limit: 0, text });
        };
        self.discharge(key, bytes, true);
        let closed = promise.close().map_err(|error| Refusal {
            errno: Errno::IO,
            limit: 0,
            text: format!("the promise could not be kept: {error}"),
        })?;
        self.charge(key, bytes, false)?;
        let wish = Wish { bytes, flags, name, ..Wish::default() };
        match flags.one_file {
            true => self.join(key, call, &wish, (bytes, vec![closed])),
            false => self.give(key, call, &wish, (bytes, vec![closed])),
        }
        Ok(())
    }
}
