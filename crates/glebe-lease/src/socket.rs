//! [`Packets`] sends and receives datagrams with descriptors. Source: unix(7), cmsg(3).

use std::io::{self, IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::path::Path;
use std::time::Duration;

use rustix::io::Errno;
use rustix::net::sockopt::{set_socket_timeout, Timeout};
use rustix::net::{
    accept_with, bind, connect, recv, recvmsg, sendmsg, socket_with, AddressFamily,
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, ReturnFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, SocketAddrUnix, SocketFlags, SocketType,
};

use crate::wire::FILES_MAX;

const SPACE: usize = rustix::cmsg_space!(ScmRights(FILES_MAX));

/// One end of a connection.
#[derive(Debug)]
pub struct Packets(OwnedFd);

fn socket(flags: SocketFlags) -> io::Result<OwnedFd> {
    Ok(socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, flags | SocketFlags::CLOEXEC, None)?)
}

/// Binds a socket at `path`, which does not block. Nobody can connect until the caller listens.
///
/// # Errors
/// EADDRINUSE if the path exists.
pub fn bound(path: &Path) -> io::Result<OwnedFd> {
    let socket = socket(SocketFlags::NONBLOCK)?;
    bind(&socket, &SocketAddrUnix::new(path)?)?;
    Ok(socket)
}

impl Packets {
    /// Connects to the socket at `path`. With `limit`, no later call waits longer.
    ///
    /// # Errors
    /// ECONNREFUSED if nobody listens.
    pub fn connect(path: &Path, limit: Option<Duration>) -> io::Result<Self> {
        let packets = Self(socket(SocketFlags::empty())?);
        packets.set_limit(limit)?;
        connect(&packets.0, &SocketAddrUnix::new(path)?)?;
        Ok(packets)
    }

    /// Moves to a descriptor of at least `least`, if the process may have one.
    pub(crate) fn above(self, least: i32) -> Self {
        match rustix::io::fcntl_dupfd_cloexec(&self.0, least) {
            Ok(moved) if self.0.as_raw_fd() < least => Self(moved),
            _ => self,
        }
    }

    /// No later call waits longer than `limit`, if there is one.
    pub(crate) fn set_limit(&self, limit: Option<Duration>) -> io::Result<()> {
        let both = [Timeout::Recv, Timeout::Send].into_iter().filter(|_| limit.is_some());
        Ok(both.into_iter().try_for_each(|one| set_socket_timeout(&self.0, one, limit))?)
    }

    /// Accepts a connection, which does not block.
    ///
    /// # Errors
    /// `WouldBlock` if there is none; EMFILE if the process has no descriptor left.
    pub fn accept(listener: impl AsFd) -> io::Result<Self> {
        Ok(Self(accept_with(listener, SocketFlags::CLOEXEC | SocketFlags::NONBLOCK)?))
    }

    /// Sends a message with up to [`FILES_MAX`] descriptors. The peer gets all of it or nothing.
    ///
    /// # Errors
    /// `WouldBlock` if the peer's queue is full; EPIPE if the peer has left.
    pub fn send(&self, bytes: &[u8], files: &[BorrowedFd<'_>]) -> io::Result<()> {
        let mut space = [MaybeUninit::uninit(); SPACE];
        let mut control = SendAncillaryBuffer::new(&mut space);
        if !files.is_empty() && !control.push(SendAncillaryMessage::ScmRights(files)) {
            return Err(io::ErrorKind::InvalidInput.into());
        }
        loop {
            match sendmsg(&self.0, &[IoSlice::new(bytes)], &mut control, SendFlags::NOSIGNAL) {
                Err(Errno::INTR) => {}
                other => return Ok(other.map(drop)?),
            }
        }
    }

    /// Receives a message into `bytes`, and its descriptors. Returns 0 if the peer has left.
    ///
    /// # Errors
    /// `WouldBlock` if there is none and the socket does not block; `InvalidData` if the message is
    /// longer than `bytes`, or if descriptors were lost because the process has too many.
    pub fn receive(&self, bytes: &mut [u8], files: &mut Vec<OwnedFd>) -> io::Result<usize> {
        self.receive_with(bytes, files, RecvFlags::empty())
    }

    /// Receives a message without descriptors. The kernel drops descriptors of the peer before this
    /// process has them, since the close of a strange file may wait for ever.
    ///
    /// # Errors
    /// See [`Packets::receive`].
    pub fn receive_alone(&self, bytes: &mut [u8]) -> io::Result<usize> {
        self.message(bytes, &mut RecvAncillaryBuffer::default(), RecvFlags::empty())
    }

    /// Receives a message that is there already, or fails with `WouldBlock`.
    ///
    /// # Errors
    /// See [`Packets::receive`].
    pub fn poll(&self, bytes: &mut [u8], files: &mut Vec<OwnedFd>) -> io::Result<usize> {
        self.receive_with(bytes, files, RecvFlags::DONTWAIT)
    }

    /// Returns true if the peer has left. Takes no message.
    #[must_use]
    pub fn has_ended(&self) -> bool {
        let flags = RecvFlags::PEEK | RecvFlags::DONTWAIT;
        !matches!(recv(&self.0, &mut [0; 1], flags), Ok((1.., _)) | Err(Errno::AGAIN | Errno::INTR))
    }

    fn receive_with(
        &self,
        bytes: &mut [u8],
        files: &mut Vec<OwnedFd>,
        flags: RecvFlags,
    ) -> io::Result<usize> {
        let mut space = [MaybeUninit::uninit(); SPACE];
        let mut control = RecvAncillaryBuffer::new(&mut space);
        files.clear();
        let len = self.message(bytes, &mut control, flags | RecvFlags::CMSG_CLOEXEC)?;
        for message in control.drain() {
            if let RecvAncillaryMessage::ScmRights(rights) = message {
                files.extend(rights);
            }
        }
        Ok(len)
    }

    fn message(
        &self,
        bytes: &mut [u8],
        control: &mut RecvAncillaryBuffer<'_>,
        flags: RecvFlags,
    ) -> io::Result<usize> {
        let got = loop {
            match recvmsg(&self.0, &mut [IoSliceMut::new(bytes)], control, flags) {
                Err(Errno::INTR) => {}
                other => break other?,
            }
        };
        match got.flags.intersects(ReturnFlags::TRUNC | ReturnFlags::CTRUNC) {
            true => Err(io::ErrorKind::InvalidData.into()),
            false => Ok(got.bytes),
        }
    }
}

impl AsFd for Packets {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

impl From<OwnedFd> for Packets {
    fn from(socket: OwnedFd) -> Self {
        Self(socket)
    }
}

impl From<Packets> for OwnedFd {
    fn from(packets: Packets) -> Self {
        packets.0
    }
}
