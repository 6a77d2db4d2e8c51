//! [`spawn`] starts a program whose calls a [`CallListener`] holds.
//!
//! The child installs the filter before it executes the program, and sends the listener through a
//! socket. Source: unix(7), cmsg(3), PR_SET_PDEATHSIG(2const).
#![allow(unsafe_code)]

use std::io;
use std::mem::MaybeUninit;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt;
use std::process::{Child, Command};

use super::filter::install;
use super::CallListener;
use crate::internal::sys::call::answer;

/// Words for the control message with one descriptor.
const CONTROL: usize = 8;

#[derive(Debug)]
pub enum NotSpawned {
    /// The kernel refused the filter: EBUSY if another listener holds calls of this process.
    Filter(io::Error),
    Exec(io::Error),
}

/// Starts a program. The kernel kills the child if the calling thread ends, but not the child's
/// children.
///
/// # Errors
/// [`NotSpawned`].
pub fn spawn(command: &mut Command) -> Result<(Child, CallListener), NotSpawned> {
    let (own, theirs) = UnixStream::pair().map_err(NotSpawned::Filter)?;
    let (parent, socket) = (std::process::id(), theirs.as_raw_fd());
    let begin = move || {
        end_with(parent)?;
        send(socket, install()?.as_raw_fd())
    };
    // SAFETY: the closure only makes system calls, and allocates nothing.
    unsafe { command.pre_exec(begin) };
    let spawned = command.spawn();
    // Open until here, because the closure has only its number.
    drop(theirs);
    let listener = receive(own.as_raw_fd()).and_then(CallListener::new);
    match (spawned, listener) {
        (Ok(child), Ok(listener)) => Ok((child, listener)),
        (Ok(mut child), Err(error)) => {
            let _ = child.kill();
            let _ = child.wait();
            Err(NotSpawned::Filter(error))
        }
        (Err(error), Ok(_)) => Err(NotSpawned::Exec(error)),
        (Err(error), Err(_)) => Err(NotSpawned::Filter(error)),
    }
}

/// Has the kernel kill this process when its parent ends.
fn end_with(parent: u32) -> io::Result<()> {
    // SAFETY: the call takes numbers.
    answer("prctl", || unsafe { libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL) })?;
    // SAFETY: the call takes no argument.
    match unsafe { libc::getppid() }.unsigned_abs() == parent {
        true => Ok(()),
        // The parent ended before the call above.
        false => Err(io::Error::from_raw_os_error(libc::ESRCH)),
    }
}

/// Calls `act` with a message of one byte, and with room for one descriptor.
fn with_message<T>(act: impl FnOnce(&mut libc::msghdr) -> T) -> T {
    let (mut byte, mut control) = (0_u8, [0_u64; CONTROL]);
    let mut part = libc::iovec { iov_base: (&raw mut byte).cast(), iov_len: 1 };
    // SAFETY: zeros are a valid structure.
    let mut message: libc::msghdr = unsafe { MaybeUninit::zeroed().assume_init() };
    message.msg_iov = &raw mut part;
    message.msg_iovlen = 1;
    message.msg_control = control.as_mut_ptr().cast();
    message.msg_controllen = size_of_val(&control) as _;
    act(&mut message)
}

fn send(socket: RawFd, fd: RawFd) -> io::Result<()> {
    with_message(|message| {
        // SAFETY: the room for control messages is aligned and holds this one.
        unsafe {
            message.msg_controllen = libc::CMSG_SPACE(size_of::<RawFd>() as u32) as _;
            let header = libc::CMSG_FIRSTHDR(message);
            (*header).cmsg_level = libc::SOL_SOCKET;
            (*header).cmsg_type = libc::SCM_RIGHTS;
            (*header).cmsg_len = libc::CMSG_LEN(size_of::<RawFd>() as u32) as _;
            libc::CMSG_DATA(header).cast::<RawFd>().write_unaligned(fd);
        }
        // SAFETY: all that the message points to outlives the call.
        let sent = || unsafe { libc::sendmsg(socket, message, libc::MSG_NOSIGNAL) };
        answer("sendmsg", sent).map(drop)
    })
}

/// Returns the descriptor that was sent.
fn receive(socket: RawFd) -> io::Result<OwnedFd> {
    with_message(|message| {
        let flags = libc::MSG_DONTWAIT | libc::MSG_CMSG_CLOEXEC;
        // SAFETY: all that the message points to outlives the call.
        answer("recvmsg", || unsafe { libc::recvmsg(socket, message, flags) })?;
        // SAFETY: the kernel filled the message. A first header of this type and length holds one
        // new descriptor, which nothing else owns.
        unsafe {
            let header = libc::CMSG_FIRSTHDR(message);
            let is_one = !header.is_null()
                && (*header).cmsg_type == libc::SCM_RIGHTS
                && (*header).cmsg_len as usize
                    == libc::CMSG_LEN(size_of::<RawFd>() as u32) as usize;
            match is_one {
                true => Ok(OwnedFd::from_raw_fd(
                    libc::CMSG_DATA(header).cast::<RawFd>().read_unaligned(),
                )),
                false => Err(io::ErrorKind::UnexpectedEof.into()),
            }
        }
    })
}
