//! [`Listener`] accepts connections only of its own user; [`connect`] waits for a limited time;
//! [`send_all`] raises no `SIGPIPE`; [`Peer`] is the process at the other end. Source: send(2),
//! unix(7), SO_SNDTIMEO in socket(7).
#![allow(unsafe_code)]

use std::io::{self, ErrorKind};
use std::net::Shutdown;
use std::os::fd::{AsFd, AsRawFd, FromRawFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::time::Duration;

use super::file;
use crate::error::OsError;
use crate::internal::sys::call::answer;
use crate::internal::sys::fault::point;

const SOCKET_MODE: u32 = 0o600;

#[derive(Debug)]
pub struct Listener(UnixListener);

impl Listener {
    /// Binds `path`. Replaces a file there that accepts no connection, such as the socket of an
    /// ended process. Returns `None` if a process listens there.
    pub fn bind(path: &Path) -> Result<Option<(Self, Bound)>, OsError> {
        let os = |call, e| OsError::new(call, path.display().to_string(), e);
        let in_use = |e: &io::Error| e.kind() == ErrorKind::AddrInUse;
        let try_bind = || point("bind").and_then(|()| UnixListener::bind(path));
        let mut bound = try_bind();
        if bound.as_ref().is_err_and(in_use) && UnixStream::connect(path).is_err() {
            let _ = file::remove(path);
            bound = try_bind();
        }
        let listener = match bound {
            Err(e) if in_use(&e) => return Ok(None),
            bound => bound.map_err(|e| os("bind", e))?,
        };
        let clone = point("dup").and_then(|()| listener.try_clone()).map_err(|e| {
            let _ = file::remove(path); // bound, but without an owner
            os("dup", e)
        })?;
        let bound = Bound { path: path.into(), waker: UnixStream::from(OwnedFd::from(clone)) };
        file::set_mode(path, SOCKET_MODE).map_err(|e| os("chmod", e))?;
        Ok(Some((Self(listener), bound)))
    }

    /// Returns `None` once the [`Bound`] is dropped.
    pub fn accept(&self) -> io::Result<Option<UnixStream>> {
        match point("accept").and_then(|()| self.0.accept()) {
            Ok((stream, _)) => Ok(Some(stream)),
            Err(e) if e.kind() == ErrorKind::InvalidInput => Ok(None),
            Err(e) => Err(e),
        }
    }
}

/// The path of a [`Listener`]. Dropping a `Bound` removes the path and ends `accept`.
#[derive(Debug)]
pub struct Bound {
    path: PathBuf,
    waker: UnixStream,
}

impl Bound {
    pub fn path(&self) -> &Path {
        &self.path
    }
}

impl Drop for Bound {
    fn drop(&mut self) {
        // A failed removal only leaves a path without a listener.
        let _ = file::remove(&self.path);
        let _ = self.waker.shutdown(Shutdown::Both);
    }
}

/// Connects to the socket at `path`, whose listener may have a full queue. No wait for it, and no
/// later write, is longer than `limit`.
///
/// # Errors
/// `WouldBlock` after `limit`; `InvalidInput` if the path is too long; ECONNREFUSED if nobody
/// listens.
pub fn connect(path: &Path, limit: Duration) -> io::Result<UnixStream> {
    let kind = libc::SOCK_STREAM | libc::SOCK_CLOEXEC;
    // SAFETY: makes a descriptor.
    let fd = answer("socket", || unsafe { libc::socket(libc::AF_UNIX, kind, 0) })?;
    // SAFETY: the descriptor is new, so nobody else owns it.
    let stream = UnixStream::from(unsafe { OwnedFd::from_raw_fd(fd) });
    stream.set_write_timeout(Some(limit))?;
    let address = address(path)?;
    let len = size_of_val(&address) as libc::socklen_t;
    loop {
        // SAFETY: `address` is a local of `len` bytes, and `stream` keeps the descriptor open.
        let connected =
            answer("connect", || unsafe { libc::connect(fd, (&raw const address).cast(), len) });
        match connected {
            Err(e) if e.kind() == ErrorKind::Interrupted => {}
            other => return other.map(|_| stream),
        }
    }
}

fn address(path: &Path) -> io::Result<libc::sockaddr_un> {
    let bytes = path.as_os_str().as_bytes();
    let mut address =
        libc::sockaddr_un { sun_family: libc::AF_UNIX as libc::sa_family_t, sun_path: [0; 108] };
    let most = address.sun_path.len() - 1;
    if bytes.len() > most || bytes.contains(&0) {
        let what = format!("a socket's path of {} bytes; at most {most}, none 0", bytes.len());
        return Err(io::Error::new(ErrorKind::InvalidInput, what));
    }
    address.sun_path.iter_mut().zip(bytes).for_each(|(to, from)| *to = *from as libc::c_char);
    Ok(address)
}

/// Sends all of `bytes`. Each send(2) has the stream's write timeout.
pub fn send_all(stream: &UnixStream, mut bytes: &[u8]) -> io::Result<()> {
    while !bytes.is_empty() {
        let (fd, len) = (stream.as_raw_fd(), bytes.len());
        // SAFETY: `stream` keeps the descriptor open; `bytes` is a slice.
        let sent = unsafe { libc::send(fd, bytes.as_ptr().cast(), len, libc::MSG_NOSIGNAL) };
        match usize::try_from(sent) {
            Ok(sent) => bytes = &bytes[sent..],
            Err(_) => {
                let error = io::Error::last_os_error();
                if error.kind() != io::ErrorKind::Interrupted {
                    return Err(error);
                }
            }
        }
    }
    Ok(())
}

/// The process that connected.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Peer {
    /// 0 for a process that this PID namespace does not show.
    pub pid: u32,
    pub uid: u32,
}

impl Peer {
    /// Returns the process at the other end of a Unix socket.
    pub fn of(socket: impl AsFd) -> io::Result<Self> {
        let fd = socket.as_fd().as_raw_fd();
        let mut found = libc::ucred { pid: 0, uid: 0, gid: 0 };
        let mut len = size_of_val(&found) as libc::socklen_t;
        let (at, length) = (&raw mut found, &raw mut len);
        answer("getsockopt", || {
            // SAFETY: both pointers are of locals, and `len` is the size of the first.
            unsafe { libc::getsockopt(fd, libc::SOL_SOCKET, libc::SO_PEERCRED, at.cast(), length) }
        })?;
        Ok(Self { pid: found.pid.max(0).unsigned_abs(), uid: found.uid })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use glebe_testing::child::in_child;

    #[test]
    fn a_closed_reader_is_an_error_and_no_signal() {
        let (writer, reader) = UnixStream::pair().unwrap();
        drop(reader);
        // SAFETY: the child only makes system calls.
        let error = unsafe {
            in_child(|| {
                libc::signal(libc::SIGPIPE, libc::SIG_DFL);
                send_all(&writer, b"x").is_err_and(|e| e.raw_os_error() == Some(libc::EPIPE))
            })
        };
        assert!(error, "it was sent, or a signal ended the child");
    }

    #[test]
    fn a_full_queue_ends_the_wait_for_a_connection() {
        let scratch = glebe_testing::Scratch::new("queue");
        let path = scratch.path().join("socket");
        let limit = Duration::from_millis(20);
        assert_eq!(connect(&path, limit).unwrap_err().kind(), ErrorKind::NotFound);
        let listener = UnixListener::bind(&path).unwrap();
        let mut waiting = Vec::new();
        let error = loop {
            match connect(&path, limit) {
                Ok(stream) => waiting.push(stream),
                Err(error) => break error,
            }
        };
        assert_eq!(error.kind(), ErrorKind::WouldBlock);
        assert!(!waiting.is_empty());
        drop(listener);
        assert_eq!(connect(&path, limit).unwrap_err().kind(), ErrorKind::ConnectionRefused);
        let long = connect(Path::new(&"x".repeat(108)), limit).unwrap_err();
        assert_eq!(long.to_string(), "a socket's path of 108 bytes; at most 107, none 0");
    }

    #[test]
    fn a_peer_is_a_process_and_its_user() {
        let (own, _other) = UnixStream::pair().unwrap();
        let uid = crate::internal::sys::processes::process::effective_user();
        assert_eq!(Peer::of(&own).unwrap(), Peer { pid: std::process::id(), uid });
        let no_socket = std::fs::File::open("/dev/null").unwrap();
        assert!(Peer::of(&no_socket).is_err());
    }

    #[test]
    fn more_than_a_buffer_arrives_whole() {
        use std::io::Read;
        let (writer, mut reader) = UnixStream::pair().unwrap();
        let sent: Vec<u8> = (0..1_000_000_u32).map(|i| i as u8).collect();
        let mut got = Vec::new();
        std::thread::scope(|scope| {
            scope.spawn(|| {
                send_all(&writer, &sent).unwrap();
                writer.shutdown(std::net::Shutdown::Write).unwrap();
            });
            reader.read_to_end(&mut got).unwrap();
        });
        assert!(sent == got);
    }
}
