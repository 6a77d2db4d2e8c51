//! [`Conn`] is a client's connection.

use std::collections::VecDeque;
use std::io;
use std::ops::Range;
use std::os::fd::BorrowedFd;

use glebe::internal::sys::files::socket::Peer;
use glebe_lease::socket::Packets;
use glebe_lease::wire::Name;

/// A message that waits for room in the client's queue, with files of a lease.
#[derive(Debug)]
pub(crate) struct Waiting {
    pub(crate) bytes: Vec<u8>,
    pub(crate) lease: u64,
    pub(crate) files: Range<usize>,
}

#[derive(Debug)]
pub(crate) struct Conn {
    pub(crate) packets: Packets,
    pub(crate) uid: u32,
    /// 0 for a process of another PID namespace.
    pub(crate) pid: u32,
    pub(crate) name: Name,
    /// Distinguishes connections with one key in the table.
    pub(crate) serial: u64,
    pub(crate) has_greeted: bool,
    /// Of an earlier daemon: only releases count, and nothing is answered.
    pub(crate) is_adopted: bool,
    /// Requests that another thread works on.
    pub(crate) under_way: usize,
    pub(crate) waiting: VecDeque<Waiting>,
    pub(crate) waits_for_room: bool,
}

impl Conn {
    pub(crate) fn new(packets: Packets, serial: u64) -> io::Result<Self> {
        let peer = Peer::of(&packets)?;
        Ok(Self {
            packets,
            uid: peer.uid,
            pid: peer.pid,
            name: Name::default(),
            serial,
            has_greeted: false,
            is_adopted: false,
            under_way: 0,
            waiting: VecDeque::new(),
            waits_for_room: false,
        })
    }

    /// Sends the first waiting message. Returns false if the client's queue is full.
    pub(crate) fn send_first(&mut self, files: &[BorrowedFd<'_>]) -> io::Result<bool> {
        let Some(first) = self.waiting.front() else { return Ok(true) };
        match self.packets.send(&first.bytes, files) {
            Ok(()) => {
                self.waiting.pop_front();
                Ok(true)
            }
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => Ok(false),
            Err(error) => Err(error),
        }
    }
}
