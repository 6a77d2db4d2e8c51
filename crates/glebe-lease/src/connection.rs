//! [`Connection`] exchanges messages with the daemon.

use std::collections::VecDeque;
use std::fs::File;
use std::io::{
    self,
    ErrorKind::{BrokenPipe, ConnectionReset, WouldBlock},
};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::PathBuf;
use std::time::{Duration, Instant};

use rustix::event::{poll, PollFd, PollFlags, Timespec};
use rustix::io::Errno;

use crate::error::LeaseError;
use crate::lease::Received;
use crate::parts::Part;
use crate::socket::Packets;
use crate::wire::{Answer, Malformed, Message, Request, MESSAGE_MAX};
use glebe_os::internal::sync::{lock, Mutex};
use glebe_os::internal::sys::processes::fork::ForkGuard;
use glebe_os::units::{Bytes, PageSize};

/// Time that a daemon may take for each GiB, beyond the limit of [`Client::connect_within`].
const PER_GIB: Duration = Duration::from_secs(10);

#[derive(Debug)]
pub(crate) struct Connection {
    path: PathBuf,
    /// Longest wait for an answer.
    limit: Option<Duration>,
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
    /// Somebody reads events.
    keeps_events: bool,
}

impl Connection {
    /// Returns a connection. Without `keeps_events`, it drops the daemon's events.
    pub(crate) fn new(
        path: PathBuf,
        limit: Option<Duration>,
        packets: Packets,
        keeps_events: bool,
    ) -> Self {
        let (bytes, files, events) = (vec![0; MESSAGE_MAX], Vec::new(), VecDeque::new());
        let calls = Mutex::new(Calls { last: 0, bytes, files, events, keeps_events });
        Self { path, limit, packets, guard: ForkGuard::new(), calls }
    }

    fn told(&self, error: LeaseError) -> LeaseError {
        match error {
            LeaseError::Connection(error) if error.kind() == WouldBlock => {
                LeaseError::Silent { path: self.path.clone() }
            }
            other => other,
        }
    }

    pub(crate) fn is_inherited(&self) -> bool {
        self.guard.is_child()
    }

    pub(crate) fn has_ended(&self) -> bool {
        self.packets.has_ended()
    }

    /// Sends a request that gets no answer.
    pub(crate) fn tell(&self, lease: u64, body: Request) -> Result<(), LeaseError> {
        if self.is_inherited() {
            return Err(LeaseError::Forked);
        }
        let mut out = Vec::with_capacity(16);
        Message { call: 0, lease, body }.encode(&mut out);
        Ok(self.packets.send(&out, &[])?)
    }

    pub(crate) fn call(
        &self,
        lease: u64,
        body: Request,
    ) -> Result<(Message<Answer>, Vec<File>), LeaseError> {
        self.ask(&mut lock(&self.calls), lease, body)
    }

    /// A daemon that refuses a connection ends it, maybe before the hello. The refusal is there
    /// nevertheless, behind an error of the socket.
    pub(crate) fn hello(&self, hello: Request) -> Result<Message<Answer>, LeaseError> {
        let mut calls = lock(&self.calls);
        let mut answer = self.ask(&mut calls, 0, hello);
        for _ in 0..2 {
            match &answer {
                Err(LeaseError::Connection(error))
                    if matches!(error.kind(), BrokenPipe | ConnectionReset) =>
                {
                    let call = calls.last;
                    answer = calls.answer(&self.packets, call).map_err(|error| self.told(error));
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
        if self.is_inherited() {
            return Err(LeaseError::Forked);
        }
        calls.last = calls.last.wrapping_add(1).max(1);
        let call = calls.last;
        let mut out = Vec::with_capacity(128);
        Message { call, lease, body }.encode(&mut out);
        let sent = self.packets.send(&out, &[]).map_err(LeaseError::from);
        sent.and_then(|()| calls.answer(&self.packets, call)).map_err(|error| self.told(error))
    }

    pub(crate) fn leased(
        &self,
        lease: u64,
        size: Bytes,
        body: Request,
    ) -> Result<Received, LeaseError> {
        let mut all: Option<Received> = None;
        let number = self.parts(lease, size, body, |part| {
            let Part { bytes, file, page, files, frames, .. } = part;
            match &mut all {
                None => all = Some(Received { number: 0, bytes, file, page, files, frames }),
                Some(all) => {
                    all.files.extend(files);
                    all.frames.extend(frames);
                }
            }
            Ok(())
        })?;
        let all = all.ok_or(Malformed::Answer)?;
        Ok(Received { number, ..all })
    }

    /// Leases memory, and hands each message's files to `each`. Returns the lease's number. `size`
    /// is what the daemon has to zero. Holds the lock for the whole exchange.
    pub(crate) fn parts(
        &self,
        lease: u64,
        size: Bytes,
        body: Request,
        each: impl FnMut(Part) -> io::Result<()>,
    ) -> Result<u64, LeaseError> {
        let mut calls = lock(&self.calls);
        let gib = u32::try_from(size.get() >> 30).unwrap_or(u32::MAX);
        let longer = self.limit.map(|limit| limit.saturating_add(PER_GIB.saturating_mul(gib)));
        self.packets.set_limit(longer)?;
        let got = self.ask(&mut calls, lease, body).map(|(answer, files)| {
            let number = answer.lease;
            let taken = calls.take_parts(&self.packets, answer, files, each);
            (number, taken.map_err(|error| self.told(error)))
        });
        self.packets.set_limit(self.limit)?;
        let (number, taken) = got?;
        drop(calls);
        taken.inspect_err(|_| drop(self.tell(number, Request::Release)))?;
        Ok(number)
    }

    /// See [`release_late`](crate::internal::release_late).
    pub(crate) fn release_late(&self) -> Result<(), LeaseError> {
        match self.is_inherited() {
            true => Err(LeaseError::Forked),
            false => lock(&self.calls).take_waiting(&self.packets),
        }
    }

    /// Returns the next event of a lease, waiting at most for `wait`.
    pub(crate) fn event(&self, lease: u64, wait: Duration) -> Result<Option<Answer>, LeaseError> {
        if self.is_inherited() {
            return Err(LeaseError::Forked);
        }
        let until = Instant::now().checked_add(wait);
        loop {
            {
                let mut calls = lock(&self.calls);
                // After an end with unread requests, the kernel tells that before what was sent.
                let ended = calls.take_waiting(&self.packets);
                let ended = ended.or_else(|_| calls.take_waiting(&self.packets));
                let at = calls.events.iter().position(|event| event.lease == lease);
                if let Some(event) = at.and_then(|at| calls.events.remove(at)) {
                    return Ok(Some(event.body));
                }
                ended?;
            }
            let left = until.map(|until| until.saturating_duration_since(Instant::now()));
            if left.is_some_and(|left| left.is_zero()) {
                return Ok(None);
            }
            let left = left.and_then(|left| Timespec::try_from(left).ok());
            let mut fds = [PollFd::new(&self.packets, PollFlags::IN)];
            match poll(&mut fds, left.as_ref()) {
                Ok(_) | Err(Errno::INTR) => {}
                Err(error) => return Err(io::Error::from(error).into()),
            }
        }
    }
}

impl AsFd for Connection {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.packets.as_fd()
    }
}

impl Calls {
    /// Takes all messages of an answer, also after a failure of `each`.
    fn take_parts(
        &mut self,
        packets: &Packets,
        answer: Message<Answer>,
        files: Vec<File>,
        mut each: impl FnMut(Part) -> io::Result<()>,
    ) -> Result<(), LeaseError> {
        let call = answer.call;
        let Answer::Leased { bytes, file, page, frames, .. } = answer.body else {
            return Err(Malformed::Answer.into());
        };
        let size = PageSize::new(page).filter(|page| page.bytes().get() <= file);
        let size = size.ok_or(Malformed::Answer)?;
        if file == 0 || bytes % file != 0 || file % page != 0 || files.is_empty() {
            return Err(Malformed::Answer.into());
        }
        let mut done = files.len();
        let [all, length] = [bytes, file].map(Bytes::new);
        let part = |first, files, frames| Part {
            bytes: all,
            file: length,
            page: size,
            first,
            files,
            frames,
        };
        let mut taken = each(part(0, files, frames));
        while (done as u64) < bytes / file {
            let (more, further) = self.answer(packets, call)?;
            let Answer::Leased { first, frames, .. } = more.body else {
                return Err(Malformed::Answer.into());
            };
            if first as usize != done || further.is_empty() {
                return Err(Malformed::Answer.into());
            }
            done += further.len();
            taken = taken.and_then(|()| each(part(first as usize, further, frames)));
        }
        taken.map_err(LeaseError::NotMapped)
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
                self.add_event(message);
                continue;
            }
            if message.call != call {
                self.drop_late(packets, &message)?;
                continue;
            }
            let files = self.files.drain(..).map(File::from).collect();
            return match message.body {
                Answer::Refused { errno, limit, text } => {
                    Err(LeaseError::Refused { errno, limit: Bytes::new(limit), text })
                }
                _ => Ok((message, files)),
            };
        }
    }

    fn add_event(&mut self, event: Message<Answer>) {
        if self.keeps_events {
            self.events.push_back(event);
        }
    }

    /// Drops the answer to a call that waited no longer. Nobody else would release its lease.
    fn drop_late(
        &mut self,
        packets: &Packets,
        message: &Message<Answer>,
    ) -> Result<(), LeaseError> {
        self.files.clear();
        if matches!(message.body, Answer::Leased { .. } | Answer::Promised { .. }) {
            let mut out = Vec::new();
            let (lease, body) = (message.lease, Request::Release);
            Message { call: 0, lease, body }.encode(&mut out);
            packets.send(&out, &[])?;
        }
        Ok(())
    }

    /// Takes the events and late answers that are there already.
    fn take_waiting(&mut self, packets: &Packets) -> Result<(), LeaseError> {
        loop {
            let len = match packets.poll(&mut self.bytes, &mut self.files) {
                Ok(0) => return Err(io::Error::from(io::ErrorKind::UnexpectedEof).into()),
                Ok(len) => len,
                Err(error) if error.kind() == WouldBlock => return Ok(()),
                Err(error) => return Err(error.into()),
            };
            let message = Message::<Answer>::decode(&self.bytes[..len])?;
            match message.call {
                0 => self.add_event(message),
                // An error tells of the connection's end, which the next packets tell too.
                _ => _ = self.drop_late(packets, &message),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::net::{socketpair, AddressFamily, SocketFlags, SocketType};

    fn pair(keeps_events: bool) -> (Connection, Packets) {
        let flags = SocketFlags::CLOEXEC;
        let both = socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None).unwrap();
        let [own, daemon] = [both.0, both.1].map(Packets::from);
        (Connection::new(PathBuf::new(), None, own, keeps_events), daemon)
    }

    fn send(daemon: &Packets, call: u32, body: Answer) {
        let mut out = Vec::new();
        Message { call, lease: 7, body }.encode(&mut out);
        daemon.send(&out, &[]).unwrap();
    }

    #[test]
    fn an_event_is_there_although_the_connection_has_ended() {
        let (connection, daemon) = pair(true);
        send(&daemon, 0, Answer::Revoked);
        drop(daemon);
        assert!(connection.event(8, Duration::ZERO).is_err());
        let event = connection.event(7, Duration::ZERO);
        assert!(matches!(event, Ok(Some(Answer::Revoked))), "{event:?}");
        assert!(connection.event(7, Duration::ZERO).is_err());
    }

    #[test]
    fn events_that_nobody_will_read_are_not_kept() {
        for keeps_events in [false, true] {
            let (connection, daemon) = pair(keeps_events);
            send(&daemon, 0, Answer::Revoked);
            send(&daemon, 1, Answer::Done);
            connection.call(7, Request::Keep).unwrap();
            send(&daemon, 0, Answer::Revoked);
            connection.release_late().unwrap();
            let kept = lock(&connection.calls).events.len();
            assert_eq!(kept, if keeps_events { 2 } else { 0 });
            assert!(connection.event(8, Duration::ZERO).unwrap().is_none());
        }
    }
}
