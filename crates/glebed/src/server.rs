//! [`Server`] answers requests on one thread.
//!
//! It waits for sockets and for deadlines of recalled leases. If a few bricks are not zeroed ahead,
//! they are zeroed before the answer, while others wait. A thread takes the memory of a longer
//! lease, or makes the file of a one-file lease.

mod adopt;
mod cached;
mod found;
mod lack;
mod lend;
mod requests;

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::mpsc::{Receiver, Sender};
use std::sync::Arc;
use std::time::{Duration, Instant};

use glebe::contig::Node;
use glebe::internal::stats::Histogram;
use glebe::internal::sync::Ordering;
use glebe::internal::sys::machine::numa;
use glebe::internal::sys::memory::pagemap::frames_visible;
use glebe::internal::{ClosedBlock, NodeBytes};
use glebe::reserve::{Reserve, ReserveError};
use glebe::units::{Bytes, Pages};
use glebe_lease::socket::Packets;
use glebe_lease::wire::{Answer, Message, Request, Wish};
use rustix::event::epoll::{self, CreateFlags, EventData, EventFlags};
use rustix::event::Timespec;
use rustix::io::Errno;
use slab::Slab;

use crate::caches::Caches;
use crate::conn::{Conn, Waiting};
use crate::growth::Task;
use crate::keeper::Kept;
use crate::leases::{Held, Leases};
use crate::listening::Listening;
use crate::quota::Users;
use crate::settings::Settings;
use crate::stats::Counter;
use crate::store::Store;

const LISTENER: u64 = u64::MAX;
const WAKE: u64 = u64::MAX - 1;
const EVENTS: usize = 64;
/// Most messages of a connection before the others get their turn.
const TURN: usize = 16;
/// Most messages that wait for a client that does not read.
const WAITING_MAX: usize = 1024;
/// The keeper works if the clients pause for this time.
const QUIET: Duration = Duration::from_millis(1);
/// Longest wait of ended leases for a pause.
const DELAY_MAX: Duration = Duration::from_millis(20);
/// Pause without a free descriptor.
const PAUSE: Duration = Duration::from_millis(10);

/// Memory that another thread took.
pub(crate) struct Made {
    conn: usize,
    uid: u32,
    serial: u64,
    call: u32,
    wish: Wish,
    bytes: u64,
    /// After an error: the blocks to give back, of which some may be cut.
    blocks: Result<Vec<ClosedBlock>, (ReserveError, Vec<ClosedBlock>)>,
}

/// A request for a lease or a promise.
#[derive(Clone, Copy)]
pub(crate) struct Asked {
    call: u32,
    wish: Wish,
    is_promise: bool,
    /// How often caches have given memory up for it.
    tries: u32,
}

/// Work that a thread has done.
pub(crate) enum Done {
    Made(Made),
    /// Memory of caches came back, for the request of a connection (its key and serial).
    Came(usize, u64, Asked),
}

struct Refusal {
    errno: Errno,
    limit: u64,
    text: String,
}

pub(crate) struct Server {
    reserve: Reserve,
    on_nodes: NodeBytes,
    settings: Settings,
    kept: Arc<Kept>,
    ended: Sender<Vec<ClosedBlock>>,
    grower: Sender<Task>,
    made: (Sender<Done>, Receiver<Done>),
    /// Bytes of revocable leases that another thread takes now. They can be recalled soon.
    soon_revocable: u64,
    /// Requests that wait for memory of caches.
    coming: usize,
    poll: OwnedFd,
    listener: Arc<Listening>,
    wake: Arc<OwnedFd>,
    conns: Slab<Conn>,
    leases: Leases,
    caches: Caches,
    /// When to look for unused caches, and when a request may empty all.
    next_look: Instant,
    next_sweep: Instant,
    /// When revocable leases may be taken for a run again.
    next_recall: Instant,
    /// Caches get no memory until then.
    pool_rests: Instant,
    users: Users,
    store: Store,
    brick: Bytes,
    /// Base pages of a page of the pool.
    pool_page: Pages,
    sees_frames: bool,
    serial: u64,
    /// Memory for the keeper, and since when it waits.
    returned: Vec<ClosedBlock>,
    since: Option<Instant>,
    /// Nodes of the reserve, also of memory that is added later.
    nodes: Vec<Node>,
    /// When to accept again, after a lack of descriptors.
    pause: Option<Instant>,
    /// When to send the next sign of life.
    pulse: Option<Instant>,
    out: Vec<u8>,
    answer_ns: Histogram,
}

impl Server {
    pub(crate) fn new(
        reserve: &Reserve,
        settings: Settings,
        kept: Arc<Kept>,
        (ended, grower): (Sender<Vec<ClosedBlock>>, Sender<Task>),
        (listener, wake): (Arc<Listening>, Arc<OwnedFd>),
    ) -> Result<Self, crate::Failure> {
        let poll = epoll::create(CreateFlags::CLOEXEC)?;
        epoll::add(&poll, listener.as_fd(), EventData::new_u64(LISTENER), EventFlags::IN)?;
        epoll::add(&poll, wake.as_fd(), EventData::new_u64(WAKE), EventFlags::IN)?;
        let brick = ClosedBlock::brick(reserve)?.bytes(glebe::page_size());
        let nodes = match &settings.nodes[..] {
            [] => numa::with_memory(),
            nodes => nodes.to_vec(),
        };
        Ok(Self {
            reserve: reserve.clone(),
            on_nodes: NodeBytes::new(),
            users: Users::new(settings.quota),
            pulse: settings.pulse.map(|_| Instant::now()),
            settings,
            kept,
            ended,
            grower,
            made: std::sync::mpsc::channel(),
            soon_revocable: 0,
            coming: 0,
            poll,
            listener,
            wake,
            conns: Slab::new(),
            leases: Leases::default(),
            caches: Caches::new(brick),
            next_look: Instant::now(),
            next_sweep: Instant::now(),
            next_recall: Instant::now(),
            pool_rests: Instant::now(),
            store: Store::default(),
            brick,
            pool_page: ClosedBlock::page(reserve)?,
            sees_frames: frames_visible(),
            serial: 0,
            returned: Vec::new(),
            since: None,
            nodes,
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
            self.look_at_caches();
            self.hand_over(events.is_empty());
            self.accept_after_pause()?;
            self.show_life();
        }
        Ok(())
    }

    /// The service manager restarts a process without signs of life.
    fn show_life(&mut self) {
        let now = Instant::now();
        if let Some(every) = self.settings.pulse.filter(|_| self.pulse.is_some_and(|at| at <= now))
        {
            let is_told = self.store.show_life();
            self.pulse = Some(now + if is_told { every } else { every / 4 });
        }
    }

    fn wait(&self) -> Option<Duration> {
        let look = (self.caches.filled_places() > 0).then_some(self.next_look);
        let deadlines = [self.leases.next_end(), self.pause, self.pulse, look];
        let next = deadlines.into_iter().flatten().min();
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
        while let Ok(done) = self.made.1.try_recv() {
            match done {
                Done::Made(made) => self.finish(made),
                Done::Came(key, serial, asked) => self.ask_again(key, serial, asked),
            }
        }
    }

    /// Lets clients keep what they hold; they do not notice the daemon's end.
    pub(crate) fn leave(&mut self) {
        ClosedBlock::reopen(self.caches.take_all());
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

/// Returns the call of a message, also of a malformed one.
fn call_of(message: &[u8]) -> u32 {
    let call = message.get(4..8).and_then(|call| call.try_into().ok());
    call.map_or(1, u32::from_le_bytes)
}

/// Connections.
impl Server {
    fn accept(&mut self) -> io::Result<()> {
        for _ in 0..TURN {
            let packets = match Packets::accept(self.listener.as_fd()) {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(()),
                Err(error) if error.kind() == io::ErrorKind::ConnectionAborted => continue,
                Err(_) => {
                    self.count(Counter::NotAccepted);
                    self.pause = Some(Instant::now() + PAUSE);
                    return Ok(epoll::delete(&self.poll, self.listener.as_fd())?);
                }
                Ok(packets) => packets,
            };
            self.serial += 1;
            let Ok(conn) = Conn::new(packets, self.serial) else { continue };
            if !self.users.connect(conn.uid) {
                self.count(Counter::OverQuota);
                let limit = self.settings.quota.connections as u64;
                let text = format!("user {} has {limit} connections, the limit", conn.uid);
                let refused = Answer::Refused { errno: Errno::DQUOT.raw_os_error(), limit, text };
                Message { call: 1, lease: 0, body: refused }.encode(&mut self.out);
                // If the client does not get the reason, it sees the connection end.
                let _ = conn.packets.send(&self.out, &[]);
                continue;
            }
            self.count(Counter::Accepted);
            let key = self.conns.insert(conn);
            let data = EventData::new_u64(key as u64);
            if epoll::add(&self.poll, &self.conns[key].packets, data, EventFlags::IN).is_err() {
                self.close(key);
            }
        }
        Ok(())
    }

    fn accept_after_pause(&mut self) -> io::Result<()> {
        if self.pause.is_some_and(|pause| pause <= Instant::now()) {
            self.pause = None;
            let data = EventData::new_u64(LISTENER);
            epoll::add(&self.poll, self.listener.as_fd(), data, EventFlags::IN)?;
        }
        Ok(())
    }

    fn serve(&mut self, key: usize, flags: EventFlags, bytes: &mut [u8]) {
        if !self.conns.contains(key) {
            return;
        }
        let has_left = flags.intersects(EventFlags::HUP | EventFlags::ERR);
        if has_left && self.conns[key].waits_for_room {
            return self.close(key);
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
        for _ in 0..TURN {
            let Some(conn) = self.conns.get(key).filter(|conn| !conn.waits_for_room) else {
                return Ok(());
            };
            let begin = Instant::now();
            let len = match conn.packets.receive_alone(bytes) {
                Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
                Ok(len) => len,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(()),
                Err(error) => {
                    if error.kind() == io::ErrorKind::InvalidData {
                        self.count(Counter::Malformed);
                    }
                    return Err(error);
                }
            };
            let handled = match Message::<Request>::decode(&bytes[..len]) {
                Ok(message) => self.handle(key, message, begin),
                Err(error) => Err(error.to_string()),
            };
            if let Err(text) = handled {
                self.count(Counter::Malformed);
                let refused =
                    Answer::Refused { errno: Errno::PROTO.raw_os_error(), limit: 0, text };
                let call = call_of(&bytes[..len]).max(1);
                self.send(key, Message { call, lease: 0, body: refused })?;
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
        self.forget_conn(conn.serial, &conn.packets);
    }

    /// Queues a message without files.
    fn send(&mut self, key: usize, message: Message<Answer>) -> io::Result<()> {
        let conn = self.conns.get_mut(key).filter(|conn| !conn.is_adopted);
        let Some(conn) = conn else { return Ok(()) };
        message.encode(&mut self.out);
        if conn.waiting.is_empty() {
            match conn.packets.send(&self.out, &[]) {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                other => return other,
            }
        }
        if message.call == 0 {
            // A client may read no events; the deadline holds nevertheless.
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
                (false, None) => {
                    // The lease was taken back before the client had its files.
                    let call = call_of(&first.bytes);
                    let text = "the lease was taken back before it was sent".to_owned();
                    let body =
                        Answer::Refused { errno: Errno::AGAIN.raw_os_error(), limit: 0, text };
                    let gone = first.lease;
                    conn.waiting.retain(|waiting| waiting.lease != gone);
                    Message { call, lease: 0, body }.encode(&mut self.out);
                    let bytes = self.out.clone();
                    conn.waiting.push_front(Waiting { bytes, lease: 0, files: 0..0 });
                    continue;
                }
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
